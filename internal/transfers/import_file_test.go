package transfers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

const (
	oldContent = "what was there"
	newContent = "what is to be there \x00\xff"
)

func serveNew(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, newContent) }

func TestImportCreatesAndReplaces(t *testing.T) {
	s, o := source(t, serveNew)
	r := newRig(t, o)
	in := r.importIn("f.bin", "r1", s.URL+"/x?sig=1", "")
	in.SHA256 = new(strings.ToUpper(hashText(newContent)))
	in.File.FileName, in.File.MimeType = new("von dort.bin"), new("application/x-thing")
	out := r.importFile(in)
	r.is(out, transfers.Completed)
	if r.file("f.bin") != newContent || out.SHA256 != hashText(newContent) || *out.Size != int64(len(newContent)) || out.FileName != "von dort.bin" || out.MimeType != "application/x-thing" || out.DownloadURL != "" {
		t.Errorf("the receipt is %+v", out)
	}
	r.write("g", oldContent)
	r.is(r.importFile(r.importIn("g", "r2", s.URL, oldContent)), transfers.Completed)
	if r.file("g") != newContent {
		t.Errorf("the file has %q", r.file("g"))
	}
	r.nothingSpooled()
	if got, want := r.audited(), "file.import f.bin ok; file.import g ok"; got != want {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
	// A repeat answers the receipt, whatever the file has by now, and with an
	// address that was signed anew.
	r.write("f.bin", "changed since")
	in.File.DownloadURL = s.URL + "/x?sig=2"
	in.WaitMs = new(5)
	r.restart()
	if again := r.importFile(in); !again.Duplicate || again.State != transfers.Completed || r.file("f.bin") != "changed since" || again.SHA256 != out.SHA256 {
		t.Errorf("the repeat is %+v", again)
	}
	in.File.FileID = "another"
	_, err := r.ImportDirectFile(t.Context(), r.who, in)
	refused(t, err, fault.KeyConflict)
	_, err = r.ExportDirectFile(t.Context(), r.who, r.exportIn("g", "r1"))
	refused(t, err, fault.KeyConflict)
}

func TestImportRefusals(t *testing.T) {
	s, o := source(t, serveNew)
	r := newRig(t, o)
	for name, c := range map[string]struct {
		change func(in *transfers.ImportDirectFileIn)
		want   fault.Kind
	}{
		"http":              {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "http://example.com/f" }, transfers.DownloadRefused},
		"a file":            {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "file:///etc/passwd" }, transfers.DownloadRefused},
		"credentials":       {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "https://u:p@example.com/f" }, transfers.DownloadRefused},
		"a fragment":        {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL += "/#x" }, transfers.DownloadRefused},
		"a private host":    {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "https://10.0.0.1/f" }, transfers.DownloadRefused},
		"a metadata host":   {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "https://169.254.169.254/latest" }, transfers.DownloadRefused},
		"no address":        {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL = "" }, fault.InvalidArguments},
		"a long address":    {func(in *transfers.ImportDirectFileIn) { in.File.DownloadURL += strings.Repeat("x", 9000) }, fault.InvalidArguments},
		"no file_id":        {func(in *transfers.ImportDirectFileIn) { in.File.FileID = "" }, fault.InvalidArguments},
		"a bad hash":        {func(in *transfers.ImportDirectFileIn) { in.SHA256 = new("xyz") }, fault.InvalidArguments},
		"a bad expected":    {func(in *transfers.ImportDirectFileIn) { in.ExpectedSHA256 = new("") }, fault.InvalidArguments},
		"exists":            {func(in *transfers.ImportDirectFileIn) { in.Path = "old" }, files.FileExists},
		"another content":   {func(in *transfers.ImportDirectFileIn) { in.Path, in.ExpectedSHA256 = "old", new(hashText("x")) }, files.HashConflict},
		"missing":           {func(in *transfers.ImportDirectFileIn) { in.ExpectedSHA256 = new(hashText("x")) }, files.HashConflict},
		"not writable":      {func(in *transfers.ImportDirectFileIn) { in.ProjectID = "locked" }, direct.WriteDisabled},
		"git":               {func(in *transfers.ImportDirectFileIn) { in.Path = ".git/config" }, direct.ProtectedPath},
		"no directory":      {func(in *transfers.ImportDirectFileIn) { in.Path = "no/f" }, direct.PathNotFound},
		"the gateway's own": {func(in *transfers.ImportDirectFileIn) { in.Path = "../state/gateway.db" }, direct.OutsideProject},
	} {
		t.Run(name, func(t *testing.T) {
			r.write("old", oldContent)
			in := r.importIn("f", "r1", s.URL, "")
			c.change(&in)
			_, err := r.ImportDirectFile(t.Context(), r.who, in)
			refused(t, err, c.want)
			if strings.Contains(err.Error(), in.File.DownloadURL) && in.File.DownloadURL != "" {
				t.Errorf("the refusal has the address: %v", err)
			}
		})
	}
	r.is(r.importFile(r.importIn("f", "r1", s.URL, "")), transfers.Completed) // no refusal has used the id up
}

