package mailbox_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// fill stores n messages of the shared owner in a few large transactions, as
// the sends of a long history would have left them.
func fill(t testing.TB, s *store.Store, from, to string, n int) {
	t.Helper()
	for done := 0; done < n; {
		step := min(n-done, 10000)
		err := store.Exec(t.Context(), s, func(tx *store.Tx) error {
			var first int64
			if err := tx.QueryRow(`SELECT coalesce(max(id), 0) FROM mailbox_messages`).Scan(&first); err != nil {
				return err
			}
			for i := range int64(step) {
				_, err := tx.Exec(`INSERT INTO mailbox_messages (id, owner, message_id, fingerprint, from_peer, to_peer, recipient_generation, thread, hop,
						created_at, delivery_path, delivery_reason, text_length)
					VALUES (?1, ?2, ?3, x'00', (SELECT id FROM mailbox_peers WHERE owner = ?2 AND peer_id = ?4), (SELECT id FROM mailbox_peers WHERE owner = ?2 AND peer_id = ?5),
						1, ?1, 1, ?6, 'none', '', 1000)`,
					first+i+1, principal.SharedOwner, uuid.NewString(), from, to, tx.Now().UnixMilli())
				if err != nil {
					return err
				}
				if _, err := tx.Exec(`INSERT INTO mailbox_texts VALUES (?, zeroblob(200), zeroblob(800))`, first+i+1); err != nil {
					return err
				}
			}
			_, err := tx.Exec(`UPDATE mailbox_peers SET unprocessed = unprocessed + ?1, unprocessed_now = unprocessed_now + ?1 WHERE owner = ?2 AND peer_id = ?3`, step, principal.SharedOwner, to)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		done += step
	}
}

func BenchmarkSend(b *testing.B) {
	for _, history := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("history=%d/clients=64", history), func(b *testing.B) {
			x := newBox(b, mailbox.Options{Limits: mailbox.Limits{PairPerHour: 1 << 30, OwnerPerHour: 1 << 30}})
			x.register("a", "b")
			fill(b, x.store, "a", "b", history)
			b.SetParallelism(32) // of 2 processors: 64 clients
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := x.SendPeerMessage(b.Context(), x.who, sendIn("a", "b", "a message of usual length, which is a sentence or two")); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
		})
	}
}

func BenchmarkList(b *testing.B) {
	for _, stored := range []int{1000, 100_000} {
		x := newBox(b, mailbox.Options{})
		x.register("a", "b")
		fill(b, x.store, "a", "b", stored)
		for _, c := range []struct {
			name string
			in   mailbox.ListPeerMessagesIn
		}{
			{"unprocessed", mailbox.ListPeerMessagesIn{PeerID: "b"}},
			{"history", mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true}},
			{"last page", mailbox.ListPeerMessagesIn{PeerID: "b", IncludeProcessed: true, Cursor: new(x.lastPage("b"))}},
		} {
			b.Run(fmt.Sprintf("%s/stored=%d", c.name, stored), func(b *testing.B) {
				for b.Loop() {
					if got := must(x.ListPeerMessages(b.Context(), x.who, c.in))(b); len(got.Messages) != mailbox.DefaultLimit {
						b.Fatalf("%d messages", len(got.Messages))
					}
				}
			})
		}
	}
}

// lastPage is the cursor of the last full page of a history.
func (b *box) lastPage(peer string) string {
	in := mailbox.ListPeerMessagesIn{PeerID: peer, IncludeProcessed: true, Limit: new(mailbox.DefaultLimit)}
	for {
		page := b.list(in)
		if page.NextCursor == "" {
			return *in.Cursor
		}
		in.Cursor = &page.NextCursor
	}
}

func BenchmarkRepeat(b *testing.B) {
	x := newBox(b, mailbox.Options{})
	x.register("a", "b")
	in := sendIn("a", "b", "x")
	var duplicates atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if must(x.SendPeerMessage(b.Context(), x.who, in))(b).Duplicate {
				duplicates.Add(1)
			}
		}
	})
	if got := duplicates.Load(); got != int64(b.N)-1 {
		b.Errorf("%d duplicates of %d", got, b.N)
	}
}
