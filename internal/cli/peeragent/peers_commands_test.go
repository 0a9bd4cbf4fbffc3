package peeragent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/channel/capability"
)

const anyUUID = "b0bd3f0e-08d7-4bf6-9764-58e8ef83f85a"

// place is a state directory with the program and a capability in it.
type place struct {
	t   *testing.T
	dir string
	key string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreCurrent()) })
	dir, err := os.MkdirTemp("", "pa") // short: a socket lies in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &place{t: t, dir: dir}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o700), os.WriteFile(p.exe(), nil, 0o700)); err != nil {
		t.Fatal(err)
	}
	f, err := capability.New("builder", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := capability.Write(dir, f); err != nil {
		t.Fatal(err)
	}
	p.key = f.Key
	return p
}

func (p *place) exe() string    { return filepath.Join(p.dir, "bin", "peer-agent") }
func (p *place) socket() string { return filepath.Join(p.dir, capability.Socket) }

// serve answers on the channel's socket until the test ends.
func (p *place) serve(h http.HandlerFunc) {
	p.t.Helper()
	l, err := net.Listen("unix", p.socket())
	if err != nil {
		p.t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	p.t.Cleanup(func() { s.Close(); <-done })
}

// result is what an agent sees of a command.
type result struct {
	code           int
	stdout, stderr string
}

func (p *place) run(stdin io.Reader, args ...string) result {
	p.t.Helper()
	return p.runAs(map[string]string{agentVariable: "builder"}, p.exe(), stdin, args...)
}

func (p *place) runAs(env map[string]string, exe string, stdin io.Reader, args ...string) result {
	p.t.Helper()
	if stdin == nil {
		stdin = strings.NewReader("")
	}
	var stdout, stderr bytes.Buffer
	code := Run(p.t.Context(), Env{
		Args: args, Getenv: func(name string) string { return env[name] }, Stdin: stdin, Stdout: &stdout, Stderr: &stderr, Now: time.Now,
		Executable: func() (string, error) { return exe, nil }, Rand: rand.Reader,
	})
	r := result{code, stdout.String(), stderr.String()}
	if strings.Contains(r.stdout+r.stderr, p.key) {
		p.t.Errorf("%v shows the key", args)
	}
	return r
}

// failure reads the one line of a failed command.
func (r result) failure(t *testing.T) (code, messageID string) {
	t.Helper()
	var out struct {
		Error     struct{ Code, Message, Hint string }
		MessageID string
	}
	if strings.Count(r.stdout, "\n") != 1 || json.Unmarshal([]byte(r.stdout), &out) != nil || out.Error.Message == "" || out.Error.Hint == "" || r.stderr != "" {
		t.Errorf("exit code %d, out %q, err %q", r.code, r.stdout, r.stderr)
	}
	return out.Error.Code, out.MessageID
}

// answers is a channel that has the agent registered, keeps what it is sent, and
// answers it.
type answers struct {
	mu   sync.Mutex
	sent []string // route and body
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	a.sent = append(a.sent, strings.TrimSpace(strings.TrimPrefix(r.URL.Path, "/v1/")+" "+string(body)))
	a.mu.Unlock()
	if r.URL.Path == "/v1/self" {
		io.WriteString(w, `{"hostId":"local","agentId":"builder","peerId":"own","peers":[]}`)
		return
	}
	io.WriteString(w, "{\n  \"ok\": true\n}")
}

func (a *answers) last() string { return a.sent[len(a.sent)-1] }

func TestCommandsSayWhatTheyShould(t *testing.T) {
	p, a := newPlace(t), &answers{}
	p.serve(a.ServeHTTP)
	const upper = "B0BD3F0E-08D7-4BF6-9764-58E8EF83F85A"
	for _, c := range []struct {
		args, stdin, want string
	}{
		{"register", "", `register_peer {"peerId":"own"}`},
		{"register --peer builder --name <Builder>", "", `register_peer {"displayName":"<Builder>","peerId":"builder"}`},
		{"peers", "", `list_peers {"includeStopped":false,"limit":200}`},
		{"peers --all --cursor abc", "", `list_peers {"cursor":"abc","includeStopped":true,"limit":200}`},
		{"send --to chat --message-id " + upper + " --text hi", "", `send_peer_message {"fromPeerId":"own","messageId":"` + anyUUID + `","text":"hi","toPeerId":"chat"}`},
		{"send --to chat --message-id " + anyUUID + " --reply-to " + upper, "für\ndich\r\n", `send_peer_message {"fromPeerId":"own","inReplyTo":"` + anyUUID + `","messageId":"` + anyUUID + `","text":"für\ndich","toPeerId":"chat"}`},
		{"inbox", "", `list_peer_messages {"includeProcessed":false,"limit":50,"peerId":"own","waitMs":0}`},
		{"inbox --all --limit 7 --thread " + upper, "", `list_peer_messages {"includeProcessed":true,"limit":7,"peerId":"own","threadId":"` + anyUUID + `","waitMs":0}`},
		{"read " + upper, "", `get_peer_message {"messageId":"` + anyUUID + `","peerId":"own"}`},
		{"ack " + anyUUID, "", `ack_peer_message {"messageId":"` + anyUUID + `","peerId":"own"}`},
		{"stop", "", `stop_peer {"peerId":"own"}`},
		{"message --request-id fix --message-id " + anyUUID, "half\n\n", `message {"kind":"message","messageId":"` + anyUUID + `","requestId":"fix","text":"half\n"}`},
		{"message --request-id fix --kind needs_input --message-id " + anyUUID + " --text which?", "", `message {"kind":"needs_input","messageId":"` + anyUUID + `","requestId":"fix","text":"which?"}`},
	} {
		r := p.run(strings.NewReader(c.stdin), strings.Fields(c.args)...)
		if r.code != ExitOK || r.stdout != "{\"ok\":true}\n" || r.stderr != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
		if a.last() != c.want {
			t.Errorf("%s sent\n%s, want\n%s", c.args, a.last(), c.want)
		}
	}
	if r := p.run(nil, "send", "--to", "chat", "--text", "a"); r.code != ExitOK {
		t.Errorf("%+v", r)
	}
	first := a.last()
	p.run(nil, "send", "--to", "chat", "--text", "a")
	if a.last() == first {
		t.Errorf("two messages have one id: %s", first)
	}
}

func TestBadUsage(t *testing.T) {
	p, a := newPlace(t), &answers{}
	p.serve(a.ServeHTTP)
	const secret = "Sesame"
	for _, c := range []struct {
		stdin string
		args  []string
	}{
		{"", []string{"send", "--text", secret}},
		{"", []string{"send", "--to", "chat"}},
		{"\n", []string{"send", "--to", "chat"}},
		{"", []string{"send", "--to", "chat", "--text", ""}},
		{"a\xffb" + secret, []string{"send", "--to", "chat"}},
		{strings.Repeat("é", 8193) + secret, []string{"send", "--to", "chat"}},
		{strings.Repeat("x", 70000) + secret, []string{"send", "--to", "chat"}},
		{"", []string{"send", "--to", "chat", "--text", secret, "--message-id", secret}},
		{"", []string{"send", "--to", "chat", "--text", secret, "--reply-to", secret}},
		{"", []string{"send", "--to", "chat", secret}},
		{"", []string{"send", "--too", secret}},
		{"", []string{"send", "--agent-id=" + secret}},
		{"", []string{"send", "-" + secret}},
		{"", []string{"inbox", "--wait", secret}},
		{"", []string{"inbox", "--wait", "-1"}},
		{"", []string{"inbox", "--wait", "601"}},
		{"", []string{"inbox", "--limit", "201"}},
		{"", []string{"inbox", "--socket", "/tmp/x"}},
		{"", []string{"read"}},
		{"", []string{"read", secret}},
		{"", []string{"ack", anyUUID, anyUUID}},
		{"", []string{"message", "--text", secret}},
		{"", []string{"message", "--request-id", "r", "--kind", secret, "--text", secret}},
	} {
		r := p.run(strings.NewReader(c.stdin), c.args...)
		if code, _ := r.failure(t); r.code != ExitUsage || code != "invalid_usage" {
			t.Errorf("%q: %+v", c.args, r)
		}
		if strings.Contains(r.stdout, secret) {
			t.Errorf("%q repeats what it was given: %s", c.args, r.stdout)
		}
	}
	for _, env := range []map[string]string{{}, {agentVariable: "../x"}} {
		if r := p.runAs(env, p.exe(), nil, "peers"); r.code != ExitUsage {
			t.Errorf("%v: %+v", env, r)
		}
	}
	if len(a.sent) != 0 {
		t.Errorf("sent %q", a.sent)
	}
}

func TestTextOfPipesComesWhole(t *testing.T) {
	p, a := newPlace(t), &answers{}
	p.serve(a.ServeHTTP)
	text := strings.Repeat("😀", 8192)
	in, out := io.Pipe()
	go func() {
		for i := range len(text) {
			if _, err := out.Write([]byte{text[i]}); err != nil {
				return
			}
			if i > 64 { // the rest at once: the point is made
				io.WriteString(out, text[i+1:])
				break
			}
		}
		out.Close()
	}()
	if r := p.run(in, "send", "--to", "chat"); r.code != ExitOK || !strings.Contains(a.last(), `"text":"`+text+`"`) {
		t.Errorf("%+v", r)
	}
}

func TestRefusalsAreShown(t *testing.T) {
	p := newPlace(t)
	p.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/self" {
			io.WriteString(w, `{"peers":[]}`)
			return
		}
		w.WriteHeader(http.StatusUnprocessableEntity)
		io.WriteString(w, `{"error":{"code":"peer_stopped","message":"It was stopped.","hint":"Ask.","retryable":false,"id":"abc"}}`)
	})
	r := p.run(nil, "message", "--request-id", "r", "--message-id", anyUUID, "--text", "Sesame")
	want := `{"error":{"code":"peer_stopped","message":"It was stopped.","hint":"Ask.","retryable":false,"id":"abc"},"messageId":"` + anyUUID + `"}` + "\n"
	if r.code != ExitFailed || r.stdout != want {
		t.Errorf("%+v", r)
	}
	if code, _ := p.run(nil, "inbox").failure(t); code != "not_registered" {
		t.Errorf("an agent without a peer: %s", code)
	}
}

