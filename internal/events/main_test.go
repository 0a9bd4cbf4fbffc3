package events_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secretOf is a whsec_ secret whose bytes are all b.
func secretOf(b byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

// request is a POST that a receiver got.
type request struct {
	at     time.Time
	url    string
	header http.Header
	body   string
}

func (r request) isChallenge() bool { return bytes.Contains([]byte(r.body), []byte(`"verification"`)) }

// member is a member of the request's JSON body.
func (r request) member(name string) any {
	var members map[string]any
	_ = json.Unmarshal([]byte(r.body), &members)
	return members[name]
}

// signedWith verifies the request with the official library, as of its arrival.
func (r request) signedWith(t testing.TB, secret string) bool {
	t.Helper()
	w, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	stamp, err := strconv.ParseInt(r.header.Get("Webhook-Timestamp"), 10, 64)
	if err != nil || r.at.Sub(time.Unix(stamp, 0)).Abs() > 2*time.Second {
		t.Errorf("a request at %s has the timestamp %d", r.at, stamp)
	}
	return w.VerifyIgnoringTimestamp([]byte(r.body), r.header) == nil
}

// answer is what a receiver says; the zero one is 200 without a body.
type answer struct {
	status int
	header http.Header
	body   string
	after  time.Duration
	err    error
}

// world is the internet of a test: it answers every POST and remembers it.
// Challenges pass unless verify says otherwise.
type world struct {
	mu       sync.Mutex
	requests []request
	inFlight map[string]int
	most     int // under way at once, at one URL
	answer   func(r request) answer
	verify   func(r request) answer
	connects bool // every request reaches its receiver
}

func (w *world) RoundTrip(req *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(req.Body)
	r := request{time.Now(), req.URL.String(), req.Header, string(body)}
	w.mu.Lock()
	w.requests = append(w.requests, r)
	if w.inFlight == nil {
		w.inFlight = map[string]int{}
	}
	w.inFlight[r.url]++
	w.most = max(w.most, w.inFlight[r.url])
	reply, verify := w.answer, w.verify
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.inFlight[r.url]--
		w.mu.Unlock()
	}()
	if r.isChallenge() {
		reply = verify
		if reply == nil {
			reply = echo
		}
	}
	var a answer
	if reply != nil {
		a = reply(r)
	}
	if w.connects {
		connected(req.Context())
	}
	select {
	case <-time.After(a.after):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	if a.status == 0 {
		a.status = 200
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewBufferString(a.body)), ContentLength: int64(len(a.body)), Request: req}, nil
}

func echo(r request) answer {
	return answer{status: 200, body: fmt.Sprintf(`{"challenge":%q}`, r.member("challenge"))}
}

// got lists the deliveries that arrived, or the challenges.
func (w *world) got(challenges bool) []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []request
	for _, r := range w.requests {
		if r.isChallenge() == challenges {
			out = append(out, r)
		}
	}
	return out
}

func (w *world) deliveries() []request { return w.got(false) }

func (w *world) set(answer func(request) answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

func always(status int) func(request) answer {
	return func(request) answer { return answer{status: status} }
}

// directory is the mailbox of a test.
type directory struct {
	mu    sync.Mutex
	peers map[string]events.Peer // by peerId; the owner is not looked at
	stop  map[string]bool
	seq   int64
	read  map[string]bool
}

func (d *directory) Peer(_ store.Querier, owner, peerID string) (int64, bool, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.peers[peerID]
	return p.Generation, !d.stop[peerID], ok && p.Owner == owner, nil
}

func (d *directory) LastSeq(store.Querier) (int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seq, nil
}

func (d *directory) Unread(_ store.Querier, _, messageID string) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.read[messageID], nil
}

// box is a service over a real store, with a world of receivers and a caller.
type box struct {
	*events.Service
	t       testing.TB
	dir     string
	store   *store.Store
	world   *world
	peers   *directory
	options events.Options
	who     principal.Principal
	closed  bool
}

const callbackURL = "https://callback.example/hook?client=1"

// inBubble runs a test in virtual time: every wait of the gateway takes none.
func inBubble(t *testing.T, o events.Options, test func(b *box)) {
	t.Helper()
	dir := t.TempDir() + "/state"
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, dir, o)
		defer b.stop()
		test(b)
	})
}

func newBox(t testing.TB, dir string, o events.Options) *box {
	b := &box{
		t: t, dir: dir, world: &world{}, options: o,
		who:   principal.Principal{Owner: principal.SharedOwner, ClientID: "client-1", Permissions: principal.Full()},
		peers: &directory{peers: map[string]events.Peer{}, stop: map[string]bool{}, read: map[string]bool{}},
	}
	for _, id := range []string{"dot", "grok", "chat"} {
		b.peers.peers[id] = events.Peer{Owner: principal.SharedOwner, PeerID: id, Generation: 1}
	}
	b.start()
	return b
}