// liar is a source that does each thing wrong under a path of its own, and /r<n>
// redirects n times.
func liar(release chan struct{}) http.HandlerFunc {
	chunk := strings.Repeat("x", 64<<10)
	return func(w http.ResponseWriter, req *http.Request) {
		flush := http.NewResponseController(w).Flush
		switch req.URL.Path {
		case "/forbidden":
			w.WriteHeader(http.StatusForbidden)
		case "/partial":
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, newContent)
		case "/encoded":
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, newContent)
		case "/short":
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, newContent)
		case "/broken":
			fmt.Fprint(w, newContent)
			flush()
			panic(http.ErrAbortHandler)
		case "/announced":
			w.Header().Set("Content-Length", fmt.Sprint(2<<20))
			flush()
		case "/endless":
			for range 10_000 {
				if _, err := fmt.Fprint(w, chunk); err != nil {
					return
				}
			}
		case "/drip":
			for {
				fmt.Fprint(w, "x")
				if flush() != nil {
					return
				}
				select {
				case <-req.Context().Done():
					return
				case <-time.After(time.Millisecond):
				}
			}
		case "/silent":
			select {
			case <-req.Context().Done():
			case <-release:
			}
		case "/stuck":
			fmt.Fprint(w, chunk)
			flush()
			select {
			case <-req.Context().Done():
			case <-release:
			}
		case "/to-http":
			http.Redirect(w, req, "http://example.com/", http.StatusFound)
		case "/to-private":
			http.Redirect(w, req, "https://10.0.0.1/", http.StatusFound)
		case "/r4", "/r3", "/r2", "/r1":
			http.Redirect(w, req, fmt.Sprintf("/r%d", req.URL.Path[2]-'1'), http.StatusFound)
		default:
			serveNew(w, req)
		}
	}
}

// What a source does wrong ends in a receipt, and changes nothing.
func TestSourcesThatLie(t *testing.T) {
	release := make(chan struct{})
	s, o := source(t, liar(release))
	defer close(release)
	o.Limits = transfers.Limits{FileBytes: 1 << 20, Stall: 150 * time.Millisecond}
	r := newRig(t, o)
	for i, c := range []struct{ path, sha, code string }{
		{"/forbidden", "", "download_failed"}, {"/partial", "", "download_failed"}, {"/encoded", "", "download_failed"},
		{"/short", "", "download_failed"}, {"/broken", "", "download_failed"},
		{"/announced", "", "transfer_too_large"}, {"/endless", "", "transfer_too_large"},
		{"/drip", "", "download_stalled"}, {"/silent", "", "download_stalled"}, {"/stuck", "", "download_stalled"},
		{"/to-http", "", "download_refused"}, {"/to-private", "", "download_refused"}, {"/r4", "", "download_refused"},
		{"/f", hashText("another"), "content_mismatch"}, {"/r3", "", ""}, {"/f", hashText(newContent), ""},
	} {
		t.Run(strings.Trim(c.path, "/")+" "+c.code, func(t *testing.T) {
			r.write("f", oldContent)
			in := r.importIn("f", fmt.Sprint("r", i), s.URL+c.path, oldContent)
			if c.sha != "" {
				in.SHA256 = &c.sha
			}
			out := r.importFile(in)
			if c.code == "" {
				r.is(out, transfers.Completed)
				return
			}
			if r.is(out, transfers.Failed, c.code); out.Error == nil {
				return
			}
			if r.file("f") != oldContent {
				t.Errorf("the file has %q", r.file("f"))
			}
			if strings.Contains(out.Error.Message, "127.0.0.1") || strings.Contains(r.log.String(), s.URL) {
				t.Errorf("the address is told: %s %s", out.Error.Message, r.log)
			}
			if again := r.importFile(in); !again.Duplicate || again.State != transfers.Failed {
				t.Errorf("the repeat is %+v", again)
			}
		})
	}
	r.nothingSpooled()
}

