package transfers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

func TestExportRoundTrip(t *testing.T) {
	r := newRig(t, transfers.Options{})
	content := strings.Repeat("0123456789abcdef\x00\xff", 100_000)
	name := `Bericht "März" 日本.pdf`
	r.write(name, content)
	out := r.export(name, "r1")
	r.is(out, transfers.Ready)
	if out.SHA256 != hashText(content) || *out.Size != int64(len(content)) || out.Duplicate || out.Path != name || out.HostID != "local" || out.MimeType != "application/pdf" {
		t.Errorf("the receipt is %+v", out)
	}
	if want := "2026-03-01T09:10:00.000Z"; out.ExpiresAt.String() != want {
		t.Errorf("it expires at %s, want %s", out.ExpiresAt, want)
	}
	r.write(name, "changed after the snapshot")

	resp, body := fetch(t, "GET", out.DownloadURL)
	if resp.StatusCode != 200 || body != content {
		t.Fatalf("%d with %d bytes", resp.StatusCode, len(body))
	}
	for header, want := range map[string]string{
		"Content-Type": "application/octet-stream", "Content-Length": fmt.Sprint(len(content)), "Accept-Ranges": "bytes",
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "ETag": `"` + hashText(content) + `"`,
		"Content-Disposition": `attachment; filename="Bericht _M_rz_ __.pdf"; filename*=UTF-8''Bericht%20_M%C3%A4rz_%20%E6%97%A5%E6%9C%AC.pdf`,
		"Last-Modified":       "",
	} {
		if got := resp.Header.Get(header); got != want {
			t.Errorf("%s is %q, want %q", header, got, want)
		}
	}
	done := r.becomes("r1", transfers.Completed)
	if done.BytesServed != int64(len(content)) || done.DownloadURL != out.DownloadURL {
		t.Errorf("after the download: %+v", done)
	}
	if got, want := r.audited(), "file.export "+name+" ok; file.download "+name+" ok"; got != want {
		t.Errorf("the audit log has %q, want %q", got, want)
	}
	again := r.export(name, "r1")
	if !again.Duplicate || again.DownloadURL != out.DownloadURL || r.host.opens.Load() != 1 {
		t.Errorf("the repeat is %+v after %d openings", again, r.host.opens.Load())
	}
	raw, err := json.Marshal(out)
	if err != nil || !strings.Contains(string(raw), `"expiresAt":"2026-03-01T09:10:00.000Z"`) {
		t.Errorf("%s, %v", raw, err)
	}
}

