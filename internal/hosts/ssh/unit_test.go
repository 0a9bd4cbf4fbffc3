package ssh

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func testScope() scope {
	return scope{
		getenv: func(name string) string { return map[string]string{"FOO": "/foo", "PCT": "%h"}[name] },
		home:   "/home/you", localUser: "you", localID: "1000", localHost: "here.example.com",
		alias: "box", host: "box.example.net", user: "them", port: 2222, jump: "hop",
	}
}

func TestTokens(t *testing.T) {
	sum := sha1.Sum([]byte("here.example.com" + "box.example.net" + "2222" + "them" + "hop"))
	alias := testScope()
	alias.keyAlias = "key-name"
	for _, tt := range []struct {
		in, want string
		s        scope
	}{
		{"%%", "%", testScope()},
		{"%C", hex.EncodeToString(sum[:]), testScope()},
		{"%d", "/home/you", testScope()},
		{"%h", "box.example.net", testScope()},
		{"%i", "1000", testScope()},
		{"%j", "hop", testScope()},
		{"%k", "box", testScope()},
		{"%k", "key-name", alias},
		{"%L", "here", testScope()},
		{"%l", "here.example.com", testScope()},
		{"%n", "box", testScope()},
		{"%p", "2222", testScope()},
		{"%r", "them", testScope()},
		{"%u", "you", testScope()},
		{"~", "/home/you", testScope()},
		{"~/.ssh/id", "/home/you/.ssh/id", testScope()},
		{"~root/id", "/root/id", testScope()},
		{"${FOO}/id", "/foo/id", testScope()},
		{"$FOO/id", "$FOO/id", testScope()},
		{"a~b%%h", "a~b%h", testScope()},
		{"${PCT}", "%h", testScope()}, // what a variable holds is not filled in again
		{"~/keys of %r@%h:%p", "/home/you/keys of them@box.example.net:2222", testScope()},
		{"plain", "plain", testScope()},
	} {
		if got, err := tt.s.file(tt.in); got != tt.want || err != nil {
			t.Errorf("%q is %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
	for in, problem := range map[string]string{
		"%": "begins none of the tokens", "%H": "begins none", "a%": "begins none", "${NONE}": "NONE is not set", "${FOO": "without a name", "${}": "without a name",
		"~nobody-like-this/x": "no user",
	} {
		if got, err := testScope().file(in); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%q is %q, %v; want an error with %q", in, got, err, problem)
		}
	}
	if got, err := testScope().expand("nc %h %p ${FOO} %n %r %k %%", commandTokens, false); got != "nc box.example.net 2222 ${FOO} box them box %" || err != nil {
		t.Errorf("a command is %q, %v", got, err)
	}
	if _, err := testScope().expand("%d", commandTokens, false); err == nil {
		t.Error("a command takes the tokens of files")
	}
}

// ssh -G of a real OpenSSH, with what it leaves unexpanded, filled in.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	spaced := filepath.Join(dir, "with space")
	if err := os.WriteFile(spaced, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	write := func(s string) {
		if err := os.WriteFile(config, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`Host box
  HostName %h.example.net
  User them
  Port 2200
  IdentityFile ~/.ssh/id_%h_%r
  IdentityFile "%d/with space"
  IdentityFile ${FOO}/k
  IdentityFile ${NOT_SET}/k
  IdentityFile none
  CertificateFile ~/cert-%n
  IdentityAgent $AGENT
  UserKnownHostsFile ` + dir + `/one "` + spaced + `" ` + dir + `/two
  GlobalKnownHostsFile /etc/a /etc/b
  ProxyCommand nc %h %p %%
  HostKeyAlias al_%h
  ServerAliveInterval 5
  ServerAliveCountMax 2
  ConnectTimeout 3
  AddressFamily inet6
  BindAddress ::1
  IdentitiesOnly yes
  HashKnownHosts yes
  Ciphers aes128-ctr,aes256-ctr
`)
	h := New(Options{Target: "ssh://box", ConfigFile: config, Home: "/home/you", Getenv: func(name string) string {
		return map[string]string{"FOO": "/foo", "AGENT": "/run/agent"}[name]
	}})
	s, err := h.resolve(t.Context(), spec{host: "box", port: 99, user: "me"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"address", s.address(), "box.example.net:99"}, {"user", s.user, "me"}, {"alias", s.knownName(), "al_%h:22"},
		{"identities", s.identityFiles, []string{"/home/you/.ssh/id_box.example.net_me", "/home/you/with space", "/foo/k"}},
		{"certificates", s.certificateFiles, []string{"/home/you/cert-box"}},
		{"agent", s.agent, "/run/agent"},
		{"known hosts", s.userKnownHosts, []string{dir + "/one", spaced, dir + "/two"}}, {"global known hosts", s.globalKnownHosts, []string{"/etc/a", "/etc/b"}},
		{"proxy command", s.proxyCommand, "nc box.example.net 99 %"},
		{"network", s.network + " " + s.bindAddress, "tcp6 ::1"},
		{"times", []time.Duration{s.connectTimeout, s.aliveInterval}, []time.Duration{3 * time.Second, 5 * time.Second}},
		{"count", s.aliveCount, 2}, {"identities only", s.identitiesOnly, true}, {"hash", s.hashKnownHosts, true},
		{"ciphers", s.ciphers, []string{"aes128-ctr", "aes256-ctr"}},
		{"notes", len(s.notes), 1},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s:\n%s", c.name, d)
		}
	}
	if !strings.Contains(s.notes[0].text, "NOT_SET is not set") {
		t.Errorf("the note is %q", s.notes[0].text)
	}
	if interval, count := h.keepalive(s); interval != 5*time.Second || count != 2 {
		t.Errorf("the host is asked every %v, %d times", interval, count)
	}

	write("Host box\n  IdentityAgent none\n  ProxyJump me@hop:22,[::1]:33\n  UserKnownHostsFile none\n  ServerAliveInterval 600\n")
	if s, err = h.resolve(t.Context(), spec{host: "box"}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]spec{{"me", "hop", 22}, {"", "::1", 33}}, s.jumps, cmp.AllowUnexported(spec{})); d != "" {
		t.Error(d)
	}
	if s.agent != "" || s.userKnownHosts != nil || s.proxyCommand != "" || s.address() != "box:22" {
		t.Errorf("got %+v", s)
	}
	if interval, _ := h.keepalive(s); interval != DefaultKeepaliveInterval {
		t.Errorf("a longer interval of the settings is followed: %v", interval)
	}
	if s, err = h.resolve(t.Context(), spec{host: "::1", port: 22}); err != nil || s.address() != "[::1]:22" || s.knownName() != "[::1]:22" {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestResolvingEnds(t *testing.T) {
	dir := t.TempDir()
	slow := filepath.Join(dir, "ssh")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\necho busy >&2\nsleep 600 & wait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := New(Options{Target: "ssh://box", Command: slow})
	h.resolveTimeout = 100 * time.Millisecond
	begun := time.Now()
	if _, err := h.resolve(t.Context(), spec{host: "box"}); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("got %v", err)
	}
	if d := time.Since(begun); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	h = New(Options{Target: "ssh://box", Command: filepath.Join(dir, "none")})
	if _, err := h.resolve(t.Context(), spec{host: "box"}); err == nil {
		t.Error("a command that isn't there is passed over")
	}
}

func TestJumpsThatAreNone(t *testing.T) {
	for _, s := range []string{"", ",", "a,", "@a", "a:0", "a:x", "a:65536", "-x", "-u@a", "a b", "[::1", "u@", "ssh://", "a/b", "[::1]:0"} {
		if jumps, err := parseJumps(s); err == nil {
			t.Errorf("%q is %v", s, jumps)
		}
	}
	for s, want := range map[string]spec{
		"a": {"", "a", 0}, "u@a": {"u", "a", 0}, "u@v@a:1": {"u@v", "a", 1}, "[::1]": {"", "::1", 0}, "::1": {"", "::1", 0}, "ssh://u@[::1]:2": {"u", "::1", 2}, "ssh://a_b/": {"", "a_b", 0},
	} {
		if jumps, err := parseJumps(s); err != nil || len(jumps) != 1 || jumps[0] != want {
			t.Errorf("%q is %v, %v; want %v", s, jumps, err, want)
		}
	}
}

// Every byte string without NUL comes back, through every shell that may be
// somebody's login shell.
func TestShell(t *testing.T) {
	for _, shell := range []string{"sh", "bash", "fish", "csh", "tcsh"} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Fatalf("%v: scripts/test installs it", err)
			}
			run := func(command string) string {
				cmd := exec.Command(path, "-c", command)
				cmd.Env = []string{"HOME=/nonexistent", "PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
				out, _ := cmd.CombinedOutput() // what it printed says it
				return string(out)
			}
			rapid.Check(t, func(t *rapid.T) {
				args := rapid.SliceOfN(rapid.OneOf(
					rapid.StringOfN(rapid.RuneFrom([]rune("'\"\\!$`^~*?[]{}()<>|&;# \n\t=%a")), 0, 20, -1),
					rapid.Map(rapid.SliceOfN(rapid.ByteRange(1, 255), 0, 40), func(b []byte) string { return string(b) }),
				), 1, 3).Draw(t, "arguments")
				if got, want := run(Shell(`printf '%s|' "$@"`, args...)), strings.Join(args, "|")+"|"; got != want {
					t.Fatalf("got %q, want %q, from %s", got, want, Shell(`printf '%s|' "$@"`, args...))
				}
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Target: "ssh://box", BackoffMin: time.Millisecond, BackoffMax: 4 * time.Millisecond, Rand: rapid.Just(func() float64 { return 1 }).Draw(t, "rand")}
		failed := rapid.IntRange(0, 1<<30).Draw(t, "failed")
		begun := time.Now()
		New(o).pause(t.Context(), failed, nil)
		least := min(4*time.Millisecond, time.Millisecond<<min(failed, 2))
		if d := time.Since(begun); d < least {
			t.Fatalf("after %d failures it waits %v, not %v", failed, d, least)
		}
	})
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte("hostname x\nport 22\nproxyjump a,b:3\nidentityfile ~/%h\nuserknownhostsfile /a b /c\n"))
	f.Add([]byte("proxycommand %h %\nuser %u\nidentityagent $X\nconnecttimeout -1\n"))
	f.Add([]byte("HOSTNAME\r\n\x00 \nport 99999999999999999999\n"))
	h := New(Options{Target: "ssh://box", Home: "/home/you", Getenv: func(string) string { return "" }})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := h.settings(spec{host: "box"}, parseSettings(raw))
		if err != nil {
			return
		}
		if s.port < 1 || s.port > 65535 || s.host == "" || s.connectTimeout < 0 {
			t.Errorf("%q gives %+v", raw, s)
		}
		for _, j := range s.jumps {
			if j.host == "" || j.host[0] == '-' || j.port < 0 || j.port > 65535 {
				t.Errorf("%q gives the jump %+v", raw, j)
			}
		}
	})
}