func TestUntrustedAndUnreachableSources(t *testing.T) {
	s, o := source(t, serveNew)
	gone, _ := source(t, serveNew)
	gone.Close()
	o.Safedial.RootCAs = nil
	r := newRig(t, o)
	r.is(r.importFile(r.importIn("f", "r1", s.URL, "")), transfers.Failed, "download_failed")
	r.is(r.importFile(r.importIn("f", "r2", gone.URL, "")), transfers.Failed, "download_failed")
	o.Safedial.AllowLoopback = false
	strict := newRig(t, o)
	_, err := strict.ImportDirectFile(t.Context(), strict.who, strict.importIn("f", "r1", s.URL, ""))
	refused(t, err, transfers.DownloadRefused)
}

func TestManyIdenticalImportsAreOne(t *testing.T) {
	var requests atomic.Int32
	s, o := source(t, func(w http.ResponseWriter, req *http.Request) {
		requests.Add(1)
		serveNew(w, req)
	})
	r := newRig(t, o)
	var wg sync.WaitGroup
	var firsts atomic.Int32
	for i := range 100 {
		wg.Go(func() {
			out, err := r.ImportDirectFile(context.Background(), r.who, r.importIn("f", "r1", fmt.Sprint(s.URL, "/?sig=", i), ""))
			if err != nil || out.State != transfers.Completed {
				t.Errorf("%+v, %v", out, err)
			}
			if !out.Duplicate {
				firsts.Add(1)
			}
		})
	}
	wg.Wait()
	if requests.Load() != 1 || r.host.places.Load() != 1 || firsts.Load() != 1 {
		t.Errorf("%d downloads, %d placements, %d first calls", requests.Load(), r.host.places.Load(), firsts.Load())
	}
}

func TestOfTwoImportsOneWins(t *testing.T) {
	s, o := source(t, serveNew)
	r := newRig(t, o)
	r.write("f", oldContent)
	both := make(chan struct{})
	var arrived atomic.Int32
	r.Crash(func(step string) {
		if step == "downloaded" {
			if arrived.Add(1) == 2 {
				close(both)
			}
			<-both
		}
	})
	var wg sync.WaitGroup
	got := make([]transfers.Transfer, 2)
	for i := range got {
		wg.Go(func() { got[i] = r.importFile(r.importIn("f", fmt.Sprint("r", i), s.URL, oldContent)) })
	}
	wg.Wait()
	states := string(got[0].State) + " " + string(got[1].State)
	if states != "completed failed" && states != "failed completed" {
		t.Errorf("they are %s", states)
	}
}

// The target is guarded over the whole time of the download.
func TestTargetChangedDuringTheDownload(t *testing.T) {
	var r *rig
	s, o := source(t, func(w http.ResponseWriter, req *http.Request) {
		r.write("f", "theirs")
		serveNew(w, req)
	})
	r = newRig(t, o)
	r.write("f", oldContent)
	r.is(r.importFile(r.importIn("f", "r1", s.URL, oldContent)), transfers.Failed, "hash_conflict")
	r.is(r.importFile(r.importIn("g", "r2", s.URL, "")), transfers.Completed)
	if r.file("f") != "theirs" {
		t.Errorf("the file has %q", r.file("f"))
	}
}

func TestRevocationBreaksOffImports(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	s, o := source(t, func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprint(w, "begin")
		http.NewResponseController(w).Flush()
		begun <- struct{}{}
		select {
		case <-req.Context().Done():
		case <-release:
		}
	})
	r := newRig(t, o)
	done := make(chan transfers.Transfer, 1)
	go func() {
		out, _ := r.ImportDirectFile(context.Background(), r.who, r.importIn("f", "r1", s.URL, ""))
		done <- out
	}()
	<-begun
	if err := store.Exec(t.Context(), r.store, func(tx *store.Tx) error { return r.EndClient(tx, "client-1") }); err != nil {
		t.Fatal(err)
	}
	r.is(<-done, transfers.Revoked, "transfer_revoked")
	r.nothingSpooled()
	if r.file("f") != "-" {
		t.Error("the file is there")
	}
}

