package transfers_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/audit"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		runChild(child)
	}
	goleak.VerifyTestMain(m)
}

// clock is a time that only the test moves.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// rig is the transfers of a gateway with one host and one project, served over
// HTTP.
type rig struct {
	*transfers.Service
	t      testing.TB
	dir    string
	clock  *clock
	store  *store.Store
	host   *countingHost
	server *httptest.Server
	log    *bytes.Buffer
	who    principal.Principal
	o      transfers.Options
}

// countingHost counts what reaches the real host, and fails where a test says.
type countingHost struct {
	transfers.Host
	opens, places atomic.Int32
	opening       func()
	content       func(io.ReadCloser) io.ReadCloser

	mu      sync.Mutex
	failing map[string]error // by method: "place" fails after it was done
}

func (h *countingHost) fail(method string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failing == nil {
		h.failing = map[string]error{}
	}
	h.failing[method] = err
}

func (h *countingHost) failure(method string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failing[method]
}

func (h *countingHost) Open(ctx context.Context, projectID, path string) (*host.Snapshot, error) {
	h.opens.Add(1)
	if h.opening != nil {
		h.opening()
	}
	snap, err := h.Host.Open(ctx, projectID, path)
	if err == nil && h.content != nil {
		snap.Content = h.content(snap.Content)
	}
	return snap, err
}

func (h *countingHost) Place(ctx context.Context, in host.Placement, content io.Reader) (host.Placed, error) {
	h.places.Add(1)
	if err := h.failure("send"); err != nil {
		return host.Placed{}, err
	}
	out, err := h.Host.Place(ctx, in, content)
	return out, errors.Join(err, h.failure("place"))
}

func (h *countingHost) Settle(ctx context.Context, id string) (host.Placed, bool, error) {
	if err := h.failure("settle"); err != nil {
		return host.Placed{}, false, err
	}
	return h.Host.Settle(ctx, id)
}

// Host implements [transfers.Hosts].
func (r *rig) Host(id string) (transfers.Host, error) {
	if id != "local" {
		return nil, fault.Kind{Code: "unknown_host", Hint: "hint"}.New("no such host")
	}
	return r.host, nil
}

// newRig opens everything in a new directory; o gives limits and safedial.
func newRig(t testing.TB, o transfers.Options) *rig {
	t.Helper()
	return openRig(t, t.TempDir(), o)
}

func openRig(t testing.TB, dir string, o transfers.Options) *rig {
	t.Helper()
	r := &rig{t: t, dir: dir, clock: &clock{}, log: &bytes.Buffer{}, o: o, who: principal.Principal{Owner: principal.SharedOwner, ClientID: "client-1", Permissions: principal.Full()}}
	r.clock.ms.Store(time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC).UnixMilli())
	if err := os.MkdirAll(dir+"/project", 0o755); err != nil {
		t.Fatal(err)
	}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.Download(w, req) }))
	r.open()
	t.Cleanup(func() {
		r.close()
		r.server.Close()
	})
	return r
}

// open starts the service, as the gateway does.
func (r *rig) open() {
	r.t.Helper()
	var err error
	if r.store, err = store.Open(context.Background(), store.Options{Dir: r.dir + "/state", Now: r.clock.now}); err != nil {
		r.t.Fatal(err)
	}
	h, err := newHost(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	r.host = &countingHost{Host: h}
	o := r.o
	o.Store, o.Hosts, o.Now, o.PublicBaseURL = r.store, r, r.clock.now, r.server.URL
	o.Log = slog.New(slog.NewTextHandler(&locked{w: r.log}, nil))
	if r.Service, err = transfers.New(context.Background(), o); err != nil {
		r.t.Fatal(err)
	}
}

type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func newHost(dir string) (*host.Service, error) {
	h := direct.New(direct.Policy{
		HostID: "local", AllowedRoots: []string{dir}, Protected: []string{dir + "/state"},
		Projects: []direct.Project{{ID: "p", Path: dir + "/project", Read: true, Write: true}, {ID: "locked", Path: dir + "/project"}},
	})
	f, err := files.New(files.Options{Host: h, StateDir: dir + "/state/files"})
	if err != nil {
		return nil, err
	}
	return host.New(host.Options{Host: h, Files: f, StateDir: dir + "/state/transfers"})
}

func (r *rig) close() {
	r.t.Helper()
	if r.store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := errors.Join(r.Close(ctx), r.store.Close()); err != nil {
		r.t.Error(err)
	}
	r.store = nil
}

// restart is a stop and a start of the gateway.
func (r *rig) restart() {
	r.t.Helper()
	r.close()
	r.open()
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, "project", name) }

