package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

func TestLogins(t *testing.T) {
	// Each case says how a client's key gets it in.
	for _, tt := range []struct {
		name string
		with func(*sshd.Client, *sshd.Server)
	}{
		{"a key in the agent", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			c.Agent(k)
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s))
		}},
		{"an encrypted key whose agent holds it", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "secret")
			c.Agent(c.Key("other", ""), k)
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityFile "+k.File, "IdentitiesOnly yes"))
		}},
		{"a public key whose private half the agent holds", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			c.Agent(c.Key("other", ""), k)
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityFile "+k.File+".pub", "IdentitiesOnly yes"))
		}},
		{"a key file", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityFile "+k.File))
		}},
		{"a key file in a name with tokens", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id of box-127.0.0.1", "")
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, `IdentityFile "~/id of %n-%h"`))
		}},
		{"a key file in a directory of the environment", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityFile ${RELAY_KEYS}/id"))
		}},
		{"a certificate that the settings name", func(c *sshd.Client, s *sshd.Server) {
			k, authority := c.Key("id", ""), c.Key("authority", "")
			certify(c, s, authority)
			c.Configure(c.Host("box", s, "IdentityFile "+k.File, "CertificateFile "+c.Certify(k, authority.Signer, "signed.pub")))
		}},
		{"a certificate beside the key, which is in the agent", func(c *sshd.Client, s *sshd.Server) {
			k, authority := c.Key("id", "secret"), c.Key("authority", "")
			c.Agent(k)
			certify(c, s, authority)
			c.Certify(k, authority.Signer, "id-cert.pub")
			c.Configure(c.Host("box", s, "IdentityFile "+k.File))
		}},
		{"the agent of an environment variable", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			c.Agent(k)
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityAgent $RELAY_AGENT"))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := sshd.NewClient(t), sshd.Start(t, sshd.Options{})
			c.Know(s)
			tt.with(c, s)
			h := newHost(t, c, "ssh://box", func(o *ssh.Options) {
				o.Getenv = func(name string) string {
					return map[string]string{"RELAY_KEYS": c.Dir, "RELAY_AGENT": c.AgentSocket, "SSH_AUTH_SOCK": "/nowhere"}[name]
				}
			})
			echo(t, connect(t, h))
		})
	}
}

// certify has a server trust certificates of an authority.
func certify(c *sshd.Client, s *sshd.Server, authority *sshd.Key) {
	s.Stop()
	s.Configure("TrustedUserCAKeys " + c.Write("authority.pub", string(xssh.MarshalAuthorizedKey(authority.Public))))
	s.Start()
}