// A revocation that comes while the file is being placed does not make the
// receipt lie.
func TestRevocationDuringPlacing(t *testing.T) {
	for _, step := range []string{"placing", "placed"} {
		t.Run(step, func(t *testing.T) {
			s, o := source(t, serveNew)
			r := newRig(t, o)
			r.Crash(func(at string) {
				if at == step {
					if err := store.Exec(context.Background(), r.store, func(tx *store.Tx) error { return r.EndClient(tx, "client-1") }); err != nil {
						t.Error(err)
					}
				}
			})
			out := r.importFile(r.importIn("f", "r1", s.URL, ""))
			if there := r.file("f") == newContent; there != (out.State == transfers.Completed) || !there && out.State != transfers.Revoked {
				t.Errorf("it is %s, and the file is there: %v", out.State, there)
			}
			r.nothingSpooled()
		})
	}
}

func TestCloseInterruptsAndWaits(t *testing.T) {
	begun := make(chan struct{}, 1)
	release := make(chan struct{})
	defer close(release)
	s, o := source(t, func(w http.ResponseWriter, req *http.Request) {
		begun <- struct{}{}
		select {
		case <-req.Context().Done():
		case <-release:
		}
	})
	r := newRig(t, o)
	done := make(chan error, 1)
	go func() {
		_, err := r.ImportDirectFile(context.Background(), r.who, r.importIn("f", "r1", s.URL, ""))
		done <- err
	}()
	<-begun
	r.restart()
	<-done
	got := r.get("r1")
	r.is(got, transfers.StateInterrupted, "transfer_interrupted")
	again := r.importFile(r.importIn("f", "r1", s.URL, ""))
	if r.is(again, transfers.StateInterrupted, "transfer_interrupted"); r.file("f") != "-" {
		t.Error("an interrupted import was made again")
	}
	r.nothingSpooled()
}

// While a host can't be asked the outcome is unknown, and then it is not.
func TestOutcomeIsUnknownUntilTheHostIsAsked(t *testing.T) {
	lost := errors.New("the connection broke")
	for name, c := range map[string]struct {
		where string
		state transfers.State
		code  string
		file  string
	}{
		"done":     {"place", transfers.Completed, "", newContent},
		"not done": {"send", transfers.StateInterrupted, "transfer_interrupted", oldContent},
	} {
		for _, how := range []string{"get", "sweep", "restart", "back"} {
			t.Run(name+", "+how, func(t *testing.T) {
				s, o := source(t, serveNew)
				r := newRig(t, o)
				r.write("f", oldContent)
				r.host.fail(c.where, lost)
				r.host.fail("settle", lost)
				r.is(r.importFile(r.importIn("f", "r1", s.URL, oldContent)), transfers.StateUnknown, "outcome_unknown")
				r.is(r.get("r1"), transfers.StateUnknown, "outcome_unknown")
				r.is(r.importFile(r.importIn("f", "r1", s.URL, oldContent)), transfers.StateUnknown, "outcome_unknown")
				if how == "restart" {
					r.restart()
				}
				r.host.fail("settle", nil)
				var err error
				switch how {
				case "sweep":
					err = r.Sweep(t.Context())
				case "back":
					if err := r.SettleHost(t.Context(), "another"); err != nil || r.stored("r1") != transfers.StateUnknown {
						t.Fatalf("another host is back: %v, %v", err, r.stored("r1"))
					}
					err = r.SettleHost(t.Context(), "local")
				}
				if err != nil || how != "get" && how != "restart" && r.stored("r1") != c.state {
					t.Fatalf("%v, %v", err, r.stored("r1"))
				}
				r.is(r.get("r1"), c.state, c.code)
				if r.file("f") != c.file {
					t.Errorf("the file has %q", r.file("f"))
				}
			})
		}
	}
	// When only the answer was lost, the host is asked at once.
	s, o := source(t, serveNew)
	r := newRig(t, o)
	r.host.fail("place", lost)
	r.is(r.importFile(r.importIn("f", "r1", s.URL, "")), transfers.Completed)
	r.host.fail("place", nil)
	r.host.fail("send", lost)
	r.is(r.importFile(r.importIn("g", "r2", s.URL, "")), transfers.StateInterrupted, "transfer_interrupted")
}

