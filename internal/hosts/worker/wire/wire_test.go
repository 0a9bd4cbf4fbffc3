package wire_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts/worker/wire"
)

// FuzzReadAnswer has a shell print anything before a worker speaks.
func FuzzReadAnswer(f *testing.F) {
	for _, noise := range []string{
		"", "Welcome\n", "Last login: today\r\nno line end", "agent-relay-worker 0 {}\n", "agent-relay-worker n {\n", "\x00\xff\n\n\n",
		strings.Repeat("x", 70_000), "\nagent-relay-worker other {\"protocol\":9}\n",
	} {
		f.Add([]byte(noise))
	}
	f.Fuzz(func(t *testing.T, noise []byte) {
		const nonce = "0123456789abcdef01234567"
		if bytes.Contains(noise, []byte(nonce)) {
			return
		}
		var b bytes.Buffer
		b.Write(noise)
		if err := wire.WriteAnswer(&b, nonce, wire.Reply{Protocol: 1, Version: "v", Bulk: "/s"}); err != nil {
			t.Fatal(err)
		}
		b.WriteString("{\"jsonrpc\"")
		r := bufio.NewReaderSize(&b, 64)
		var got wire.Reply
		err := wire.ReadAnswer(r, nonce, &got)
		if len(noise) > wire.MaxNoise-1000 {
			return
		}
		if err != nil || got != (wire.Reply{Protocol: 1, Version: "v", Bulk: "/s"}) {
			t.Fatalf("%+v, %v", got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "{\"jsonrpc\"" {
			t.Fatalf("what follows became %q", rest)
		}
	})
}

// endless never says anything.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func TestNoWorker(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"nothing":  strings.NewReader(""),
		"banner":   strings.NewReader("Welcome\n"),
		"cut off":  strings.NewReader("agent-relay-worker n {\"protocol\":1}"),
		"one line": endless{},
		"lines":    repeated("line\n"),
	} {
		var got wire.Reply
		if err := wire.ReadAnswer(bufio.NewReader(r), "n", &got); !errors.Is(err, wire.ErrNoWorker) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type repeated string

func (r repeated) Read(b []byte) (int, error) { return copy(b, r), nil }

func TestHello(t *testing.T) {
	var b bytes.Buffer
	h := wire.Hello{Protocol: 1, Nonce: "n", Gateway: "v", StateDir: "/s", Settings: wire.Settings{
		Policy:   direct.Policy{HostID: "far", Projects: []direct.Project{{ID: "p", Path: "/p", Read: true}}, AllowedRoots: []string{"/"}},
		Commands: wire.Commands{Path: "/bin", KeepDays: 3},
	}}
	if err := wire.WriteHello(&b, h); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(b.Bytes(), []byte("\n")); n != 1 {
		t.Fatalf("%d lines", n)
	}
	got, err := wire.ReadHello(bufio.NewReader(&b))
	if err != nil {
		t.Fatal(err)
	}
	was, _ := json.Marshal(h)
	is, _ := json.Marshal(got)
	if string(was) != string(is) {
		t.Errorf("%s became %s", was, is)
	}
}

func FuzzReadHello(f *testing.F) {
	f.Add([]byte("{}\n"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte(`{"protocol":1,"settings":{"projects":null}}` + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := wire.ReadHello(bufio.NewReader(bytes.NewReader(raw)))
		if err == nil {
			_ = h.Settings.Check()
			h.Settings.Expand("/home/me")
		}
	})
}

// What is sent arrives, however it is cut; what is cut off never ends.
func TestContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(t, "content")
		var b bytes.Buffer
		w := wire.NewWriter(&b)
		var from io.Reader = bytes.NewReader(content)
		if rapid.Bool().Draw(t, "slow") {
			from = iotest.OneByteReader(from)
		}
		if n, err := w.ReadFrom(from); err != nil || n != int64(len(content)) {
			t.Fatal(n, err)
		}
		if err := w.End(wire.Trailer{SHA256: "abc"}); err != nil {
			t.Fatal(err)
		}
		whole := b.Bytes()
		r := wire.NewReader(bufio.NewReaderSize(bytes.NewReader(whole), 16))
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) || r.Trailer.SHA256 != "abc" {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		cut := rapid.IntRange(0, len(whole)-1).Draw(t, "cut")
		got, err := io.ReadAll(wire.NewReader(bufio.NewReader(bytes.NewReader(whole[:cut]))))
		if !errors.Is(err, wire.ErrCutOff) || !bytes.HasPrefix(content, got) {
			t.Fatalf("cut at %d: %d bytes, %v", cut, len(got), err)
		}
	})
}

