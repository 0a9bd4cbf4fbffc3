package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/hosts/ssh"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/hosts/worker/overssh"
	workerwire "agentrelay/internal/hosts/worker/wire"
)

// farMachine is OpenSSH's server on this machine, with a configuration of ssh that
// knows it as "far".
type farMachine struct {
	dir    string // the home directory of whoever logs in
	config string // for ssh -F
	path   string // a PATH on which ssh uses it
	server *exec.Cmd
}

const far = "far"

// newMachine starts a server.
func newMachine(b *bench) (*farMachine, error) {
	dir, err := os.MkdirTemp(b.dir, "far") // short: sockets lie in it
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	m := &farMachine{dir: dir, config: filepath.Join(dir, "config"), path: filepath.Join(dir, "bin")}
	for _, key := range []string{"host_key", "key"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", m.file(key)).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w: %s", err, out)
		}
	}
	public, err := os.ReadFile(m.file("host_key.pub"))
	if err != nil {
		return nil, err
	}
	client, err := exec.LookPath("ssh")
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"known_hosts": fmt.Sprintf("[127.0.0.1]:%d %s", port, public),
		"config": fmt.Sprintf("Host far\n  HostName 127.0.0.1\n  Port %d\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n  GlobalKnownHostsFile none\n  IdentityAgent none\n",
			port, m.file("key"), m.file("known_hosts")),
		"sshd_config": fmt.Sprintf("ListenAddress 127.0.0.1:%d\nHostKey %s\nAuthorizedKeysFile %s\nSetEnv HOME=%s\nPidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
			port, m.file("host_key"), m.file("key.pub"), dir),
		"bin/ssh": fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", client, m.config),
	} {
		if err := os.MkdirAll(filepath.Dir(m.file(name)), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(m.file(name), []byte(text), 0o700); err != nil {
			return nil, err
		}
	}
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // sshd wants it
			return nil, err
		}
	}
	m.server = exec.Command("/usr/sbin/sshd", "-D", "-f", m.file("sshd_config"), "-E", m.file("log"))
	if err := m.server.Start(); err != nil {
		return nil, err
	}
	return m, m.answers()
}

func (m *farMachine) file(name string) string { return filepath.Join(m.dir, name) }

// answers waits until somebody can log in.
func (m *farMachine) answers() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		out, err := m.ssh("true").CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			m.stop()
			return fmt.Errorf("ssh to the machine: %w: %s", err, out)
		}
	}
}

// stop ends the server and its connections.
func (m *farMachine) stop() {
	_ = exec.Command("pkill", "-P", strconv.Itoa(m.server.Process.Pid)).Run()
	_ = m.server.Process.Kill()
	_ = m.server.Wait()
}

// ssh is a command line there.
func (m *farMachine) ssh(words ...string) *exec.Cmd {
	return exec.Command("ssh", append([]string{"-F", m.config, "-S", m.file("master"), far}, words...)...)
}

// master opens a connection which all of [farMachine.ssh] share from then on.
func (m *farMachine) master() (stop func(), err error) {
	cmd := exec.Command("ssh", "-F", m.config, "-S", m.file("master"), "-M", "-N", far)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if exec.Command("ssh", "-F", m.config, "-S", m.file("master"), "-O", "check", far).Run() == nil {
			return stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("the shared connection of ssh is not there after %v", patience)
		}
	}
}

// project is the directory of the project there.
func (m *farMachine) project() string { return m.file("project") }

func (m *farMachine) env() string { return "PATH=" + m.path + ":" + os.Getenv("PATH") }

// host is the machine's entry in a config.
func (m *farMachine) host(id, target string) map[string]any {
	return map[string]any{
		"id": id, "name": id, "transport": "ssh", "target": target, "allowedRoots": []string{m.dir}, "remoteStateDir": m.file("relay-" + id),
		"direct": map[string]any{"projects": []map[string]any{{"id": project, "path": m.project(), "write": true, "commandMode": "full"}}},
	}
}

// farWorkspace is a gateway whose one project lies on a machine behind SSH.
func farWorkspace(ctx context.Context, b *bench) (*workspace, *farMachine, error) {
	m, err := newMachine(b)
	if err != nil {
		return nil, nil, err
	}
	w, err := m.served(ctx, b, m.host(far, "ssh://far"))
	if err != nil {
		m.stop()
		return nil, nil, err
	}
	return w, m, nil
}

// served is a gateway with live SSH hosts, on which it is installed.
func (m *farMachine) served(ctx context.Context, b *bench, hosts ...map[string]any) (*workspace, error) {
	w, err := m.open(ctx, b, hosts...)
	if err != nil {
		return nil, err
	}
	for _, host := range hosts {
		install := w.home.command("hosts", "install", fmt.Sprint(host["id"]))
		install.Env = append(install.Env, m.env())
		if out, err := install.CombinedOutput(); err != nil {
			w.close()
			return nil, fmt.Errorf("installing the worker: %w: %s", err, out)
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		list, err := w.hosts(ctx)
		if err == nil && !slices.ContainsFunc(list, func(h listed) bool { return h.Worker == nil }) {
			return w, nil
		}
		if err == nil && time.Now().After(deadline) {
			err = fmt.Errorf("a host has no worker: %+v", list)
		}
		if err != nil {
			w.close()
			return nil, err
		}
	}
}

// open starts a gateway with SSH hosts.
func (m *farMachine) open(ctx context.Context, b *bench, hosts ...map[string]any) (*workspace, error) {
	if err := os.MkdirAll(m.project(), 0o700); err != nil {
		return nil, err
	}
	h, err := newHome(b.gateway, b.dir)
	if err != nil {
		return nil, err
	}
	if err := h.configure(map[string]any{"hosts": hosts, "transfers": map[string]any{"spoolBytes": 32 << 30}}); err != nil {
		return nil, err
	}
	w := &workspace{home: h, dir: m.project()}
	if w.program, err = h.serve(m.env()); err != nil {
		return nil, err
	}
	if err := w.connect(ctx); err != nil {
		w.program.stop()
		return nil, err
	}
	return w, nil
}

// listed is a host of list_hosts.
type listed struct {
	HostID, Reason string
	Worker         *struct{ Version string }
}

// hosts are the SSH hosts of list_hosts.
func (w *workspace) hosts(ctx context.Context) ([]listed, error) {
	var out struct{ Hosts []listed }
	err := w.session.Call(ctx, "list_hosts", nil, &out)
	if err == nil && len(out.Hosts) == 0 {
		err = errors.New("list_hosts lists nothing")
	}
	if err != nil {
		return nil, err
	}
	return out.Hosts[1:], nil // the first is the gateway's own machine
}

// alone is the client of a worker in this process, without a gateway.
func (m *farMachine) alone(ctx context.Context) (_ *worker.Client, stop func()) {
	host := ssh.New(ssh.Options{HostID: "alone", Target: "ssh://far", ConfigFile: m.config, Home: m.dir})
	state := m.file("relay-alone")
	c := worker.New(worker.Options{
		ID: "alone", Name: "Alone", Links: overssh.Links(host), StateDir: state,
		// The program is where the gateway's worker has it.
		Command: overssh.Command(m.file("relay-" + far)),
		Settings: workerwire.Settings{Policy: direct.Policy{
			AllowedRoots: []string{m.dir}, Projects: []direct.Project{{ID: project, Path: m.project(), Read: true}},
		}},
	})
	host.OnChange(c.LinkChanged)
	host.Start(ctx)
	return c, func() {
		c.Close()
		_ = host.Close()
	}
}