// stored is the state on disk; nobody is asked.
func (r *rig) stored(requestID string) (state transfers.State) {
	r.t.Helper()
	err := store.Read(r.t.Context(), r.store, func(q *store.Reader) error {
		return q.QueryRow(`SELECT state FROM transfers WHERE request_id = ?`, requestID).Scan(&state)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return state
}

func TestFullSpoolDisk(t *testing.T) {
	if os.Getuid() != 0 || runtime.GOOS != "linux" {
		t.Log("only root on Linux can mount a small disk: nothing was tried")
		return
	}
	s, o := source(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 4<<20)) })
	r := newRig(t, o)
	r.write("big", strings.Repeat("x", 4<<20))
	r.write("small", "x")
	spool := r.dir + "/state/" + transfers.SpoolDir
	if err := mountSmall(spool); err != nil {
		t.Fatal(err)
	}
	defer func() { eventually(t, "the small disk is given back", func() bool { return unmount(spool) == nil }) }()
	r.is(r.export("big", "r1"), transfers.Failed, "spool_full")
	r.is(r.importFile(r.importIn("f", "r2", s.URL, "")), transfers.Failed, "spool_full")
	r.nothingSpooled()
	small := r.export("small", "r3")
	r.is(small, transfers.Ready)
	if _, body := fetch(t, "GET", small.DownloadURL); body != "x" {
		t.Errorf("got %q", body)
	}
	if _, err := r.Revoke(t.Context(), r.who, transfers.RevokeIn{Owner: r.who.Owner}); err != nil {
		t.Fatal(err)
	}
}

func TestSpoolQuotaBoundsImports(t *testing.T) {
	s, o := source(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/announced" {
			w.Header().Set("Content-Length", "3000")
		}
		fmt.Fprint(w, strings.Repeat("x", 3000))
	})
	o.Limits.SpoolBytes = 2000
	r := newRig(t, o)
	r.is(r.importFile(r.importIn("f", "r1", s.URL, "")), transfers.Failed, "spool_full")
	r.is(r.importFile(r.importIn("f", "r2", s.URL+"/announced", "")), transfers.Failed, "spool_full")
	r.nothingSpooled()
}

func TestOwnersList(t *testing.T) {
	s, o := source(t, serveNew)
	r := newRig(t, o)
	r.write("f", "content")
	for i := range 5 {
		r.export("f", fmt.Sprint("e", i))
	}
	other := r.who
	other.Owner = "local-owner:other"
	if _, err := r.ImportDirectFile(t.Context(), other, r.importIn("g", "i", s.URL, "")); err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]string{"": "i e4 e3 e2 e1 e0", r.who.Owner: "e4 e3 e2 e1 e0", other.Owner: "i", "nobody": ""} {
		var got []string
		in := transfers.AllTransfersIn{Owner: owner, Limit: new(2)}
		for {
			out, err := r.AllTransfers(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range out.Transfers {
				if got = append(got, x.RequestID); x.DownloadURL != "" || x.Owner == "" || x.ClientID != "client-1" {
					t.Errorf("%+v", x)
				}
			}
			if out.NextCursor == "" {
				break
			}
			in.Cursor = &out.NextCursor
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q sees %v, want %s", owner, got, want)
		}
	}
	for _, in := range []transfers.AllTransfersIn{{Limit: new(0)}, {Limit: new(201)}} {
		_, err := r.AllTransfers(t.Context(), in)
		refused(t, err, fault.InvalidArguments)
	}
	_, err := r.AllTransfers(t.Context(), transfers.AllTransfersIn{Cursor: new("!")})
	refused(t, err, fault.InvalidCursor)
}

func TestQueriesUseIndexes(t *testing.T) {
	r := newRig(t, transfers.Options{})
	for name, query := range transfers.Queries {
		var plan []string
		err := store.Read(t.Context(), r.store, func(q *store.Reader) error {
			return q.Query(func(from store.Scanner) error {
				var a, b, c int
				var step string
				err := from.Scan(&a, &b, &c, &step)
				plan = append(plan, step)
				return err
			}, "EXPLAIN QUERY PLAN "+query, make([]any, strings.Count(query, "?"))...)
		})
		if err != nil || strings.Contains(strings.Join(plan, "\n"), "SCAN t") || strings.Contains(strings.Join(plan, "\n"), "TEMP B-TREE") {
			t.Errorf("%s: %v, %v", name, plan, err)
		}
	}
}
