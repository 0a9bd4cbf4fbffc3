package ssh_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	xssh "golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"agentrelay/internal/e2e/sshd"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/ssh"
)

func TestUnknownKey(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	other := "other.example.com " + strings.TrimSpace(string(xssh.MarshalAuthorizedKey(s.HostKey)))
	c.Write("known_hosts", other) // no line end
	h := newHost(t, c, "ssh://box")
	h.Start(t.Context())
	status := until(t, h, "down", state(hosts.Down))
	if !strings.Contains(status.Reason, "is not known") || !strings.Contains(status.Reason, "gateway hosts trust box") || !strings.Contains(status.Reason, xssh.FingerprintSHA256(s.HostKey)) {
		t.Errorf("the reason is %q", status.Reason)
	}
	key, known, changed, err := h.OfferedKey(timeout(t))
	if err != nil || known || len(changed) > 0 || key.SHA256 != xssh.FingerprintSHA256(s.HostKey) || key.Type != "ssh-ed25519" {
		t.Fatalf("OfferedKey gives %+v, %v, %v, %v", key, known, changed, err)
	}
	if n := s.Attempts(); n != 0 {
		t.Errorf("%d logins were tried before the key was known", n)
	}
	wrong := key
	wrong.SHA256 = "SHA256:another"
	if err := h.Trust(timeout(t), wrong); !errors.Is(err, fault.InvalidArguments) {
		t.Errorf("a key that isn't shown: %v", err)
	}
	if err := h.Trust(timeout(t), key); err != nil {
		t.Fatal(err)
	}
	l := linkOnce(t, h)
	if l.HostKey() != key.SHA256 {
		t.Errorf("the link has key %s, want %s", l.HostKey(), key.SHA256)
	}
	if info, err := os.Stat(c.KnownHosts); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("known_hosts has mode %v, %v", info.Mode(), err)
	}
	if got, want := read(t, c.KnownHosts), other+"\n"+key.Line+"\n"; got != want {
		t.Errorf("known_hosts is\n%s\nwant\n%s", got, want)
	}
	if _, known, _, err := h.OfferedKey(timeout(t)); err != nil || !known {
		t.Errorf("afterwards OfferedKey says known %v, %v", known, err)
	}
}

func TestChangedKey(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	h := newHost(t, c, "ssh://box", func(o *ssh.Options) { o.BackoffMax = time.Millisecond })
	echo(t, connect(t, h))
	s.Stop()
	old := s.HostKey
	s.NewHostKey()
	before := s.Attempts()
	s.Start()
	status := until(t, h, "down for its key", func(st hosts.Status) bool { return strings.Contains(st.Reason, "has changed") })
	for _, want := range []string{xssh.FingerprintSHA256(old), xssh.FingerprintSHA256(s.HostKey), "gateway hosts trust box"} {
		if !strings.Contains(status.Reason, want) {
			t.Errorf("the reason is %q, without %s", status.Reason, want)
		}
	}
	connections := strings.Count(s.Log(), "Connection from")
	h.Wake()
	time.Sleep(100 * time.Millisecond) // a hundred times the backoff
	if n := strings.Count(s.Log(), "Connection from"); n != connections {
		t.Errorf("%d more connections were made without being asked for", n-connections)
	}
	if n := s.Attempts() - before; n != 0 {
		t.Errorf("%d logins were tried at the other machine", n)
	}
	if f := find(h.CheckConnection(timeout(t)), ssh.Fail); f == nil || f.Name != "key" {
		t.Errorf("the check fails with %+v", f)
	}

	// known_hosts has the old key under several names, and others that must stay.
	oldKey := strings.TrimSpace(string(xssh.MarshalAuthorizedKey(old)))
	name := knownhosts.Normalize(s.Address())
	keep := "# a comment\nsomebody.example.com " + oldKey + "\n@revoked * " + oldKey + "x\n"
	c.Write("known_hosts", keep+name+",alias.example.com "+oldKey+"\n"+knownhosts.HashHostname(name)+" "+oldKey+"\n"+name+" "+oldKey+"\n")
	owner := newHost(t, c, "ssh://box") // another process, such as the command line's
	key, known, changed, err := owner.OfferedKey(timeout(t))
	if err != nil || known || len(changed) != 3 || !strings.HasSuffix(changed[0], xssh.FingerprintSHA256(old)) {
		t.Fatalf("OfferedKey gives %+v, %v, %v, %v", key, known, changed, err)
	}
	if err := owner.Trust(timeout(t), key); err != nil {
		t.Fatal(err)
	}
	h.Wake()
	echo(t, linkOnce(t, h))
	if got, want := read(t, c.KnownHosts), keep+"alias.example.com "+oldKey+"\n"+key.Line+"\n"; got != want {
		t.Errorf("known_hosts is\n%s\nwant\n%s", got, want)
	}
}