func (r *rig) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// file is what a project's file has, or "-" when there is none.
func (r *rig) file(name string) string {
	raw, err := os.ReadFile(r.path(name))
	if err != nil {
		return "-"
	}
	return string(raw)
}

func (r *rig) exportIn(name, requestID string) transfers.ExportDirectFileIn {
	return transfers.ExportDirectFileIn{HostID: "local", ProjectID: "p", Path: name, RequestID: requestID}
}

func (r *rig) export(name, requestID string) transfers.Transfer {
	r.t.Helper()
	out, err := r.ExportDirectFile(context.Background(), r.who, r.exportIn(name, requestID))
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// importIn is a call that puts what url gives at path; expected is what is there,
// or "".
func (r *rig) importIn(path, requestID, url, expected string) transfers.ImportDirectFileIn {
	in := transfers.ImportDirectFileIn{HostID: "local", ProjectID: "p", Path: path, RequestID: requestID, File: transfers.File{DownloadURL: url, FileID: "file-1"}}
	if expected != "" {
		in.ExpectedSHA256 = new(hashText(expected))
	}
	return in
}

func (r *rig) importFile(in transfers.ImportDirectFileIn) transfers.Transfer {
	r.t.Helper()
	out, err := r.ImportDirectFile(context.Background(), r.who, in)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) get(requestID string) transfers.Transfer {
	r.t.Helper()
	out, err := r.GetDirectTransfer(context.Background(), r.who, transfers.GetDirectTransferIn{HostID: "local", RequestID: requestID})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// is checks state and error code.
func (r *rig) is(got transfers.Transfer, state transfers.State, code ...string) {
	r.t.Helper()
	want := strings.Join(code, "")
	have := ""
	if got.Error != nil {
		have = got.Error.Code
		if got.Error.Message == "" || got.Error.Hint == "" {
			r.t.Errorf("the error %+v has no message or no hint", *got.Error)
		}
	}
	if got.State != state || have != want {
		r.t.Errorf("%s %s is %s (%s: %+v), want %s (%s)", got.Direction, got.RequestID, got.State, have, got.Error, state, want)
	}
}

// becomes waits for a state.
func (r *rig) becomes(requestID string, state transfers.State) transfers.Transfer {
	r.t.Helper()
	var got transfers.Transfer
	eventually(r.t, fmt.Sprintf("%s becomes %s", requestID, state), func() bool {
		got = r.get(requestID)
		return got.State == state
	})
	return got
}

// spooled lists the spool.
func (r *rig) spooled() []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.dir, "state", transfers.SpoolDir))
	if err != nil {
		r.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (r *rig) nothingSpooled() {
	r.t.Helper()
	eventually(r.t, "the spool is empty", func() bool { return len(r.spooled()) == 0 && r.SpoolUsed() == 0 })
}

// audited lists the audit log, oldest first, as action, path and outcome.
func (r *rig) audited() string {
	r.t.Helper()
	var lines []string
	err := store.Read(context.Background(), r.store, func(q *store.Reader) error {
		entries, err := audit.Last(q, 1000)
		for _, e := range entries {
			lines = append([]string{e.Action + " " + e.Subject + " " + e.Outcome}, lines...)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.Join(lines, "; ")
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func hashText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func refused(t testing.TB, err error, want fault.Kind) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != want.Code {
		t.Fatalf("got %v, want the refusal %s", err, want.Code)
	}
	if f.Message == "" || f.Hint == "" {
		t.Errorf("the refusal %+v has no message or no hint", f)
	}
}

// source is an HTTPS server to import from, and options that reach it.
func source(t testing.TB, h http.HandlerFunc) (*httptest.Server, transfers.Options) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, transfers.Options{Safedial: safedial.Options{AllowLoopback: true, RootCAs: poolOf(s)}}
}

func poolOf(s *httptest.Server) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

// fetch makes a request without following or keeping anything.
func fetch(t testing.TB, method, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
