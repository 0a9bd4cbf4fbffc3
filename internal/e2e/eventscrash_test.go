package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// bell is a receiver of callbacks and wake-ups that counts them by message.
type bell struct {
	*httptest.Server

	mu      sync.Mutex
	rung    map[string]int
	arrived func() // called while the receiver has a request and has not answered
	ringing chan struct{}
}

func newBell(t *testing.T) *bell {
	b := &bell{rung: map[string]int{}, ringing: make(chan struct{}, 1000)}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"type":"verification"`) {
			w.Write(body) // it holds the challenge
			return
		}
		var m struct {
			MessageID string
			Data      struct{ MessageID string }
		}
		if err := json.Unmarshal(body, &m); err != nil {
			t.Errorf("a callback is no JSON: %v", err)
		}
		b.mu.Lock()
		b.rung[m.MessageID+m.Data.MessageID]++
		arrived := b.arrived
		b.mu.Unlock()
		if arrived != nil {
			arrived()
		}
		w.WriteHeader(http.StatusOK)
		b.ringing <- struct{}{}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bell) count(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rung[id]
}

func (b *bell) onArrival(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arrived = f
}

// wakeCrash is one gateway that is killed at points between a message's sending
// and its delivery. The peer dot has a subscription, the peer grok a wake-up
// target.
type wakeCrash struct {
	t       *testing.T
	home    *rig.Home
	gateway *rig.Gateway
	client  *rig.Client
	bell    *bell
}

func (c *wakeCrash) connect(ctx context.Context) *client.Session {
	c.t.Helper()
	s, err := c.client.Connect(ctx, "writer", c.client.Token.AccessToken)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { s.Close() })
	return s
}

func letterTo(peer string) mailbox.SendPeerMessageIn {
	return mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "writer", ToPeerID: peer, Text: "ring"}
}

// crashPoints kill the gateway somewhere between the call that sends and what
// follows from it. send makes the call.
var crashPoints = []struct {
	name string
	kill func(c *wakeCrash, send func() error)
}{
	{"while the message is sent", func(c *wakeCrash, send func() error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = send() // no answer may come
		}()
		time.Sleep(rand.N(8 * time.Millisecond))
		c.gateway.Kill()
		<-done
	}},
	{"when the message is answered", func(c *wakeCrash, send func() error) {
		if err := send(); err != nil {
			c.t.Error(err)
		}
		c.gateway.Kill()
	}},
	{"when the callback arrives", func(c *wakeCrash, send func() error) {
		here, dead := make(chan struct{}), make(chan struct{})
		c.bell.onArrival(sync.OnceFunc(func() {
			close(here)
			<-dead
		}))
		go send()
		<-here
		c.gateway.Kill()
		close(dead)
		c.bell.onArrival(nil)
	}},
	{"when the callback is answered", func(c *wakeCrash, send func() error) {
		go send()
		<-c.bell.ringing
		time.Sleep(rand.N(4 * time.Millisecond))
		c.gateway.Kill()
	}},
	{"when all is done", func(c *wakeCrash, send func() error) {
		if err := send(); err != nil {
			c.t.Error(err)
		}
		<-c.bell.ringing
		time.Sleep(100 * time.Millisecond)
		c.gateway.Kill()
	}},
}

// TestCrashBetweenSendAndDelivery: whatever the instant, the message is there
// once, a subscriber is called at least once, and a wake-up target at most once.
func TestCrashBetweenSendAndDelivery(t *testing.T) {
	h := rig.NewHome(t, binary)
	b := newBell(t)
	credential := filepath.Join(h.Dir, "wake.json")
	if err := os.WriteFile(credential, []byte(`{"url":"`+b.URL+`/wake","token":"key"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Configure("safedial", object{"allowLoopback": true})
	h.Configure("mailbox", object{"limits": object{"pairPerHour": 0, "ownerPerHour": 0}})
	h.Configure("peerWakeTargets", []object{{"owner": "local-owner:shared", "peerId": "grok", "generation": 1, "routineId": "mail", "credentialFile": credential}})
	c := &wakeCrash{t: t, home: h, gateway: h.Serve(), bell: b}
	c.client = h.Authorize("writer")
	ctx := t.Context()
	s := c.connect(ctx)
	for _, id := range []string{"writer", "dot", "grok"} {
		if err := s.Call(ctx, "register_peer", object{"peerId": id, "kind": "chat"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	callEvents(t, c.client, "events/subscribe", b.URL+"/hook")

	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for _, point := range crashPoints {
		for range rounds {
			for _, peer := range []string{"dot", "grok"} {
				in := letterTo(peer)
				session := c.connect(ctx)
				point.kill(c, func() error { return session.Call(ctx, "send_peer_message", in, nil) })
				c.gateway = h.Serve()
				c.check(point.name, in)
			}
		}
	}

	// What waits when a client unsubscribes is not sent, after a crash neither.
	dead := make(chan struct{})
	b.onArrival(func() { <-dead })
	s = c.connect(ctx)
	last := []mailbox.SendPeerMessageIn{letterTo("dot"), letterTo("dot"), letterTo("dot")}
	for _, in := range last {
		if err := s.Call(ctx, "send_peer_message", in, nil); err != nil {
			t.Fatal(err)
		}
	}
	callEvents(t, c.client, "events/unsubscribe", b.URL+"/hook")
	rung := 0
	for _, in := range last {
		rung += b.count(in.MessageID)
	}
	c.gateway.Kill()
	close(dead)
	b.onArrival(nil)
	c.gateway = h.Serve()
	time.Sleep(8 * time.Second) // the first retry would be due after 4 to 6
	for _, in := range last {
		rung -= b.count(in.MessageID)
	}
	if rung != 0 {
		t.Errorf("%d callbacks came after the end of the subscription", -rung)
	}
}

// callEvents subscribes a callback to the mail of dot, or unsubscribes it.
func callEvents(t *testing.T, c *rig.Client, method, url string) {
	t.Helper()
	body, err := json.Marshal(object{"jsonrpc": "2.0", "id": 1, "method": method, "params": object{
		"name": "peer.message", "arguments": object{"peerId": "dot"},
		"delivery": object{"mode": "webhook", "url": url, "secret": "whsec_" + strings.Repeat("A", 43) + "="},
	}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.MCPURL, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Authorization": {"Bearer " + c.Token.AccessToken}, "Content-Type": {"application/json"}, "Accept": {"application/json"}, "Mcp-Protocol-Version": {"2025-11-25"}}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct{ Result, Error json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != nil || answer.Result == nil {
		t.Fatalf("%s: %s, %v", method, answer.Error, err)
	}
}

// check looks at a message after the restart.
func (c *wakeCrash) check(point string, in mailbox.SendPeerMessageIn) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	s := c.connect(ctx)
	var sent mailbox.SendPeerMessageOut
	if err := s.Call(ctx, "send_peer_message", in, &sent); err != nil { // the caller's repetition
		c.t.Fatalf("%s: %v", point, err)
	}
	settled := func(d mailbox.Delivery) bool { return d.State != mailbox.Queued && d.State != mailbox.Submitting }
	for d := sent.Delivery; !settled(d); time.Sleep(50 * time.Millisecond) {
		var got mailbox.GetPeerMessageOut
		if err := s.Call(ctx, "get_peer_message", object{"messageId": in.MessageID}, &got); err != nil {
			c.t.Fatalf("%s: the delivery stays %+v: %v", point, d, err)
		}
		d, sent.Delivery = got.Delivery, got.Delivery
	}
	n := c.bell.count(in.MessageID)
	switch in.ToPeerID {
	case "dot":
		if n < 1 || sent.Delivery.State != mailbox.CallbackAccepted {
			c.t.Errorf("%s: %d callbacks, %+v", point, n, sent.Delivery)
		}
	case "grok":
		if n > 1 || n == 0 && sent.Delivery.State == mailbox.WebhookAccepted {
			c.t.Errorf("%s: %d wake-ups, %+v", point, n, sent.Delivery)
		}
	}
	var box mailbox.ListPeerMessagesOut
	if err := s.Call(ctx, "list_peer_messages", object{"peerId": in.ToPeerID, "limit": 200}, &box); err != nil {
		c.t.Fatal(err)
	}
	stored := 0
	for _, m := range box.Messages {
		if m.MessageID == in.MessageID {
			stored++
		}
	}
	if stored != 1 {
		c.t.Errorf("%s: the message is there %d times", point, stored)
	}
	for len(c.bell.ringing) > 0 {
		<-c.bell.ringing
	}
}
