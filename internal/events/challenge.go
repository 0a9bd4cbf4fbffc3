package events

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxAnswer is how much of a challenge's answer is read.
	maxAnswer = 16 << 10
	// challengeBurst is how many challenges a host gets at once, and maxHosts
	// how many hosts are remembered.
	challengeBurst = 60
	maxHosts       = 1024
	// patience is how long a challenge waits for its turn at a host.
	patience = 5 * time.Second
)

// challenges bounds them: one at a time for a callback, so many for a host.
type challenges struct {
	perMinute int

	mu    sync.Mutex
	hosts map[string]*rate.Limiter
	busy  map[string]chan struct{}
}

func newChallenges(perMinute int) *challenges {
	return &challenges{perMinute: perMinute, hosts: map[string]*rate.Limiter{}, busy: map[string]chan struct{}{}}
}

// lock waits until nobody else has key, or ctx ends.
func (c *challenges) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		c.mu.Lock()
		held, ok := c.busy[key]
		if !ok {
			mine := make(chan struct{})
			c.busy[key] = mine
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				delete(c.busy, key)
				c.mu.Unlock()
				close(mine)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// take reserves a challenge of host and returns how long to wait for it; ok is
// false when that is too long.
func (c *challenges) take(host string, now time.Time) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.hosts[host]
	if l == nil {
		if len(c.hosts) >= maxHosts {
			for h, other := range c.hosts {
				if other.TokensAt(now) >= challengeBurst {
					delete(c.hosts, h) // it would be made anew just like this
				}
			}
		}
		l = rate.NewLimiter(rate.Every(time.Minute/time.Duration(c.perMinute)), challengeBurst)
		c.hosts[host] = l
	}
	r := l.ReserveN(now, 1)
	wait = r.DelayFrom(now)
	if wait > patience {
		r.CancelAt(now)
		return wait, false
	}
	return wait, true
}

// challenge asks the callback to repeat a nonce that is signed with the secret
// it was just given.
func (s *Service) challenge(ctx context.Context, r subscription) error {
	u, err := url.Parse(r.url)
	if err != nil {
		return invalid("delivery.url", "can't be read")
	}
	wait, ok := s.challenges.take(strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), s.now())
	if !ok {
		return refuse(TooFast.New("Too many callbacks of this host were verified in the last minute."),
			"limit", "challengesPerMinute", "max", s.challenges.perMinute, "retryAfterMs", inMs(wait))
	}
	if err := sleep(ctx, wait); err != nil {
		return err
	}
	nonce, messageID := make([]byte, 32), make([]byte, 16)
	for _, b := range [][]byte{nonce, messageID} {
		if _, err := io.ReadFull(s.rand, b); err != nil {
			return fmt.Errorf("making a challenge: %w", err)
		}
	}
	text := base64.RawURLEncoding.EncodeToString(nonce)
	body, err := encode(struct {
		Type      string `json:"type"`
		Challenge string `json:"challenge"`
	}{"verification", text})
	if err != nil {
		return err
	}
	m := message{url: r.url, id: "msg_verification_" + hex.EncodeToString(messageID), body: body, subscription: r.id, keys: [][]byte{r.secret}, readAnswer: maxAnswer}
	answer := s.post(ctx, m)
	if ctx.Err() != nil {
		return ctx.Err() // the client left: nothing is known about its callback
	}
	if reason := judgeChallenge(answer, text); reason != "" {
		return callbackFailed(reason)
	}
	return nil
}

// judgeChallenge returns why an answer does not prove anything, or "".
func judgeChallenge(a answer, challenge string) string {
	if a.failure != "" {
		return a.failure
	}
	if !a.ok() {
		return a.reason()
	}
	var got struct {
		Challenge string `json:"challenge"`
	}
	if len(a.body) > maxAnswer || json.Unmarshal(a.body, &got) != nil || subtle.ConstantTimeCompare([]byte(got.Challenge), []byte(challenge)) != 1 {
		return challengeFailed
	}
	return ""
}

// sleep waits, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pending is the subscribe calls under way, so that an end that was answered is
// not undone by a call that began before it.
type pending struct {
	mu    sync.Mutex
	calls map[*pendingCall]bool
}

type pendingCall struct {
	key       subKey
	clientID  string
	withdrawn atomic.Bool
}

func (p *pending) begin(key subKey, clientID string) (withdrawn func() bool, done func()) {
	call := &pendingCall{key: key, clientID: clientID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = map[*pendingCall]bool{}
	}
	p.calls[call] = true
	return call.withdrawn.Load, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls, call)
	}
}

// withdraw ends the calls that match.
func (p *pending) withdraw(match func(*pendingCall) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for call := range p.calls {
		if match(call) {
			call.withdrawn.Store(true)
		}
	}
}
