// Package sshd starts what tests of SSH need: OpenSSH's server on a loopback port
// with keys of its own, a client's home with a configuration, keys, known hosts
// and an agent, and a proxy between the two that stops carrying bytes.
//
// It promises that nothing of the machine is used but its programs and the account
// that runs the test: no file outside of temporary directories is read or written
// (but /run/sshd, which sshd wants to exist), and all ends with the test. A program
// that is missing fails the test. It leaves every judgement to the tests.
package sshd

import (
	"bufio"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// program is an absolute path because sshd starts itself anew for each connection.
const program = "/usr/sbin/sshd"

// patience bounds each wait for a program, which takes well under a second when
// the machine is idle.
const patience = 30 * time.Second

// Options says how a server differs from one that lets the test's account in with
// the keys it is given.
type Options struct {
	// Config has lines for sshd_config; they win over the harness's own.
	Config []string
	// Authorized may log in.
	Authorized []ssh.PublicKey
	// Shell runs the commands, as the account's login shell would; "" is the
	// account's.
	Shell string
	// Banner is what that shell prints first, on standard output.
	Banner string
}

// Server is an OpenSSH server.
type Server struct {
	// Port on 127.0.0.1; it stays over Stop and Start.
	Port int
	// Dir has the server's files, and is the HOME of what it runs.
	Dir string
	// HostKey proves the server.
	HostKey ssh.PublicKey

	t   testing.TB
	cmd *exec.Cmd
}

// Start starts a server.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, Dir: tempDir(t), Port: freePort(t)}
	s.NewHostKey()
	s.Authorize(o.Authorized...)
	config := append([]string{}, o.Config...)
	if o.Shell != "" || o.Banner != "" {
		config = append(config, "ForceCommand "+s.shell(o))
	}
	config = append(config,
		"ListenAddress 127.0.0.1:"+strconv.Itoa(s.Port),
		"HostKey "+s.file("host_key"), "AuthorizedKeysFile "+s.file("authorized_keys"),
		"SetEnv HOME="+s.Dir, // the account's own shell files are not for tests
		"PidFile none", "StrictModes no", "UsePAM no", "PermitRootLogin yes", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"LogLevel DEBUG1", "MaxStartups 200", "PrintMotd no", "Subsystem sftp "+sftpServer(t))
	s.write("sshd_config", strings.Join(config, "\n")+"\n", 0o600)
	s.Start()
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			log := s.Log()
			t.Logf("the log of sshd on port %d ends with\n%s", s.Port, log[max(0, len(log)-3000):])
		}
	})
	return s
}

// shell writes a program that stands for a login shell.
func (s *Server) shell(o Options) string {
	shell := o.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	s.write("banner", o.Banner, 0o600)
	s.write("shell", fmt.Sprintf("#!/bin/sh\ncat '%s'\nexec %s -c \"$SSH_ORIGINAL_COMMAND\"\n", s.file("banner"), shell), 0o700)
	return s.file("shell")
}

func sftpServer(t testing.TB) string {
	for _, path := range []string{"/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server", "/usr/lib/ssh/sftp-server"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatal("there is no sftp-server: install openssh-sftp-server")
	return ""
}

func (s *Server) file(name string) string { return filepath.Join(s.Dir, name) }

func (s *Server) write(name, content string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(s.file(name), []byte(content), mode); err != nil {
		s.t.Fatal(err)
	}
}

// Authorize lets these keys in, and no others, from the next login on.
func (s *Server) Authorize(keys ...ssh.PublicKey) {
	s.t.Helper()
	var b strings.Builder
	for _, k := range keys {
		b.Write(ssh.MarshalAuthorizedKey(k))
	}
	s.write("authorized_keys", b.String(), 0o600)
}

// NewHostKey gives the server another key, from the next Start on.
func (s *Server) NewHostKey() {
	s.t.Helper()
	key, public := newKey(s.t)
	s.write("host_key", privatePEM(s.t, key, ""), 0o600)
	s.HostKey = public
}

// AddHostKey gives the server one more key, of this type ("ecdsa", "rsa"), from the
// next Start on.
func (s *Server) AddHostKey(kind string) {
	s.t.Helper()
	file := s.file("host_key_" + kind)
	if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", file).CombinedOutput(); err != nil {
		s.t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	s.Configure("HostKey " + file)
}

// PublicLine is the host key of a type, as known_hosts and authorized_keys write it.
func (s *Server) PublicLine(kind string) string {
	s.t.Helper()
	if kind == "ed25519" {
		return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.HostKey)))
	}
	raw, err := os.ReadFile(s.file("host_key_" + kind + ".pub"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(raw))[:2], " ")
}