// TestLinksAreForThoseWhoMayRead: a client that may only write sees the receipt,
// not a way to the bytes.
func TestLinksAreForThoseWhoMayRead(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	r.export("f", "r1")
	writer := r.who
	writer.ClientID, writer.Permissions = "client-2", principal.Full().Without(principal.FilesRead)
	out, err := r.GetDirectTransfer(t.Context(), writer, transfers.GetDirectTransferIn{HostID: "local", RequestID: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	if r.is(out, transfers.Ready); out.DownloadURL != "" {
		t.Error("it is given the link")
	}
	if r.get("r1").DownloadURL == "" {
		t.Error("the client that may read is given none")
	}
}

func TestLinksSurviveARestart(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	out := r.export("f", "r1")
	r.restart()
	if _, body := fetch(t, "GET", out.DownloadURL); body != "content" {
		t.Errorf("the old link gives %q", body)
	}
	further := r.get("r1")
	if further.DownloadURL == out.DownloadURL || further.DownloadURL == "" {
		t.Errorf("the further link is %q", further.DownloadURL)
	}
	if _, body := fetch(t, "GET", further.DownloadURL); body != "content" {
		t.Errorf("the further link gives %q", body)
	}
	if again := r.get("r1"); again.DownloadURL != further.DownloadURL {
		t.Error("each call gives another link")
	}
	if further.ExpiresAt != out.ExpiresAt {
		t.Error("a restart has moved the end of the link")
	}
}

func TestSnapshotLostWithTheDisk(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	out := r.export("f", "r1")
	r.close()
	if err := os.Truncate(r.dir+"/state/"+transfers.SpoolDir+"/"+r.spooled()[0], 3); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.is(r.get("r1"), transfers.StateInterrupted, "transfer_interrupted")
	if resp, _ := fetch(t, "GET", out.DownloadURL); resp.StatusCode != 404 {
		t.Errorf("got %d", resp.StatusCode)
	}
	r.nothingSpooled()
}

func TestRanges(t *testing.T) {
	r := newRig(t, transfers.Options{})
	const content = "0123456789"
	r.write("f.txt", content)
	r.write("empty", "")
	link, empty := r.export("f.txt", "r1").DownloadURL, r.export("empty", "r2").DownloadURL
	etag := `"` + hashText(content) + `"`
	for _, c := range []struct {
		method, url string
		header      []string
		status      int
		body, sent  string
	}{
		{"GET", link, nil, 200, content, ""},
		{"HEAD", link, nil, 200, "", ""},
		{"HEAD", link, []string{"Range", "bytes=2-3"}, 206, "", "bytes 2-3/10"},
		{"GET", link, []string{"Range", "bytes=0-3"}, 206, "0123", "bytes 0-3/10"},
		{"GET", link, []string{"Range", "bytes=4-4"}, 206, "4", "bytes 4-4/10"},
		{"GET", link, []string{"Range", "bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{"GET", link, []string{"Range", "bytes=7-99"}, 206, "789", "bytes 7-9/10"},
		{"GET", link, []string{"Range", "bytes=-4"}, 206, "6789", "bytes 6-9/10"},
		{"GET", link, []string{"Range", "bytes=-99"}, 206, content, "bytes 0-9/10"},
		{"GET", link, []string{"Range", "bytes=0-1,4-5"}, 200, content, ""},
		{"GET", link, []string{"Range", "bytes=4-", "If-Range", etag}, 206, "456789", "bytes 4-9/10"},
		{"GET", link, []string{"Range", "bytes=4-", "If-Range", `"another"`}, 200, content, ""},
		{"GET", link, []string{"Range", "bytes=4-", "If-Range", "W/" + etag}, 200, content, ""},
		{"GET", link, []string{"Range", "bytes=4-", "If-Range", "Sun, 01 Mar 2026 09:00:00 GMT"}, 200, content, ""},
		{"GET", link, []string{"If-None-Match", etag}, 304, "", ""},
		{"GET", link, []string{"If-Match", `"another"`}, 412, "", ""},
		{"GET", link, []string{"Range", "bytes=10-"}, 416, "", "bytes */10"},
		{"GET", link, []string{"Range", "bytes=5-4"}, 416, "", "bytes */10"},
		{"GET", link, []string{"Range", "bytes=x-"}, 416, "", "bytes */10"},
		{"GET", link, []string{"Range", "lines=1-2"}, 416, "", "bytes */10"},
		{"GET", empty, nil, 200, "", ""},
		{"GET", empty, []string{"Range", "bytes=0-"}, 200, "", ""},
		{"GET", link + "x", nil, 404, "", ""},
		{"GET", link + "/", nil, 404, "", ""},
		{"GET", strings.TrimSuffix(link, "/f.txt"), nil, 404, "", ""},
		{"GET", strings.Replace(link, "/files/", "/files/A", 1), nil, 404, "", ""},
		{"GET", r.server.URL + "/files//f.txt", nil, 404, "", ""},
		{"GET", strings.Replace(link, "/f.txt", "%2Ff.txt", 1), nil, 200, content, ""},
	} {
		t.Run(c.method+" "+strings.Join(c.header, " "), func(t *testing.T) {
			resp, body := fetch(t, c.method, c.url, c.header...)
			if resp.StatusCode != c.status || resp.Header.Get("Content-Range") != c.sent {
				t.Errorf("got %d %q, want %d %q", resp.StatusCode, resp.Header.Get("Content-Range"), c.status, c.sent)
			}
			if c.status < 400 && body != c.body {
				t.Errorf("the body is %q, want %q", body, c.body)
			}
			wellFormed(t, resp, body)
		})
	}
	r.becomes("r2", transfers.Completed)
}

// wellFormed checks the headers of every answer, and the form of a refusal.
func wellFormed(t *testing.T, resp *http.Response, body string) {
	t.Helper()
	for _, h := range []string{"Cache-Control", "X-Content-Type-Options", "Referrer-Policy"} {
		if resp.Header.Get(h) == "" {
			t.Errorf("%s is missing", h)
		}
	}
	kind, ok := map[int]fault.Kind{404: transfers.TicketUnknown, 416: transfers.RangeInvalid, 429: transfers.TooManyDownloads}[resp.StatusCode]
	if !ok {
		return
	}
	var e struct {
		Error struct{ Code, Message, Hint string }
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Code != kind.Code || e.Error.Hint != kind.Hint || e.Error.Message == "" {
		t.Errorf("the refusal is %q, %v, want %s", body, err, kind.Code)
	}
	if resp.Header.Get("Content-Disposition") != "" {
		t.Error("a refusal has the headers of a file")
	}
}

// A file that came in several ranges was sent as one that came at once.
func TestResumedDownloadCompletes(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "0123456789")
	link := r.export("f", "r1").DownloadURL
	for _, part := range []string{"bytes=6-9", "bytes=0-2", "bytes=2-4"} {
		fetch(t, "GET", link, "Range", part)
		fetch(t, "HEAD", link)
	}
	eventually(t, "ten bytes are counted", func() bool { return r.get("r1").BytesServed == 10 })
	r.is(r.get("r1"), transfers.Ready)
	r.restart() // what was sent is remembered
	fetch(t, "GET", r.get("r1").DownloadURL, "Range", "bytes=5-5")
	r.becomes("r1", transfers.Completed)
}

func TestCoverage(t *testing.T) {
	for _, c := range []struct {
		size      int64
		intervals [][2]int64
		want      bool
	}{
		{0, nil, true},
		{1, nil, false},
		{10, [][2]int64{{0, 10}}, true},
		{10, [][2]int64{{0, 9}}, false},
		{10, [][2]int64{{1, 10}}, false},
		{10, [][2]int64{{5, 10}, {0, 5}}, true},
		{10, [][2]int64{{0, 5}, {6, 10}}, false},
		{10, [][2]int64{{0, 5}, {6, 10}, {5, 6}}, true},
		{10, [][2]int64{{0, 3}, {2, 8}, {1, 4}, {7, 10}}, true},
		{10, [][2]int64{{3, 3}, {0, 0}}, false},
	} {
		if got, _ := transfers.Covered(c.size, c.intervals...); got != c.want {
			t.Errorf("%v of %d: %v", c.intervals, c.size, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		sent := [size]bool{}
		var intervals [][2]int64
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			from := rapid.Int64Range(0, size).Draw(t, "from")
			to := rapid.Int64Range(from, size).Draw(t, "to")
			intervals = append(intervals, [2]int64{from, to})
			for i := from; i < to; i++ {
				sent[i] = true
			}
		}
		got, _ := transfers.Covered(size, intervals...)
		if want := !slices.Contains(sent[:], false); got != want {
			t.Fatalf("%v: %v, want %v", intervals, got, want)
		}
	})
	var many [][2]int64
	for i := range int64(10_000) {
		many = append(many, [2]int64{3 * i, 3*i + 1})
	}
	if covered, kept := transfers.Covered(30_000, many...); covered || kept > 5000 {
		t.Errorf("covered %v, %d intervals kept", covered, kept)
	}
}

func TestNames(t *testing.T) {
	for path, want := range map[string]string{
		"a/b/report.pdf": "report.pdf", ".env": ".env", `a\b:c*?"<>|.txt`: "a_b_c______.txt", "x\u202etxt.exe": "x_txt.exe", "tab\there": "tab_here",
		"trailing. . ": "trailing", "...": "download.bin", strings.Repeat("é", 300): strings.Repeat("é", 180), "a\xffb": "a_b",
	} {
		if got := transfers.DownloadName(path); got != want {
			t.Errorf("%q is downloaded as %q, want %q", path, got, want)
		}
	}
	if got, want := transfers.ContentDisposition("a'b(c)* %+~é.txt"), `attachment; filename="a'b(c)* _+~_.txt"; filename*=UTF-8''a%27b%28c%29%2A%20%25%2B~%C3%A9.txt`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Whatever a file is called, receivers read one header and one plain name.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"a", "a\"b\\c", "é\u202e%41", "x\r\nSet-Cookie: a", "..", "\xff\x00", "a;b=c'd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		name := transfers.DownloadName(path)
		if name == "" || strings.ContainsAny(name, "/\\\"\r\n\x00") || len([]rune(name)) > 180 {
			t.Fatalf("%q is downloaded as %q", path, name)
		}
		header := transfers.ContentDisposition(name)
		if strings.ContainsFunc(header, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("the header is %q", header)
		}
		plain, err := url.PathUnescape(header[strings.Index(header, "UTF-8''")+len("UTF-8''"):])
		if err != nil || plain != name {
			t.Fatalf("%q is read as %q, %v", name, plain, err)
		}
		if u, err := url.Parse("https://example.com/files/t/" + url.PathEscape(name)); err != nil || u.Path != "/files/t/"+name {
			t.Fatalf("%q can't be in a link: %v", name, err)
		}
	})
}

// begun starts a download that is stuck because its receiver does not read.
func begun(t *testing.T, link string) *http.Response {
	t.Helper()
	resp, err := client.Get(link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// big is more than the buffers between a sender and a receiver hold.
func (r *rig) big(name string) {
	r.t.Helper()
	f, err := os.Create(r.path(name))
	if err == nil {
		err = errors.Join(f.Truncate(64<<20), f.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func TestRevocationCutsRunningDownloads(t *testing.T) {
	for name, revoke := range map[string]func(r *rig) error{
		"client": func(r *rig) error {
			return store.Exec(context.Background(), r.store, func(tx *store.Tx) error { return r.EndClient(tx, "client-1") })
		},
		"client, which may not read files any more": func(r *rig) error {
			return r.narrow(principal.Full().Without(principal.FilesRead))
		},
		"owner": func(r *rig) error {
			n, err := r.Revoke(context.Background(), r.who, transfers.RevokeIn{Owner: r.who.Owner, HostID: "local", RequestID: "r1"})
			if n != 1 {
				return fmt.Errorf("%d revoked: %w", n, err)
			}
			return err
		},
		"owner, all": func(r *rig) error {
			_, err := r.Revoke(context.Background(), r.who, transfers.RevokeIn{Owner: r.who.Owner})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, transfers.Options{})
			r.big("f")
			link := r.export("f", "r1").DownloadURL
			a, b := begun(t, link), begun(t, link)
			eventually(t, "both run", func() bool { return r.Running() == 2 })
			start := time.Now()
			if err := revoke(r); err != nil {
				t.Fatal(err)
			}
			for _, resp := range []*http.Response{a, b} {
				if n, err := io.Copy(io.Discard, resp.Body); err == nil {
					t.Errorf("the download went on to its end after %d bytes", n)
				}
			}
			eventually(t, "both are cut", func() bool { return r.Running() == 0 })
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			if resp, _ := fetch(t, "GET", link); resp.StatusCode != 404 {
				t.Errorf("the link still answers %d", resp.StatusCode)
			}
			r.is(r.export("f", "r1"), transfers.Revoked, "transfer_revoked")
			r.nothingSpooled()
			if r.is(r.export("f", "r2"), transfers.Ready); !strings.Contains(r.audited(), "transfer.revoke r1 ok") {
				t.Errorf("the audit log has %s", r.audited())
			}
		})
	}
}

// narrow is what happens when the owner decides what client-1 may do.
func (r *rig) narrow(may principal.Set) error {
	return store.Exec(context.Background(), r.store, func(tx *store.Tx) error { return r.NarrowClient(tx, "client-1", may) })
}

// TestWhatAClientMayStillDoGoesOn: exports end with files_read and nothing else.
func TestWhatAClientMayStillDoGoesOn(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	link := r.export("f", "r1").DownloadURL
	if err := r.narrow(principal.Set{principal.FilesRead}); err != nil {
		t.Fatal(err)
	}
	if resp, _ := fetch(t, "GET", link); resp.StatusCode != 200 {
		t.Errorf("a client that may read files has a link that answers %d", resp.StatusCode)
	}
	if err := r.narrow(principal.Full()); err != nil {
		t.Fatal(err)
	}
	r.is(r.export("f", "r2"), transfers.Ready)
}

func TestRevocationLeavesOthersAlone(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	mine := r.export("f", "r1")
	other := r.who
	other.ClientID = "client-2"
	theirs, err := r.ExportDirectFile(t.Context(), other, r.exportIn("f", "r2"))
	if err != nil {
		t.Fatal(err)
	}
	fetch(t, "GET", mine.DownloadURL)
	r.becomes("r1", transfers.Completed)
	if err := store.Exec(t.Context(), r.store, func(tx *store.Tx) error { return r.EndClient(tx, "client-1") }); err != nil {
		t.Fatal(err)
	}
	if resp, _ := fetch(t, "GET", theirs.DownloadURL); resp.StatusCode != 200 {
		t.Errorf("another client's link answers %d", resp.StatusCode)
	}
	if resp, _ := fetch(t, "GET", mine.DownloadURL); resp.StatusCode != 404 {
		t.Errorf("the client's link answers %d", resp.StatusCode)
	}
	r.is(r.get("r1"), transfers.Completed) // what happened stays
	if _, err := r.Revoke(t.Context(), r.who, transfers.RevokeIn{Owner: r.who.Owner, HostID: "local", RequestID: "none"}); !errors.Is(err, transfers.UnknownTransfer) {
		t.Error(err)
	}
}

func TestLinksExpire(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.big("f")
	link := r.export("f", "r1").DownloadURL
	running := begun(t, link)
	eventually(t, "it runs", func() bool { return r.Running() == 1 })
	r.clock.advance(10*time.Minute - time.Millisecond)
	if resp, _ := fetch(t, "HEAD", link); resp.StatusCode != 200 {
		t.Fatalf("in time: %d", resp.StatusCode)
	}
	r.clock.advance(time.Millisecond)
	if resp, _ := fetch(t, "HEAD", link); resp.StatusCode != 404 {
		t.Errorf("too late: %d", resp.StatusCode)
	}
	got := r.get("r1")
	if r.is(got, transfers.Expired); got.DownloadURL != "" {
		t.Error("an expired export shows a link")
	}
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.nothingSpooled()
	r.is(r.export("f", "r1"), transfers.Expired)
	// What began in time goes on to its end, and counts.
	if n, err := io.Copy(io.Discard, running.Body); n != 64<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	r.becomes("r1", transfers.Completed)
}

// A server that bounds its answers does not bound a download that goes on, and
// the connection serves further requests.
func TestDownloadOutlivesTheServersWriteTimeout(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.big("f")
	link := r.export("f", "r1").DownloadURL
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.Download(w, req) }))
	s.Config.WriteTimeout = 200 * time.Millisecond
	s.Start()
	defer s.Close()
	link = strings.Replace(link, r.server.URL, s.URL, 1)
	kept := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer kept.CloseIdleConnections()
	for range 2 {
		resp, err := kept.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for n := 0; time.Since(start) < 500*time.Millisecond; n++ {
			if _, err := io.CopyN(io.Discard, resp.Body, 100<<10); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // a slow receiver
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBoundsOfDownloads(t *testing.T) {
	r := newRig(t, transfers.Options{Limits: transfers.Limits{PerTicket: 2, Downloads: 3}})
	r.big("f")
	r.big("g")
	f, g := r.export("f", "r1").DownloadURL, r.export("g", "r2").DownloadURL
	first := begun(t, f)
	begun(t, f)
	eventually(t, "two run", func() bool { return r.Running() == 2 })
	resp, body := fetch(t, "GET", f, "Range", "bytes=0-1")
	wellFormed(t, resp, body)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a third of one link: %d", resp.StatusCode)
	}
	begun(t, g)
	eventually(t, "three run", func() bool { return r.Running() == 3 })
	if resp, _ := fetch(t, "GET", g, "Range", "bytes=0-1"); resp.StatusCode != 429 {
		t.Errorf("a fourth of all: %d", resp.StatusCode)
	}
	first.Body.Close()
	eventually(t, "there is room again", func() bool { resp, _ := fetch(t, "GET", f, "Range", "bytes=0-1"); return resp.StatusCode == 206 })
}

func TestReceiverThatDoesNotReadIsCut(t *testing.T) {
	r := newRig(t, transfers.Options{Limits: transfers.Limits{Stall: 200 * time.Millisecond}})
	r.big("f")
	begun(t, r.export("f", "r1").DownloadURL)
	eventually(t, "it ends", func() bool { return r.get("r1").BytesServed > 0 && r.Running() == 0 })
	r.is(r.get("r1"), transfers.Ready)
}

// TestOneOwnerLeavesTheOthersRoom: over a restart too.
func TestOneOwnerLeavesTheOthersRoom(t *testing.T) {
	r := newRig(t, transfers.Options{Limits: transfers.Limits{FileBytes: 100, SpoolBytes: 200, SpoolPerOwner: 100}})
	r.write("small", "xxxxxxxxxx")
	r.write("half", strings.Repeat("x", 60))
	export := func(owner, name, id string) error {
		who := r.who
		who.Owner = owner
		_, err := r.ExportDirectFile(t.Context(), who, r.exportIn(name, id))
		return err
	}
	greedy, other := r.who.Owner, "local-owner:other"
	if err := export(greedy, "half", "r1"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := export(greedy, "half", "r2")
		refused(t, err, transfers.SpoolFull)
		if e := fault.From(err); !strings.Contains(e.Message, "This owner's share") {
			t.Errorf("the refusal says %q", e.Message)
		}
		r.restart()
	}
	for name, id := range map[string]string{"half": "r1", "small": "r2"} {
		if err := export(other, name, id); err != nil {
			t.Errorf("another owner: %v", err)
		}
	}
	if err := export(greedy, "small", "r3"); err != nil {
		t.Errorf("what is left of its share: %v", err)
	}
	if _, err := r.Revoke(t.Context(), r.who, transfers.RevokeIn{Owner: greedy}); err != nil {
		t.Fatal(err)
	}
	if err := export(greedy, "half", "r4"); err != nil {
		t.Errorf("what was given back can't be had again: %v", err)
	}
}

func TestBoundsOfExports(t *testing.T) {
	r := newRig(t, transfers.Options{Limits: transfers.Limits{FileBytes: 100, SpoolBytes: 150, PerOwner: 2}})
	r.write("small", "x")
	r.write("fits", strings.Repeat("x", 100))
	r.write("large", strings.Repeat("x", 101))
	call := func(name, id string) error {
		_, err := r.ExportDirectFile(t.Context(), r.who, r.exportIn(name, id))
		return err
	}
	refused(t, call("large", "r1"), transfers.TransferTooLarge)
	r.is(r.export("fits", "r1"), transfers.Ready) // the refusal has not used the id up
	refused(t, call("fits", "r2"), transfers.SpoolFull)
	r.is(r.export("small", "r2"), transfers.Ready)
	refused(t, call("small", "r3"), transfers.TooManyTransfers)
	if other := r.who; true {
		other.Owner = "local-owner:other"
		if _, err := r.ExportDirectFile(t.Context(), other, r.exportIn("small", "r1")); err != nil {
			t.Errorf("another owner: %v", err)
		}
	}
	r.clock.advance(time.Hour)
	r.is(r.export("fits", "r3"), transfers.Ready) // what has expired makes room by itself
	if got := len(r.spooled()); got != 1 {
		t.Errorf("%d files in the spool", got)
	}
}

func TestExportRefusals(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	long := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		change func(in *transfers.ExportDirectFileIn)
		want   fault.Kind
	}{
		"no requestId":     {func(in *transfers.ExportDirectFileIn) { in.RequestID = "" }, fault.InvalidArguments},
		"a bad requestId":  {func(in *transfers.ExportDirectFileIn) { in.RequestID = ".x" }, fault.InvalidArguments},
		"a long wait":      {func(in *transfers.ExportDirectFileIn) { in.WaitMs = new(20001) }, fault.InvalidArguments},
		"no project":       {func(in *transfers.ExportDirectFileIn) { in.ProjectID = "" }, fault.InvalidArguments},
		"a long path":      {func(in *transfers.ExportDirectFileIn) { in.Path = long }, fault.InvalidArguments},
		"unknown project":  {func(in *transfers.ExportDirectFileIn) { in.ProjectID = "q" }, direct.UnknownProject},
		"not readable":     {func(in *transfers.ExportDirectFileIn) { in.ProjectID = "locked" }, direct.ReadDisabled},
		"a missing file":   {func(in *transfers.ExportDirectFileIn) { in.Path = "g" }, direct.PathNotFound},
		"a directory":      {func(in *transfers.ExportDirectFileIn) { in.Path = "." }, direct.NotRegularFile},
		"outside":          {func(in *transfers.ExportDirectFileIn) { in.Path = "../state/gateway.db" }, direct.OutsideProject},
		"an absolute path": {func(in *transfers.ExportDirectFileIn) { in.Path = "/etc/passwd" }, fault.InvalidArguments},
	} {
		t.Run(name, func(t *testing.T) {
			in := r.exportIn("f", "r1")
			c.change(&in)
			_, err := r.ExportDirectFile(t.Context(), r.who, in)
			refused(t, err, c.want)
			if err != nil && strings.Contains(err.Error(), r.dir) && !strings.Contains(err.Error(), ": ") {
				t.Errorf("the refusal names a path: %v", err)
			}
		})
	}
	in := r.exportIn("f", "r1")
	in.HostID = "elsewhere"
	if _, err := r.ExportDirectFile(t.Context(), r.who, in); fault.From(err).Code != "unknown_host" {
		t.Error(err)
	}
	if _, err := r.GetDirectTransfer(t.Context(), r.who, transfers.GetDirectTransferIn{HostID: "local", RequestID: "r1"}); !errors.Is(err, transfers.UnknownTransfer) {
		t.Errorf("a refused call has left a receipt: %v", err)
	}
	r.is(r.export("f", "r1"), transfers.Ready)
	other := r.who
	other.Owner = "local-owner:other"
	if _, err := r.GetDirectTransfer(t.Context(), other, transfers.GetDirectTransferIn{HostID: "local", RequestID: "r1"}); !errors.Is(err, transfers.UnknownTransfer) {
		t.Errorf("another owner sees it: %v", err)
	}
	r.write("g", "content")
	_, err := r.ExportDirectFile(t.Context(), r.who, r.exportIn("g", "r1"))
	refused(t, err, fault.KeyConflict)
}

func TestManyIdenticalExportsAreOne(t *testing.T) {
	// With space for one of them.
	r := newRig(t, transfers.Options{Limits: transfers.Limits{SpoolBytes: 10, PerOwner: 1}})
	r.write("f", "content")
	var wg sync.WaitGroup
	links, first := sync.Map{}, make(chan bool, 100)
	for range 100 {
		wg.Go(func() {
			out, err := r.ExportDirectFile(context.Background(), r.who, r.exportIn("f", "r1"))
			if err != nil {
				t.Error(err)
				return
			}
			links.Store(out.DownloadURL, true)
			if !out.Duplicate {
				first <- true
			}
		})
	}
	wg.Wait()
	n := 0
	links.Range(func(any, any) bool { n++; return true })
	if n != 1 || len(first) != 1 || len(r.spooled()) != 1 || r.host.opens.Load() != 1 {
		t.Errorf("%d links, %d first calls, %d files, %d openings", n, len(first), len(r.spooled()), r.host.opens.Load())
	}
}

// A client that is ended while its call is under way begins nothing with it.
func TestClientEndedDuringItsCall(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	r.host.opening = func() {
		if err := store.Exec(context.Background(), r.store, func(tx *store.Tx) error { return r.EndClient(tx, "client-1") }); err != nil {
			t.Error(err)
		}
	}
	_, err := r.ExportDirectFile(t.Context(), r.who, r.exportIn("f", "r1"))
	refused(t, err, transfers.TransferRevoked)
	r.nothingSpooled()
	r.host.opening = nil
	r.is(r.export("f", "r1"), transfers.Ready)
}

// cloned is content that can be copied without being read, as on file systems
// with reflinks.
type cloned struct {
	io.ReadCloser
	from string
	fail error
}

func (c cloned) CloneTo(path string) error {
	if c.fail != nil {
		return c.fail
	}
	raw, err := os.ReadFile(c.from)
	if err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o600)
}

func (c cloned) Read([]byte) (int, error) { return 0, errors.New("it was read") }

func TestExportOfACloneOfTheFile(t *testing.T) {
	r := newRig(t, transfers.Options{Limits: transfers.Limits{FileBytes: 100}})
	r.write("f", "content")
	r.host.content = func(c io.ReadCloser) io.ReadCloser { return cloned{ReadCloser: c, from: r.path("f")} }
	out := r.export("f", "r1")
	if r.is(out, transfers.Ready); out.SHA256 != hashText("content") || *out.Size != 7 {
		t.Errorf("the receipt is %+v", out)
	}
	if _, body := fetch(t, "GET", out.DownloadURL); body != "content" {
		t.Errorf("got %q", body)
	}
	r.host.content = func(c io.ReadCloser) io.ReadCloser {
		r.write("f", strings.Repeat("x", 101)) // it has grown since it was opened
		return cloned{ReadCloser: c, from: r.path("f")}
	}
	r.is(r.export("f", "r2"), transfers.Failed, "transfer_too_large")
	r.write("f", "content")
	r.host.content = func(c io.ReadCloser) io.ReadCloser { return cloned{ReadCloser: c, fail: errors.New("disk trouble")} }
	r.is(r.export("f", "r3"), transfers.Failed, "internal_error")
	if len(r.spooled()) != 1 {
		t.Errorf("the spool has %v", r.spooled())
	}
}

func TestChangingFileIsTriedAgainThenRefused(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", strings.Repeat("x", 1000))
	tries := 0
	r.Crash(func(step string) {
		if step == "copying" {
			if tries++; tries < 3 {
				r.write("f", strings.Repeat("y", 1000+tries))
			}
		}
	})
	out := r.export("f", "r1")
	if r.is(out, transfers.Ready); tries != 3 || out.SHA256 != hashText(r.file("f")) {
		t.Errorf("%d tries", tries)
	}
	r.Crash(func(step string) {
		if step == "copying" {
			tries++
			r.write("f", strings.Repeat("z", 1000+tries))
		}
	})
	r.is(r.export("f", "r2"), transfers.Failed, "file_changed")
	r.is(r.export("f", "r2"), transfers.Failed, "file_changed")
	if len(r.spooled()) != 1 {
		t.Errorf("the spool has %v", r.spooled())
	}
}

func TestWaitsEndAndWorkGoesOn(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	gate := make(chan struct{})
	r.Crash(func(step string) {
		if step == "copying" {
			<-gate
		}
	})
	in := r.exportIn("f", "r1")
	in.WaitMs = new(0)
	out, err := r.ExportDirectFile(t.Context(), r.who, in)
	if err != nil {
		t.Fatal(err)
	}
	r.is(out, transfers.Pending)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := r.ExportDirectFile(ctx, r.who, r.exportIn("f", "r1"))
		waiting <- err
	}()
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled wait: %v", err)
	}
	in.WaitMs = new(20)
	if out, err = r.ExportDirectFile(t.Context(), r.who, in); err != nil || out.State != transfers.Pending || !out.Duplicate {
		t.Errorf("%+v, %v", out, err)
	}
	close(gate)
	r.becomes("r1", transfers.Ready)
}