func TestLoginsThatFail(t *testing.T) {
	for _, tt := range []struct {
		name   string
		with   func(*sshd.Client, *sshd.Server)
		reason string
	}{
		{"no key", func(c *sshd.Client, s *sshd.Server) { c.Configure(c.Host("box", s)) }, "There is no key to log in to 127.0.0.1 with."},
		{"a key that is not let in", func(c *sshd.Client, s *sshd.Server) {
			c.Configure(c.Host("box", s, "IdentityFile "+c.Key("id", "").File))
		}, "refuses the login with each of the 1 keys there are (0 of the agent, 1 of files)"},
		{"an encrypted key without an agent", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id_box", "secret")
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentityFile "+k.File))
		}, "There is no key to log in to 127.0.0.1 with: id_box is encrypted and not in the agent"},
		{"a key that others can read", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id_box", "")
			s.Authorize(k.Public)
			if err := os.Chmod(k.File, 0o644); err != nil {
				t.Fatal(err)
			}
			c.Configure(c.Host("box", s, "IdentityFile "+k.File))
		}, "id_box can be read by other users"},
		{"an agent that is not there", func(c *sshd.Client, s *sshd.Server) {
			c.Configure(c.Host("box", s, "IdentityAgent "+c.Dir+"/none"))
		}, "the SSH agent can't be reached"},
		{"a key that IdentitiesOnly leaves out", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			c.Agent(k)
			s.Authorize(k.Public)
			c.Configure(c.Host("box", s, "IdentitiesOnly yes"))
		}, "There is no key to log in"},
		{"a server that takes no keys", func(c *sshd.Client, s *sshd.Server) {
			s.Stop()
			s.Configure("PubkeyAuthentication no\nPasswordAuthentication yes")
			s.Start()
			c.Configure(c.Host("box", s, "IdentityFile "+c.Key("id", "").File))
		}, "lets nobody in with a key, only with password"},
		{"a server that wants more", func(c *sshd.Client, s *sshd.Server) {
			k := c.Key("id", "")
			s.Stop()
			s.Configure("AuthenticationMethods publickey,password\nPasswordAuthentication yes")
			s.Authorize(k.Public)
			s.Start()
			c.Configure(c.Host("box", s, "IdentityFile "+k.File))
		}, "wants password on top of a key"},
		{"too many keys", func(c *sshd.Client, s *sshd.Server) {
			var lines []string
			for i := range 8 {
				lines = append(lines, "IdentityFile "+c.Key(fmt.Sprintf("id%d", i), "").File)
			}
			c.Configure(c.Host("box", s, lines...))
		}, "gave up after too many keys (8 were there to try)"},
		{"ciphers that are not there", func(c *sshd.Client, s *sshd.Server) {
			s.Stop()
			s.Configure("Ciphers aes128-ctr")
			s.Start()
			c.Configure(c.Host("box", s, "Ciphers aes256-gcm@openssh.com"))
		}, "have no SSH algorithm in common"},
		{"nobody who listens", func(c *sshd.Client, s *sshd.Server) {
			s.Stop()
			c.Configure(c.Host("box", s))
		}, "127.0.0.1 refuses connections to port"},
		{"no such name", func(c *sshd.Client, s *sshd.Server) { c.Configure("Host box\n  HostName no-such-host.invalid\n") }, "no-such-host.invalid"},
		{"a configuration with a mistake", func(c *sshd.Client, s *sshd.Server) { c.Configure("Host box\n  Hostnam x\n") }, "The ssh configuration of the gateway's machine can't be read"},
		{"jumps in a circle", func(c *sshd.Client, s *sshd.Server) {
			c.Configure("Host box\n  ProxyJump hop\nHost hop\n  ProxyJump box\n")
		}, "or in a circle"},
		{"a proxy command that fails", func(c *sshd.Client, s *sshd.Server) {
			c.Configure("Host box\n  ProxyCommand sh -c 'echo it is broken >&2; exit 1'\n")
		}, "did not lead to an SSH server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := sshd.NewClient(t), sshd.Start(t, sshd.Options{})
			c.Know(s)
			tt.with(c, s)
			h := newHost(t, c, "ssh://box", func(o *ssh.Options) { o.Getenv = func(string) string { return "" } })
			h.Start(t.Context())
			status := until(t, h, "down", state(hosts.Down))
			if !strings.Contains(status.Reason, tt.reason) || strings.Contains(status.Reason, c.Dir) {
				t.Errorf("the reason is %q, want one with %q and without paths", status.Reason, tt.reason)
			}
			_, err := h.Link(t.Context())
			if !strings.Contains(fmt.Sprint(err), status.Reason) || !isUnavailable(err) {
				t.Errorf("a call gets %v", err)
			}
			steps := h.CheckConnection(t.Context())
			failing := find(steps, ssh.Fail)
			if failing == nil || failing.Next == "" {
				t.Errorf("the check says %v", steps)
			}
		})
	}
}

// find is the first step in a state.
func find(steps []ssh.Step, state ssh.StepState) *ssh.Step {
	for _, s := range steps {
		if s.State == state {
			return &s
		}
	}
	return nil
}