func FuzzContent(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02ab\x00\x00\x00\x00{}\n"))
	f.Add([]byte("\x00\x00\x00\x00{\"error\":{\"code\":\"file_changed\"}}\n"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := io.ReadAll(wire.NewReader(bufio.NewReader(bytes.NewReader(raw))))
		if len(got) > len(raw) {
			t.Fatal("more came out than went in")
		}
		if err == nil && !bytes.Contains(raw, []byte("\x00\x00\x00\x00")) {
			t.Fatal("it ended without an end")
		}
	})
}

// Errors keep what callers and the gateway act on, and nothing else.
func TestFailures(t *testing.T) {
	refused := direct.FileChanged.New("The file was changed.").WithHint("Read it again.").Because(errors.New("/secret/path"))
	raw, err := json.Marshal(wire.FailureOf(refused))
	if err != nil || bytes.Contains(raw, []byte("secret")) {
		t.Fatalf("%s, %v", raw, err)
	}
	var f wire.Failure
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	var got *fault.Error
	if !errors.As(f.Err(), &got) || got.Code != "file_changed" || got.Message != refused.Message || got.Hint != refused.Hint || got.Retryable != refused.Retryable {
		t.Errorf("%#v", got)
	}
	for _, sentinel := range []error{transfers.ErrWithdrawn, transfers.ErrUnsettled, transfers.ErrBusy} {
		if err := wire.FailureOf(errors.Join(sentinel, errors.New("why"))).Err(); !errors.Is(err, sentinel) {
			t.Errorf("%v became %v", sentinel, err)
		}
	}
	for _, f := range []wire.Failure{{}, {Code: "Not a code"}, {Code: strings.Repeat("c", 65)}, {Code: "file_changed", Message: strings.Repeat("m", 1<<20)}, {Code: "file_changed", Hint: strings.Repeat("h", 1<<20)}} {
		if err := f.Err(); errors.As(err, &got) {
			t.Errorf("%.80q is a refusal", got.Code)
		}
	}
	if e := wire.FailureOf(errors.New("/secret/path")); e.Code != fault.Internal.Code || strings.Contains(e.Message, "secret") {
		t.Errorf("%+v", e)
	}
}

func TestSettings(t *testing.T) {
	s := wire.Settings{Policy: direct.Policy{
		HostID:       "far",
		Projects:     []direct.Project{{ID: "a", Path: "~/a"}, {ID: "b", Path: "$HOME"}, {ID: "c", Path: "/c"}},
		AllowedRoots: []string{"~"}, Protected: []string{"$HOME/.ssh"},
	}}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	s.Expand("/home/me")
	got := strings.Join([]string{s.Projects[0].Path, s.Projects[1].Path, s.Projects[2].Path, s.AllowedRoots[0], s.Protected[0]}, " ")
	if got != "/home/me/a /home/me /c /home/me /home/me/.ssh" {
		t.Error(got)
	}
	if s.Projects[0].Name != "a" || s.Projects[0].CommandMode != direct.Disabled {
		t.Errorf("%+v", s.Projects[0])
	}
	for want, bad := range map[string]wire.Settings{
		"hostId must be":                  {},
		"projects[0].path must be":        {Policy: direct.Policy{HostID: "h", Projects: []direct.Project{{ID: "a", Path: "a"}}}},
		"projects[1].id is there twice":   {Policy: direct.Policy{HostID: "h", Projects: []direct.Project{{ID: "a", Path: "/a"}, {ID: "a", Path: "/b"}}}},
		"projects[0].id must be":          {Policy: direct.Policy{HostID: "h", Projects: []direct.Project{{ID: "../a", Path: "/a"}}}},
		"projects[0].commandMode must be": {Policy: direct.Policy{HostID: "h", Projects: []direct.Project{{ID: "a", Path: "/a", CommandMode: "some"}}}},
		"projects[0].commands[0] must":    {Policy: direct.Policy{HostID: "h", Projects: []direct.Project{{ID: "a", Path: "/a", Commands: []direct.Command{{Name: "x"}}}}}},
		"allowedRoots[0] must be":         {Policy: direct.Policy{HostID: "h", AllowedRoots: []string{"~other/x"}}},
		"no limit in commands":            {Policy: direct.Policy{HostID: "h"}, Commands: wire.Commands{KeepDays: -1}},
	} {
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