func TestNoSecretIsStoredOrLogged(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", "content")
	link := r.export("f", "r1").DownloadURL
	fetch(t, "GET", link)
	fetch(t, "GET", link+"x")
	r.becomes("r1", transfers.Completed)
	r.close()
	u, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	ticket := strings.Split(u.Path, "/")[2]
	for _, name := range []string{"gateway.db", "gateway.db-wal"} {
		raw, err := os.ReadFile(r.dir + "/state/" + name)
		if err == nil && strings.Contains(string(raw), ticket) {
			t.Errorf("%s has the ticket", name)
		}
	}
	if log := r.log.String(); strings.Contains(log, ticket) || !strings.Contains(log, "a download ended") || !strings.Contains(log, "a download was refused") {
		t.Errorf("the log is %s", log)
	}
	r.open()
}

// summed is content with the hash that it was sent with.
type summed struct {
	io.ReadCloser
	sum string
}

func (s summed) SHA256() string { return s.sum }

// What arrives otherwise than it was sent is not given to anybody.
func TestExportThatWasChangedOnItsWay(t *testing.T) {
	r := newRig(t, transfers.Options{})
	r.write("f", oldContent)
	sum := hashText(oldContent)
	r.host.content = func(c io.ReadCloser) io.ReadCloser { return summed{c, sum} }
	r.is(r.export("f", "r1"), transfers.Ready)
	sum = hashText(newContent)
	r.is(r.export("f", "r2"), transfers.Failed, "transfer_corrupted")
}
