package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// callers is how many call the mailbox at the same time.
const callers = 64

// sentence is a message of the usual length.
const sentence = "The draft is ready for review; the open question is whether the retry belongs in the client or in the queue."

// box is a mailbox over a store of its own, with two peers.
type box struct {
	*mailbox.Service
	store *store.Store
	who   principal.Principal
}

func openBox(ctx context.Context, dir string) (*box, error) {
	dir, err := os.MkdirTemp(dir, "box")
	if err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, store.Options{Dir: filepath.Join(dir, "state")})
	if err != nil {
		return nil, err
	}
	b := &box{mailbox.New(mailbox.Options{Store: s}), s, principal.Principal{Owner: principal.SharedOwner, ClientID: "bench", Permissions: principal.Full()}}
	for _, id := range []string{"a", "b"} {
		if _, err := b.RegisterPeer(ctx, b.who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat}); err != nil {
			b.close()
			return nil, err
		}
	}
	return b, nil
}

func (b *box) close() {
	b.Close()
	b.store.Close()
}

// send sends from 64 callers for a while, each through with, and returns how
// many messages were answered.
func (b *box) send(ctx context.Context, d time.Duration, with func(send func() error) error) (int64, error) {
	var sent atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range callers {
		wg.Go(func() {
			for time.Now().Before(end) && failed.Load() == nil {
				err := with(func() error {
					_, err := b.SendPeerMessage(ctx, b.who, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "a", ToPeerID: "b", Text: sentence})
					return err
				})
				if err != nil {
					failed.Store(&err)
					return
				}
				sent.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return sent.Load(), nil
}

// durableSends compares sends that share commits with the same sends one after
// the other, each of which has a commit of its own.
func durableSends(ctx context.Context, b *bench) ([]row, error) {
	together, err := openBox(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	defer together.close()
	apart, err := openBox(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	defer apart.close()

	rate := func(box *box, with func(func() error) error, perCommit *[]float64) side {
		return func() (float64, error) {
			commits, begun := box.store.Commits(), time.Now()
			sent, err := box.send(ctx, b.slice, with)
			if err != nil {
				return 0, err
			}
			*perCommit = append(*perCommit, float64(sent)/float64(box.store.Commits()-commits))
			return float64(sent) / time.Since(begun).Seconds(), nil
		}
	}
	var turn sync.Mutex
	var grouped, single []float64
	s, err := inTurns(b.rounds,
		rate(together, func(send func() error) error { return send() }, &grouped),
		rate(apart, func(send func() error) error {
			turn.Lock()
			defer turn.Unlock()
			return send()
		}, &single),
	)
	if err != nil {
		return nil, err
	}
	if most := percentile(single, 100); most > 1 {
		return nil, fmt.Errorf("sends one after the other shared commits: %.2f messages in one", most)
	}
	ratio, each := s.ratio(0, 1), percentile(grouped, 50)
	return []row{
		ratioed("durable sends, 64 callers of the mailbox", perSecond(s.median(0)), "one commit per message: "+perSecond(s.median(1)), ratio).atLeast(ratio, 2.5, "2.5 times"),
		row{name: "messages in one commit, the same", measured: fmt.Sprintf("%.0f", each)}.atLeast(each, 16, "16"),
	}, nil
}
