package events_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"agentrelay/internal/events"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
)

// tlsReceiver is a receiver on loopback with a certificate of its own, reached
// through the same guarded dialer as in the gateway.
type tlsReceiver struct {
	*httptest.Server
	mu      sync.Mutex
	got     []request
	handler http.HandlerFunc // of deliveries; nil answers 204
	news    chan struct{}
}

func newTLSReceiver(t *testing.T) *tlsReceiver {
	r := &tlsReceiver{news: make(chan struct{}, 1000)}
	r.Server = httptest.NewUnstartedServer(r)
	r.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.Server.EnableHTTP2 = true
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *tlsReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	got := request{time.Now(), req.URL.String(), req.Header, string(body)}
	if got.isChallenge() {
		fmt.Fprint(w, echo(got).body)
		return
	}
	r.mu.Lock()
	r.got = append(r.got, got)
	handler := r.handler
	r.mu.Unlock()
	r.news <- struct{}{}
	if handler == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	handler(w, req)
}

func (r *tlsReceiver) deliveries() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *tlsReceiver) dialer(loopback bool) *safedial.Dialer {
	o := safedial.Options{AllowLoopback: loopback, MaxBytes: 1 << 40}
	if r != nil {
		o.RootCAs = r.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	}
	return safedial.New(o)
}

// newRealBox is a service that really connects.
func newRealBox(t *testing.T, d *safedial.Dialer, o events.Options) *box {
	o.Client, o.CheckURL = d.Client(), d.CheckURL
	b := newBox(t, t.TempDir()+"/state", o)
	t.Cleanup(func() {
		b.stop()
		o.Client.CloseIdleConnections()
	})
	return b
}

// eventually waits for what another goroutine is about to do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to pass: %s", what)
		}
	}
}

func (b *box) eventually(id string, want events.State) events.Delivery {
	b.t.Helper()
	eventually(b.t.(*testing.T), string(want), func() bool { return b.delivery(id).State == want })
	return b.delivery(id)
}

func TestRealReceiver(t *testing.T) {
	r := newTLSReceiver(t)
	b := newRealBox(t, r.dialer(true), events.Options{})
	at := func(in *events.SubscribeIn) { in.URL = r.URL + "/hook?x=1" }
	b.subscribe("dot", at)
	start := time.Now()
	id := b.send("dot")
	b.eventually(id, events.CallbackAccepted)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the callback took %s", took)
	}
	got := r.deliveries()[0]
	w, _ := standardwebhooks.NewWebhook(secretOf(1))
	if err := w.Verify([]byte(got.body), got.header); err != nil {
		t.Error(err)
	}
	if got.url != "/hook?x=1" {
		t.Errorf("url %s", got.url)
	}
}