func TestKnownHosts(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	authority, stranger := c.Key("authority", ""), c.Key("stranger", "")
	line := func(k xssh.PublicKey) string { return strings.TrimSpace(string(xssh.MarshalAuthorizedKey(k))) }
	address := knownhosts.Normalize(s.Address())
	s.Stop()
	s.CertifyHostKey(authority.Signer)
	s.Start()
	for _, tt := range []struct{ name, known, settings, reason string }{
		{"a hashed name", knownhosts.HashHostname(address) + " " + line(s.HostKey), "", ""},
		{"a pattern", "[127.0.0.*]:* " + line(s.HostKey), "", "is not known"}, // OpenSSH takes no pattern for the port either
		{"a pattern without port", "127.* " + line(s.HostKey), "", ""},
		{"an alias", "box.example.com " + line(s.HostKey), "HostKeyAlias box.example.com", ""},
		{"an authority", "@cert-authority " + address + " " + line(authority.Public), "", ""},
		{"an authority, and a key of another machine", "@cert-authority * " + line(authority.Public) + "\nother " + line(stranger.Public), "", ""},
		{"another authority", "@cert-authority " + address + " " + line(stranger.Public), "", "certificate of 127.0.0.1 is not accepted"},
		{"a revoked key", address + " " + line(s.HostKey) + "\n@revoked * " + line(s.HostKey), "", "marked as revoked"},
		{"a key in RevokedHostKeys", address + " " + line(s.HostKey), "RevokedHostKeys " + c.Write("revoked", line(s.HostKey)+"\n"), "marked as revoked"},
		{"a RevokedHostKeys that is not there", address + " " + line(s.HostKey), "RevokedHostKeys " + c.Dir + "/none", "RevokedHostKeys"},
		{"lines that are none", "nonsense\n" + address + " " + line(s.HostKey) + "\n" + address + " ssh-ed25519 AAAA", "", ""},
		{"another port", "127.0.0.1 " + line(s.HostKey), "", "is not known"},
		{"a key of another type", address + " " + rsaKey, "", "has changed"},
		{"nothing", "", "", "is not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.Write("known_hosts", tt.known+"\n")
			c.Configure(c.Host("box", s, tt.settings))
			before := s.Attempts()
			h := newHost(t, c, "ssh://box")
			h.Start(t.Context())
			if tt.reason == "" {
				echo(t, link(t, h))
				return
			}
			if status := until(t, h, "down", state(hosts.Down)); !strings.Contains(status.Reason, tt.reason) {
				t.Errorf("the reason is %q, want one with %q", status.Reason, tt.reason)
			}
			if n := s.Attempts() - before; n != 0 {
				t.Errorf("%d logins were tried", n)
			}
		})
	}
}

// A file that knows one type of key is enough for a server that has several.
func TestKnownType(t *testing.T) {
	c, s := setup(t, sshd.Options{})
	s.Stop()
	s.AddHostKey("ecdsa")
	s.Start()
	for _, name := range []string{"ed25519", "ecdsa"} {
		t.Run(name, func(t *testing.T) {
			c.Write("known_hosts", fmt.Sprintf("%s %s\n", knownhosts.Normalize(s.Address()), s.PublicLine(name)))
			echo(t, connect(t, newHost(t, c, "ssh://box")))
		})
	}
}

const rsaKey = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQCclN+0ShIMo7KEFd+DgWvw38Ry/L8P2J0pkWrisdx7szq9njv14q3wNB5UBIcN35YnMmDTFIOJlhQLAhd/sIR7e7AeWll+fGZfA39F3fEXvVArAIdRwlnCAPmIk2gPhj8mOmVZ7xu+/toEY6quVb0jNdYOtseTGiBheEKvuiF0nxuaD18Zb5V9vzWjuWcvrZIB3uepsEkgWLnxEQWOmTypEV/5aC27cmo1gDE7lKEvGaakqWOYCcmZz2+OF6EhRctcDad2SzTTYVFpoiiSwnyK4hQoitNadU9yGrt3SxQECTMAzpHbuQZOd0wGCb0Ols/M/e/CwcEuxG6CL2eMiYKd"