// TestLostAnswers: what was sent is not sent again, and the id is told.
func TestLostAnswers(t *testing.T) {
	for name, lose := range map[string]func(http.ResponseWriter){
		"cut":       func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"half":      func(w http.ResponseWriter) { w.Header().Set("Content-Length", "100"); io.WriteString(w, `{"message"`) },
		"no JSON":   func(w http.ResponseWriter) { io.WriteString(w, "hello") },
		"a gateway": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway); io.WriteString(w, "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			p, posts := newPlace(t), &atomic.Int64{}
			p.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/self" {
					io.WriteString(w, `{"peerId":"own"}`)
					return
				}
				io.Copy(io.Discard, r.Body)
				posts.Add(1)
				lose(w)
			})
			r := p.run(nil, "send", "--to", "chat", "--text", "Sesame")
			code, id := r.failure(t)
			if r.code != ExitFailed || code != "outcome_unknown" || !capability.IsUUID(id) || posts.Load() != 1 {
				t.Errorf("%d requests, %+v", posts.Load(), r)
			}
			if strings.Contains(r.stdout, "Sesame") {
				t.Errorf("the text is in %s", r.stdout)
			}
			if code, _ := p.run(nil, "read", anyUUID).failure(t); code != "no_answer" {
				t.Errorf("a lost read: %s", code)
			}
		})
	}
}