// start opens the store and starts the service, as the gateway does.
func (b *box) start() {
	b.t.Helper()
	var err error
	if b.store, err = store.Open(context.Background(), store.Options{Dir: b.dir}); err != nil {
		b.t.Fatal(err)
	}
	o := b.options
	if o.Key, err = events.OpenKey(context.Background(), b.store); err != nil {
		b.t.Fatal(err)
	}
	o.Store, o.Mailbox = b.store, b.peers
	if o.Client == nil {
		o.Client = b.client()
	}
	if o.Jitter == nil {
		o.Jitter = func() float64 { return 0.5 }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if b.Service, err = events.New(o); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Start(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	b.closed = false
}

func (b *box) client() *http.Client {
	return &http.Client{Transport: b.world, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// stop ends the service and the store, breaking off what is under way.
func (b *box) stop() {
	if b.closed {
		return
	}
	b.closed = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.Close(ctx)
	if err := b.store.Close(); err != nil {
		b.t.Error(err)
	}
}

func (b *box) restart() {
	b.t.Helper()
	b.stop()
	b.start()
}

func subscribeTo(peer string) events.SubscribeIn {
	return events.SubscribeIn{
		Name: events.PeerMessage, Arguments: json.RawMessage(fmt.Sprintf(`{"peerId":%q}`, peer)),
		Mode: "webhook", URL: callbackURL, Secret: secretOf(1),
	}
}

func (b *box) subscribe(peer string, change ...func(*events.SubscribeIn)) events.SubscribeOut {
	b.t.Helper()
	in := subscribeTo(peer)
	for _, c := range change {
		c(&in)
	}
	out, err := b.Subscribe(context.Background(), b.who, in)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

func (b *box) unsubscribe(peer string) bool {
	b.t.Helper()
	in := subscribeTo(peer)
	found, err := b.Unsubscribe(context.Background(), b.who, events.UnsubscribeIn{Name: in.Name, Arguments: in.Arguments, URL: in.URL})
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// send stores a message for a peer, as the mailbox does, and returns its id.
func (b *box) send(peer string) string {
	b.t.Helper()
	id := uuid.NewString()
	b.sendAs(id, peer)
	return id
}

func (b *box) sendAs(id, peer string) events.Delivery {
	b.t.Helper()
	b.peers.mu.Lock()
	b.peers.seq++
	m := events.Mail{Seq: b.peers.seq, MessageID: id, To: b.peers.peers[peer]}
	b.peers.mu.Unlock()
	d, err := store.Write(context.Background(), b.store, func(tx *store.Tx) (events.Delivery, error) { return b.Sent(tx, m) })
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// stopPeer ends a peer's generation, as the mailbox does.
func (b *box) stopPeer(peer string) {
	b.t.Helper()
	b.peers.mu.Lock()
	b.peers.stop[peer] = true
	p := b.peers.peers[peer]
	b.peers.mu.Unlock()
	if err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error { return b.Ended(tx, p) }); err != nil {
		b.t.Fatal(err)
	}
}

// register begins the next generation of a peer.
func (b *box) register(peer string) {
	b.peers.mu.Lock()
	defer b.peers.mu.Unlock()
	p := b.peers.peers[peer]
	p.Generation++
	b.peers.peers[peer], b.peers.stop[peer] = p, false
}

func (b *box) delivery(messageID string) (d events.Delivery) {
	b.t.Helper()
	b.read(func(q *store.Reader) (err error) {
		d, err = b.Delivery(q, b.who.Owner, messageID)
		return err
	})
	return d
}

func (b *box) notification(peer string) (n events.Notification) {
	b.t.Helper()
	b.read(func(q *store.Reader) (err error) {
		n, err = b.Notification(q, b.peers.peers[peer])
		return err
	})
	return n
}

func (b *box) read(f func(*store.Reader) error) {
	b.t.Helper()
	if err := store.Read(context.Background(), b.store, f); err != nil {
		b.t.Fatal(err)
	}
}

// settled waits until the service does nothing but wait.
func (b *box) settled() { synctest.Wait() }

// state fails the test unless a message's delivery is in a state after a number
// of attempts.
func (b *box) wantState(messageID string, want events.State, attempts int) events.Delivery {
	b.t.Helper()
	d := b.delivery(messageID)
	if d.State != want || d.Attempts != attempts {
		b.t.Errorf("the delivery is %s after %d attempts (%s), want %s after %d", d.State, d.Attempts, d.Reason, want, attempts)
	}
	return d
}

func (b *box) listed() []events.DeliveryInfo {
	b.t.Helper()
	out, err := b.Deliveries(context.Background(), events.DeliveriesIn{})
	if err != nil {
		b.t.Fatal(err)
	}
	return out.Deliveries
}

func (b *box) status() events.Status {
	b.t.Helper()
	out, err := b.Status(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// queueMany stores n messages for a peer. All but the first are copies of its
// rows, for under the race detector ten thousand calls take a minute.
func (b *box) queueMany(peer string, n int) {
	b.t.Helper()
	err := store.Exec(context.Background(), b.store, func(tx *store.Tx) error {
		if _, err := b.Sent(tx, events.Mail{Seq: 1, MessageID: uuid.NewString(), To: b.peers.peers[peer]}); err != nil {
			return err
		}
		for _, sql := range []string{
			`WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
				INSERT INTO events (event_id, owner, name, subject, peer_id, body, created_at)
				SELECT event_id || i, owner, name, subject || i, peer_id, body, created_at FROM events, n`,
			`INSERT INTO event_deliveries (event, receiver, subscription, state, next_at)
				SELECT e.id, d.receiver, d.subscription, d.state, d.next_at FROM events e, event_deliveries d WHERE e.id <> d.event AND ?1 > 1`,
		} {
			if _, err := tx.Exec(sql, n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// audited lists the actions of the audit log, oldest first.
func (b *box) audited() (lines []string) {
	b.t.Helper()
	b.read(func(q *store.Reader) error {
		entries, err := audit.Last(q, 1000)
		for i := len(entries) - 1; i >= 0; i-- {
			lines = append(lines, entries[i].Action)
		}
		return err
	})
	return lines
}

// refused checks the kind of a refusal, and that it says what and what next.
func refused(t testing.TB, err error, want fault.Kind) *events.Refusal {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != want.Code {
		t.Fatalf("got %v, want the refusal %s", err, want.Code)
	}
	if f.Message == "" || f.Hint == "" {
		t.Errorf("the refusal %+v has no message or no hint", f)
	}
	var r *events.Refusal
	errors.As(err, &r)
	return r
}