func TestJumps(t *testing.T) {
	c := sshd.NewClient(t)
	key := c.Key("id", "")
	c.Agent(key)
	var servers []*sshd.Server
	for range 3 {
		servers = append(servers, sshd.Start(t, sshd.Options{Authorized: []xssh.PublicKey{key.Public}}))
	}
	c.Know(servers...)
	first, second, last := servers[0], servers[1], servers[2]
	for _, tt := range []struct{ name, config, target string }{
		{"one", c.Host("box", last, "ProxyJump first") + c.Host("first", first), "ssh://box"},
		{"two in a row", c.Host("box", last, "ProxyJump first,second") + c.Host("first", first) + c.Host("second", second), "ssh://box"},
		{"the first with a jump of its own", c.Host("box", last, "ProxyJump second") + c.Host("second", second, "ProxyJump first") + c.Host("first", first), "ssh://box"},
		{"with user and port", c.Host("box", last, fmt.Sprintf("ProxyJump %s@127.0.0.1:%d", sshd.User(t), first.Port)), "ssh://box"},
		{"as a URL", c.Host("box", last, fmt.Sprintf("ProxyJump ssh://%s@127.0.0.1:%d", sshd.User(t), first.Port)), "ssh://box"},
		{"the target without an alias", c.Host("first", first) + "Match host 127.0.0.1 !originalhost first\n  ProxyJump first\n", fmt.Sprintf("ssh://%s@127.0.0.1:%d", sshd.User(t), last.Port)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := strings.Count(first.Log(), "Accepted publickey")
			c.Configure(tt.config)
			echo(t, connect(t, newHost(t, c, tt.target)))
			if strings.Count(first.Log(), "Accepted publickey") == before {
				t.Error("the first machine was passed by")
			}
		})
	}
	t.Run("one that only forwards", func(t *testing.T) {
		gate := sshd.Start(t, sshd.Options{Authorized: []xssh.PublicKey{key.Public}, Config: []string{"MaxSessions 0", "ForceCommand /bin/false"}})
		c.Know(gate, last)
		c.Configure(c.Host("box", last, "ProxyJump gate") + c.Host("gate", gate))
		echo(t, connect(t, newHost(t, c, "ssh://box")))
		c.Know(servers...)
	})
	t.Run("one that goes away and comes back", func(t *testing.T) {
		c.Configure(c.Host("box", last, "ProxyJump first") + c.Host("first", first))
		h := newHost(t, c, "ssh://box")
		l := connect(t, h)
		first.Stop()
		<-l.Done()
		first.Start()
		until(t, h, "up again", func(s hosts.Status) bool { return s.State == hosts.Up && link(t, h) != l })
		echo(t, link(t, h))
	})
	t.Run("one that is not known", func(t *testing.T) {
		c.Know(last)
		c.Configure(c.Host("box", last, "ProxyJump first") + c.Host("first", first))
		h := newHost(t, c, "ssh://box")
		h.Start(t.Context())
		until(t, h, "down", state(hosts.Down))
		key, known, _, err := h.OfferedKey(timeout(t))
		if err != nil || known || key.Host != fmt.Sprintf("[127.0.0.1]:%d", first.Port) {
			t.Fatalf("got %+v, %v, %v; want the key of the first machine", key, known, err)
		}
		if err := h.Trust(timeout(t), key); err != nil {
			t.Fatal(err)
		}
		echo(t, linkOnce(t, h))
	})
}

func TestProxyCommand(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	// OpenSSH itself carries the bytes, through another sshd.
	hop := c.Host("hop", s)
	pids := c.Dir + "/pids"
	c.Configure(c.Host("box", s, `ProxyCommand sh -c 'echo $$ >> `+pids+`; exec ssh -F `+c.Config+` -W %h:%p hop'`) + hop)
	h := newHost(t, c, "ssh://box")
	echo(t, connect(t, h))
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	if exec.Command("kill", "-0", strings.TrimSpace(string(raw))).Run() == nil {
		t.Error("the proxy command lives on after Close")
	}
}

func TestMatchAndInclude(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	included := c.Write("more", fmt.Sprintf("Match originalhost box exec \"test %%n = box\"\n  HostName 127.0.0.1\n  Port %d\nMatch final user %s\n  IdentityAgent %s\n", s.Port, sshd.User(t), c.AgentSocket))
	c.Configure("Include " + included + "\nHost *\n  User " + sshd.User(t) + "\n")
	echo(t, connect(t, newHost(t, c, "ssh://box")))
}