func TestChannelThatComesUpIsWaitedFor(t *testing.T) {
	p, a := newPlace(t), &answers{}
	if err := capability.Remove(p.dir, "builder"); err != nil {
		t.Fatal(err)
	}
	// A stale socket, as a killed gateway leaves it.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	done := make(chan result, 1)
	go func() { done <- p.run(nil, "send", "--to", "chat", "--text", "x", "--message-id", anyUUID) }()
	time.Sleep(200 * time.Millisecond)
	if err := capability.Write(p.dir, capability.File{Version: 1, AgentID: "builder", Key: p.key}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := os.Remove(p.socket()); err != nil {
		t.Fatal(err)
	}
	p.serve(a.ServeHTTP)
	if r := <-done; r.code != ExitOK || len(a.sent) != 2 {
		t.Errorf("%+v, sent %q", r, a.sent)
	}
}

func TestChannelThatIsNotThere(t *testing.T) {
	p := newPlace(t)
	begun := time.Now()
	r := p.run(nil, "send", "--to", "chat", "--text", "Sesame", "--message-id", anyUUID)
	if took := time.Since(begun); took < 2500*time.Millisecond || took > 6*time.Second {
		t.Errorf("it took %v", took)
	}
	if code, id := r.failure(t); r.code != ExitFailed || code != "channel_not_ready" || id != anyUUID {
		t.Errorf("%+v", r)
	}
	if err := os.Chmod(filepath.Join(p.dir, capability.Name("builder")), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.run(nil, "peers").failure(t); code != "capability_unsafe" {
		t.Error(code)
	}
	if code, _ := p.runAs(map[string]string{agentVariable: "builder"}, "/bin/sh", nil, "peers").failure(t); code == "" {
		t.Error("a program somewhere else works")
	}
	elsewhere := filepath.Join(t.TempDir(), "peer-agent")
	if err := os.WriteFile(elsewhere, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.runAs(map[string]string{agentVariable: "builder"}, elsewhere, nil, "peers").failure(t); code != "not_installed" {
		t.Error(code)
	}
}

// TestLinkToTheProgram: a link to it is the program that it leads to.
func TestLinkToTheProgram(t *testing.T) {
	p, a := newPlace(t), &answers{}
	p.serve(a.ServeHTTP)
	link := filepath.Join(t.TempDir(), "peer-agent")
	if err := os.Symlink(p.exe(), link); err != nil {
		t.Fatal(err)
	}
	if r := p.runAs(map[string]string{agentVariable: "builder"}, link, nil, "peers"); r.code != ExitOK {
		t.Errorf("%+v", r)
	}
}

// TestWaitOutlivesARestart: a wait goes on when the gateway comes back.
func TestWaitOutlivesARestart(t *testing.T) {
	p := newPlace(t)
	var lists atomic.Int64
	p.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/self" {
			io.WriteString(w, `{"peerId":"own"}`)
			return
		}
		switch lists.Add(1) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			io.WriteString(w, `{"messages":[]}`)
		default:
			io.WriteString(w, `{"messages":[{"messageId":"x"}]}`)
		}
	})
	if r := p.run(nil, "inbox", "--wait", "10"); r.code != ExitOK || !strings.Contains(r.stdout, `"x"`) || lists.Load() != 3 {
		t.Errorf("%d lists, %+v", lists.Load(), r)
	}
}

