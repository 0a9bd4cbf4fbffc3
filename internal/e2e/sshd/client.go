package sshd

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Client is the home of somebody who uses ssh.
type Client struct {
	// Dir has the files below.
	Dir string
	// Config is the ssh configuration; give it to ssh with -F.
	Config string
	// KnownHosts is the file that the configuration names.
	KnownHosts string
	// AgentSocket is where the agent listens; "" before Agent.
	AgentSocket string

	t testing.TB
}

// Key is a key pair of a client.
type Key struct {
	File   string // of the private key; the public one has .pub behind it
	Public ssh.PublicKey
	Signer ssh.Signer

	private any
}

// NewClient makes a home without hosts, keys and agent.
func NewClient(t testing.TB) *Client {
	t.Helper()
	dir := tempDir(t)
	c := &Client{Dir: dir, Config: filepath.Join(dir, "config"), KnownHosts: filepath.Join(dir, "known_hosts"), t: t}
	c.Configure("")
	return c
}

// Configure replaces the ssh configuration with hosts, behind which stands what
// makes it apart from the machine's: the known_hosts file, no keys, no agent.
func (c *Client) Configure(hosts string) {
	c.t.Helper()
	identity := "none"
	if c.AgentSocket != "" {
		identity = c.AgentSocket
	}
	rest := fmt.Sprintf("\nHost *\n  UserKnownHostsFile %s\n  GlobalKnownHostsFile none\n  IdentityFile none\n  IdentityAgent %s\n", c.KnownHosts, identity)
	c.Write("config", hosts+rest)
}

// Write writes a file of the home and returns its path.
func (c *Client) Write(name, content string) string {
	c.t.Helper()
	path := filepath.Join(c.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// Host is the configuration of one server under a name, with more lines.
func (c *Client) Host(name string, s *Server, lines ...string) string {
	return fmt.Sprintf("Host %s\n  HostName 127.0.0.1\n  Port %d\n  User %s\n  %s\n", name, s.Port, User(c.t), strings.Join(lines, "\n  "))
}

// Key makes a key, encrypted where there is a passphrase.
func (c *Client) Key(name, passphrase string) *Key {
	c.t.Helper()
	private, public := newKey(c.t)
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	file := c.Write(name, privatePEM(c.t, private, passphrase))
	c.Write(name+".pub", string(ssh.MarshalAuthorizedKey(public)))
	return &Key{File: file, Public: public, Signer: signer, private: &private}
}

// Certify has an authority sign a certificate of the key for the account that
// servers let in, and writes it to path.
func (c *Client) Certify(k *Key, authority ssh.Signer, name string) string {
	c.t.Helper()
	cert := &ssh.Certificate{Key: k.Public, CertType: ssh.UserCert, KeyId: "client", ValidPrincipals: []string{User(c.t)}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		c.t.Fatal(err)
	}
	return c.Write(name, string(ssh.MarshalAuthorizedKey(cert)))
}

// Know puts the keys of servers into known_hosts, in place of what was there.
func (c *Client) Know(servers ...*Server) {
	c.t.Helper()
	var b strings.Builder
	for _, s := range servers {
		b.WriteString(knownhosts.Line([]string{s.Address()}, s.HostKey) + "\n")
	}
	c.Write("known_hosts", b.String())
}

// KnowAs adds the key of a server under another address, such as that of a [Proxy]
// in front of it, to known_hosts.
func (c *Client) KnowAs(address string, s *Server) {
	c.t.Helper()
	old, err := os.ReadFile(c.KnownHosts)
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	c.Write("known_hosts", string(old)+knownhosts.Line([]string{address}, s.HostKey)+"\n")
}

// Agent starts ssh-agent with these keys; call it before Configure.
func (c *Client) Agent(keys ...*Key) {
	c.t.Helper()
	socket := filepath.Join(c.Dir, "agent")
	cmd := exec.Command("ssh-agent", "-D", "-a", socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatalf("ssh-agent: %v (install openssh-client)", err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var conn net.Conn
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		var err error
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("ssh-agent does not answer: %v", err)
		}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience)) // unix sockets have deadlines
	held := agent.NewClient(conn)
	for _, k := range keys {
		if err := held.Add(agent.AddedKey{PrivateKey: k.private}); err != nil {
			c.t.Fatal(err)
		}
	}
	c.AgentSocket = socket
	c.Configure("")
}