func FuzzTokens(f *testing.F) {
	for _, s := range []string{"%h%%", "~/x", "${FOO}", "%", "${", "~root", "%C%C"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out, err := testScope().expand(in, fileTokens, true)
		if err != nil {
			return
		}
		if !strings.ContainsAny(in, "%$") && out != in {
			t.Errorf("%q became %q", in, out)
		}
		if again, err := testScope().expand(strings.ReplaceAll(in, "%%", ""), fileTokens, true); err == nil && strings.Contains(again, "%") && !strings.Contains(in, "${PCT}") {
			t.Errorf("%q leaves a %% in %q", in, again)
		}
	})
}

func FuzzKnownHostsLine(f *testing.F) {
	f.Add([]byte("a,b ssh-ed25519 AAAA\n"))
	f.Add([]byte("|1|AAAA|BBBB ssh-ed25519 AAAA"))
	f.Add([]byte("@revoked a ssh-ed25519 AAAA"))
	f.Fuzz(func(t *testing.T, line []byte) {
		got := without(slices.Clone(line), "a:22")
		if got != nil && len(got) > len(line) {
			t.Errorf("%q became %q", line, got)
		}
		if !bytes.Contains(bytes.ToLower(line), []byte("a")) && !bytes.Contains(line, []byte("|")) && utf8.Valid(line) && !bytes.Equal(got, line) {
			t.Errorf("%q, which is not about the host, became %q", line, got)
		}
	})
}