func TestEndedWhileWaiting(t *testing.T) {
	p := newPlace(t)
	held := make(chan struct{})
	p.serve(func(w http.ResponseWriter, r *http.Request) {
		close(held)
		<-r.Context().Done()
	})
	ctx, stop := context.WithCancel(t.Context())
	go func() { <-held; stop() }()
	var stdout bytes.Buffer
	code := Run(ctx, Env{Args: []string{"peers"}, Getenv: func(string) string { return "builder" }, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: io.Discard,
		Executable: func() (string, error) { return p.exe(), nil }, Rand: rand.Reader})
	if code != ExitFailed || strings.Count(stdout.String(), "\n") != 1 {
		t.Errorf("%d, %q", code, &stdout)
	}
}

func TestHelpReadsWell(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"register", "peers", "send", "inbox", "read", "ack", "stop", "message"} {
		r := p.run(nil, name, "--help")
		if r.code != ExitOK || !strings.Contains(r.stdout, "Examples:") || r.stderr != "" {
			t.Errorf("%s: %+v", name, r)
		}
		for _, line := range strings.Split(r.stdout, "\n") {
			if len([]rune(line)) > 100 {
				t.Errorf("%s: a line has %d characters: %s", name, len([]rune(line)), line)
			}
		}
	}
	if r := p.run(nil, "--help"); !strings.Contains(r.stdout, "inbox") {
		t.Errorf("%+v", r)
	}
}
