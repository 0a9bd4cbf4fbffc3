package ssh

import (
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// hangUp is how long a proxy command has to end after its SIGHUP.
const hangUp = time.Second

// proxyCommand is a connection over the standard input and output of a program.
type proxyCommand struct {
	in, out *os.File // the ends of its pipes that are ours
	stderr  tail
	cmd     *exec.Cmd
	ended   chan struct{}
	close   func()
}

// startProxy runs a ProxyCommand as OpenSSH does: by the user's shell, which it
// replaces, in a process group of its own.
func startProxy(command string, getenv func(string) string) (*proxyCommand, error) {
	shell := getenv("SHELL")
	if shell == "" {
		shell = "/bin/sh"
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		_ = theirIn.Close()
		_ = in.Close()
		return nil, err
	}
	p := &proxyCommand{in: in, out: out, ended: make(chan struct{}), cmd: exec.Command(shell, "-c", "exec "+command)}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirIn, theirOut, &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = hangUp
	err = p.cmd.Start()
	_ = theirIn.Close()
	_ = theirOut.Close()
	if err != nil {
		_ = in.Close()
		_ = out.Close()
		return nil, err
	}
	p.close = sync.OnceFunc(p.end)
	go func() {
		_ = p.cmd.Wait() // how it ended is seen in the connection
		close(p.ended)
	}()
	return p, nil
}

func (p *proxyCommand) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *proxyCommand) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close ends the program and all of its group. It waits for that, a little over a
// second at most. Closing twice is fine.
func (p *proxyCommand) Close() error {
	p.close()
	return nil
}

func (p *proxyCommand) end() {
	_ = p.in.Close()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGHUP)
	select {
	case <-p.ended:
	case <-time.After(hangUp):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // a group that has ended is none
	<-p.ended
	_ = p.out.Close()
}

// The addresses are placeholders: only the program knows them.
func (p *proxyCommand) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4zero} }
func (p *proxyCommand) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }

func (p *proxyCommand) SetDeadline(t time.Time) error {
	if err := p.out.SetReadDeadline(t); err != nil {
		return err
	}
	return p.in.SetWriteDeadline(t)
}
func (p *proxyCommand) SetReadDeadline(t time.Time) error  { return p.out.SetReadDeadline(t) }
func (p *proxyCommand) SetWriteDeadline(t time.Time) error { return p.in.SetWriteDeadline(t) }