// A target's own fields win over the configuration, which is read without an ssh
// as if it were empty.
func TestWithoutOpenSSH(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	if err := os.MkdirAll(c.Dir+"/.ssh", 0o700); err != nil {
		t.Fatal(err)
	}
	key := c.Key(".ssh/id_ed25519", "")
	s.Authorize(key.Public)
	c.Write(".ssh/known_hosts", read(t, c.KnownHosts))
	t.Setenv("PATH", "")
	h := newHost(t, c, fmt.Sprintf("ssh://%s@127.0.0.1:%d", sshd.User(t), s.Port), func(o *ssh.Options) { o.Getenv = func(string) string { return "" } })
	echo(t, connect(t, h))
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestLoginShells(t *testing.T) {
	for _, shell := range []string{"sh", "bash", "fish", "csh", "tcsh"} {
		for _, banner := range []string{"", "Welcome to the machine!\nYou have 'mail'.\n"} {
			t.Run(fmt.Sprintf("%s, banner %v", shell, banner != ""), func(t *testing.T) {
				path, err := exec.LookPath(shell)
				if err != nil {
					t.Fatalf("%v: scripts/test installs it", err)
				}
				c, _ := setup(t, sshd.Options{Shell: path, Banner: banner})
				h := newHost(t, c, "ssh://box")
				l := connect(t, h)
				args := []string{"it's", `a "b" \c`, "$HOME `x` !! ~ *", "", "two\nlines", "ünïcode\tand \x01 more"}
				script := `for a in "$@"; do printf '<%s>' "$a"; done; cat`
				out, err := l.Script(timeout(t), script, args, []byte("stdin"), 1000)
				if want := "<" + strings.Join(args, "><") + ">stdin"; err != nil || string(out) != want {
					t.Errorf("got %q, %v; want %q", out, err, want)
				}
				steps := h.CheckConnection(timeout(t))
				if f := find(steps, ssh.Fail); f != nil {
					t.Errorf("the check fails: %+v", f)
				}
				for _, s := range steps {
					if s.Name == "shell" && strings.Contains(s.Detail, "bytes of its own") != (banner != "") {
						t.Errorf("the check says of the shell: %s", s.Detail)
					}
				}
				fs, err := l.SFTP()
				if banner != "" {
					return // no SFTP client copes with one
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, err := fs.Getwd(); err != nil {
					t.Error(err)
				}
				_ = fs.Close()
			})
		}
	}
}

func TestForwarding(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box")
	l := connect(t, h)
	path := s.Dir + "/forward"
	in, err := l.ListenUnix(timeout(t), path)
	if err != nil {
		t.Fatal(err)
	}
	go serveEcho(in)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	talk(t, func() (net.Conn, error) { return net.Dial("unix", path) })
	talk(t, func() (net.Conn, error) { return l.Dial(timeout(t), "unix", path) })
	if _, err := l.ListenUnix(timeout(t), path); err == nil || !strings.Contains(err.Error(), "AllowStreamLocalForwarding") {
		t.Errorf("a second socket with its path: %v", err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if _, err := in.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	go serveEcho(there)
	talk(t, func() (net.Conn, error) { return l.Dial(timeout(t), "tcp", there.Addr().String()) })
	s.Stop()
	<-l.Done()
	if _, err := l.Dial(timeout(t), "tcp", there.Addr().String()); !isLost(err) {
		t.Errorf("dialling over a lost link: %v", err)
	}
}

// A server that relies on deadlines, for its own time-outs and to break off reads.
func TestHTTPOverAForward(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	l := connect(t, newHost(t, c, "ssh://box"))
	path := s.Dir + "/http"
	in, err := l.ListenUnix(timeout(t), path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, IdleTimeout: time.Second, WriteTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all, _ := io.ReadAll(r.Body)
		_, _ = w.Write(all)
	})}
	done := make(chan error)
	go func() { done <- server.Serve(in) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.Dial(ctx, "unix", path) }}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 5 {
				want := strings.Repeat(fmt.Sprint(i), 10_000)
				r, err := client.Post("http://host/", "text/plain", strings.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(r.Body)
				_ = r.Body.Close()
				if err != nil || string(got) != want {
					t.Errorf("got %d bytes, %v", len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if err := server.Shutdown(timeout(t)); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestForwardingOff(t *testing.T) {
	c, _ := setup(t, sshd.Options{Config: []string{"AllowStreamLocalForwarding no"}})
	h := newHost(t, c, "ssh://box")
	l := connect(t, h)
	if _, err := l.ListenUnix(timeout(t), "/tmp/never"); err == nil || !strings.Contains(err.Error(), "AllowStreamLocalForwarding") {
		t.Errorf("listening: %v", err)
	}
	steps := h.CheckConnection(timeout(t))
	f := find(steps, ssh.Fail)
	if f == nil || f.Name != "forward" || !strings.Contains(f.Next, "AllowStreamLocalForwarding yes") {
		t.Errorf("the check says %+v", steps)
	}
}

func TestCheckNamesWhatIsNotSupported(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	c.Configure(c.Host("box", s, "PreferredAuthentications gssapi-with-mic", "GSSAPIAuthentication yes", "PKCS11Provider /usr/lib/x.so", "KnownHostsCommand /bin/false %H",
		"SecurityKeyProvider /usr/lib/sk.so", "ProxyUseFdpass yes", "StrictHostKeyChecking no"))
	steps := newHost(t, c, "ssh://box").CheckConnection(timeout(t))
	said := fmt.Sprint(steps)
	for _, name := range []string{"GSSAPI", "PKCS11Provider", "KnownHostsCommand", "SecurityKeyProvider", "ProxyUseFdpass", "StrictHostKeyChecking"} {
		if !strings.Contains(said, name) {
			t.Errorf("the check does not name %s: %s", name, said)
		}
	}
	if f := find(steps, ssh.Fail); f != nil {
		t.Errorf("it fails: %+v", f)
	}
}