// CertifyHostKey gives the server a certificate of its key by an authority, for
// 127.0.0.1, from the next Start on.
func (s *Server) CertifyHostKey(authority ssh.Signer) {
	s.t.Helper()
	cert := &ssh.Certificate{Key: s.HostKey, CertType: ssh.HostCert, KeyId: "host", ValidPrincipals: []string{"127.0.0.1"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		s.t.Fatal(err)
	}
	s.write("host_key-cert.pub", string(ssh.MarshalAuthorizedKey(cert)), 0o600)
	s.Configure("HostCertificate " + s.file("host_key-cert.pub"))
}

// Configure puts lines before those that sshd_config has, so that they win, from
// the next Start on.
func (s *Server) Configure(lines string) {
	s.t.Helper()
	old, err := os.ReadFile(s.file("sshd_config"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("sshd_config", lines+"\n"+string(old), 0o600)
}

// Start starts the server again after Stop, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	s.cmd = exec.Command(program, "-D", "-f", s.file("sshd_config"), "-E", s.file("log"))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatalf("sshd: %v (install openssh-server)", err)
	}
	deadline := time.Now().Add(patience)
	for !s.answers() {
		if time.Now().After(deadline) {
			s.t.Fatalf("sshd does not answer after %v:\n%s", patience, s.Log())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *Server) answers() bool {
	c, err := net.Dial("tcp", s.Address())
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.HasPrefix(line, "SSH-2.0-")
}

// Address is where the server listens.
func (s *Server) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Stop ends the server and its connections at once. Stopping twice is fine.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	sessions := descendants(s.t, s.cmd.Process.Pid)
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
	kill(sessions)
}

// KillSessions ends the processes of the connections, and leaves the server to
// take new ones. It returns how many there were.
func (s *Server) KillSessions() int {
	sessions := descendants(s.t, s.cmd.Process.Pid)
	kill(sessions)
	return len(sessions)
}

// Freeze stops the processes of the connections from running: they stay connected
// and answer nothing. Thaw undoes it.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw lets the processes of the connections run on.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	for _, pid := range descendants(s.t, s.cmd.Process.Pid) {
		_ = syscall.Kill(pid, sig)
	}
}

func kill(pids []int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// descendants are the processes that a process started, and those of them, that
// belong to sshd: the commands of users are not among them.
func descendants(t testing.TB, pid int) []int {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,comm=").Output()
	if err != nil {
		t.Fatalf("ps: %v (install procps)", err)
	}
	children := map[int][]int{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.Contains(f[2], "sshd") {
			continue
		}
		child, _ := strconv.Atoi(f[0])
		parent, _ := strconv.Atoi(f[1])
		children[parent] = append(children[parent], child)
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// Log is what the server has written.
func (s *Server) Log() string {
	raw, _ := os.ReadFile(s.file("log"))
	return string(raw)
}

// Attempts counts the requests to log in that the server has had, the first one of
// every login ("none") included.
func (s *Server) Attempts() int { return strings.Count(s.Log(), "userauth-request for user") }

// User is the account that the servers let in: the one that runs the test.
func User(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

func newKey(t testing.TB) (ed25519.PrivateKey, ssh.PublicKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return key, p
}

// privatePEM is a private key in OpenSSH's form, encrypted where there is a
// passphrase.
func privatePEM(t testing.TB, key crypto.PrivateKey, passphrase string) string {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block))
}

// tempDir is not t.TempDir, whose long path leaves no room for sockets.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sshd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// What ran in it may be about to end, and write a last file.
		for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			err := os.RemoveAll(dir)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

// freePort is a port that nobody listens on, outside of the range from which
// systems take the ports of outgoing connections: it is still free when a server
// comes back to it.
func freePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10000 + mathrand.IntN(10000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