func TestRealAnswers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		state   events.State
		outcome string
	}{
		{"200 with a huge body", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(200)
			for range 1000 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, events.CallbackAccepted, "accepted"},
		{"200 with an announced huge body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000000000")
			w.WriteHeader(200)
		}, events.CallbackAccepted, "accepted"},
		{"200 with a slow body", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, events.CallbackAccepted, "accepted"},
		{"413", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(413) }, events.Failed, "http_413"},
		{"410", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(410) }, events.Cancelled, "gone"},
		{"429", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, events.Queued, "http_429"},
		{"503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, events.Queued, "http_503"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, events.Queued, "http_307"},
		{"the connection breaks", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, events.Queued, "lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newTLSReceiver(t)
			r.handler = tt.handler
			b := newRealBox(t, r.dialer(true), events.Options{})
			b.subscribe("dot", func(in *events.SubscribeIn) { in.URL = r.URL })
			id := b.send("dot")
			eventually(t, "the attempt has an outcome", func() bool {
				l := b.listed()
				return len(l) == 1 && len(l[0].Attempts) == 1 && l[0].Attempts[0].Outcome != ""
			})
			if outcome := b.listed()[0].Attempts[0].Outcome; outcome != tt.outcome {
				t.Errorf("outcome %s, want %s", outcome, tt.outcome)
			}
			b.wantState(id, tt.state, 1)
			if n := len(r.deliveries()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestRealChallengeFailures(t *testing.T) {
	r := newTLSReceiver(t)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	plain := httptest.NewUnstartedServer(http.NotFoundHandler())
	plain.Config.ErrorLog = log.New(io.Discard, "", 0)
	plain.Start()
	defer plain.Close()
	for _, tt := range []struct{ name, url, reason string }{
		{"nobody listens", strings.Replace(closed.URL, "http://", "https://", 1), "connection_refused"},
		{"no TLS", strings.Replace(plain.URL, "http://", "https://", 1), "tls_error"},
		{"no such name", "https://name.invalid/", "connection_refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newRealBox(t, r.dialer(true), events.Options{})
			in := subscribeTo("dot")
			in.URL = tt.url
			_, err := b.Subscribe(context.Background(), b.who, in)
			if got := refused(t, err, events.CallbackFailed).Data["reason"]; got != tt.reason {
				t.Errorf("reason %v, want %s", got, tt.reason)
			}
		})
	}
	t.Run("an unknown certificate", func(t *testing.T) {
		b := newRealBox(t, safedial.New(safedial.Options{AllowLoopback: true}), events.Options{})
		in := subscribeTo("dot")
		in.URL = r.URL
		_, err := b.Subscribe(context.Background(), b.who, in)
		if got := refused(t, err, events.CallbackFailed).Data["reason"]; got != "tls_error" {
			t.Errorf("reason %v", got)
		}
	})
}

// TestPrivateAddressesAreRefused: neither a literal address nor a name that
// resolves to one gets a packet, in subscribing and later.
func TestPrivateAddressesAreRefused(t *testing.T) {
	r := newTLSReceiver(t)
	connections := make(chan struct{}, 10)
	r.Config.ConnState = func(net.Conn, http.ConnState) { connections <- struct{}{} }
	_, port, _ := net.SplitHostPort(r.Listener.Addr().String())
	resolver := &turncoat{}
	d := safedial.New(safedial.Options{Resolver: resolver})
	b := newRealBox(t, d, events.Options{})
	for _, url := range []string{r.URL, "https://localhost:" + port, "http://127.0.0.1:" + port, "https://[::1]:" + port, "https://name.example:" + port} {
		in := subscribeTo("dot")
		in.URL = url
		if _, err := b.Subscribe(context.Background(), b.who, in); err == nil {
			t.Errorf("%s was subscribed", url)
		}
	}
	if len(connections) != 0 {
		t.Errorf("%d connections", len(connections))
	}
}

// turncoat resolves every name to this machine.
type turncoat struct{}

func (*turncoat) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func TestUnsubscribeDuringAPost(t *testing.T) {
	r := newTLSReceiver(t)
	r.handler = func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }
	b := newRealBox(t, r.dialer(true), events.Options{})
	b.subscribe("dot", func(in *events.SubscribeIn) { in.URL = r.URL })
	id := b.send("dot")
	<-r.news
	start := time.Now()
	in := subscribeTo("dot")
	if found, err := b.Unsubscribe(context.Background(), b.who, events.UnsubscribeIn{Name: in.Name, Arguments: in.Arguments, URL: r.URL}); !found || err != nil {
		t.Fatal(found, err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	b.wantState(id, events.Cancelled, 1)
	// The answer waited until the attempt was over.
	if a := b.listed()[0].Attempts[0]; a.Outcome != "interrupted" {
		t.Errorf("attempt %+v", a)
	}
}

// TestVectors checks our requests against the numbers of another
// implementation.
func TestVectors(t *testing.T) {
	w, err := standardwebhooks.NewWebhook("whsec_QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=")
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.Sign("evt_one", time.Unix(1760000000, 0), []byte(`{"type":"verification","challenge":"abc"}`))
	if want := "v1,XMQZwYnqnk2M79h++yZHGP224jpoDKNcZAw/C3QaNYM="; err != nil || got != want {
		t.Errorf("signed %s, %v, want %s", got, err, want)
	}
}

// TestCrashLeavesOneEvent stores a message and loses the process before the
// first attempt.
func TestCrashLeavesOneEvent(t *testing.T) {
	r := newTLSReceiver(t)
	b := newRealBox(t, r.dialer(true), events.Options{})
	b.subscribe("dot", func(in *events.SubscribeIn) { in.URL = r.URL })
	b.Close(context.Background()) // no worker: as if it was killed right after the commit
	id := b.send("dot")
	if b.delivery(id).State != events.Queued {
		t.Fatalf("delivery %+v", b.delivery(id))
	}
	b.restart()
	b.eventually(id, events.CallbackAccepted)
	if n := len(r.deliveries()); n != 1 {
		t.Errorf("%d deliveries", n)
	}
}

func TestStatementsReadAnIndex(t *testing.T) {
	b := newBox(t, t.TempDir()+"/state", events.Options{})
	defer b.stop()
	for name, query := range events.Queries {
		args := make([]any, 8)
		err := store.Read(context.Background(), b.store, func(q *store.Reader) error {
			return q.Query(func(row store.Scanner) error {
				var id, parent, unused int
				var detail string
				if err := row.Scan(&id, &parent, &unused, &detail); err != nil {
					return err
				}
				if strings.HasPrefix(detail, "SCAN") || strings.Contains(detail, "TEMP B-TREE") {
					t.Errorf("%s: %s", name, detail)
				}
				return nil
			}, "EXPLAIN QUERY PLAN "+query, args[:strings.Count(query, "?")]...)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
