package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"agentrelay/internal/client"
)

// patience bounds the wait for a program to be ready or to end.
const patience = 30 * time.Second

// program is a server in a process of its own, which printed a line when it was
// ready.
type program struct {
	cmd   *exec.Cmd
	line  string        // what it printed
	ready time.Duration // from the start to that line
}

// start runs a server until [program.stop].
func start(cmd *exec.Cmd) (*program, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	r := bufio.NewReader(out)
	line, err := r.ReadString('\n')
	p := &program{cmd, line, time.Since(begun)}
	if err != nil {
		_ = cmd.Wait()
		return nil, fmt.Errorf("%s was not ready: %w\n%s%s", filepath.Base(cmd.Path), err, line, stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	return p, nil
}

// stop ends the program at once; what it stored goes with the run.
func (p *program) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// processor is the processor time, in seconds, that a stopped program used.
func (p *program) processor() float64 {
	return (p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()).Seconds()
}

// rss is the memory of the process that lies in RAM now, in bytes.
func (p *program) rss() (float64, error) {
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(p.cmd.Process.Pid)).Output()
	if err != nil {
		return 0, fmt.Errorf("asking ps for memory: %w", err)
	}
	kib, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return kib * 1024, err
}

// home is the set-up of one gateway in a directory of its own.
type home struct {
	binary, dir string
	init        time.Duration // how long it took
	made        struct{ ConfigPath, OwnerPassword, MCPURL string }
	client      *http.Client
	mcp         endpoint
}

// newHome runs init in a new directory under dir. Budgets of senders are off:
// what a load sends is bounded by nothing else.
func newHome(binary, dir string) (*home, error) {
	dir, err := os.MkdirTemp(dir, "home")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	h := &home{binary: binary, dir: dir, client: &http.Client{Transport: &http.Transport{}}}
	begun := time.Now()
	out, err := h.command("init", "--json", "--port", strconv.Itoa(port)).Output()
	h.init = time.Since(begun)
	if err != nil {
		return nil, fmt.Errorf("gateway init: %w: %s", err, stderrOf(err))
	}
	if err := json.Unmarshal(out, &h.made); err != nil {
		return nil, fmt.Errorf("reading what gateway init printed: %w", err)
	}
	if h.mcp, err = parseEndpoint(h.made.MCPURL); err != nil {
		return nil, err
	}
	return h, h.configure(map[string]any{"mailbox": map[string]any{"limits": map[string]int{"pairPerHour": 0, "ownerPerHour": 0}}})
}

func stderrOf(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(exit.Stderr)
	}
	return ""
}

// configure sets members of the config.
func (h *home) configure(members map[string]any) error {
	raw, err := os.ReadFile(h.made.ConfigPath)
	if err != nil {
		return err
	}
	all := map[string]any{}
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	maps.Copy(all, members)
	if raw, err = json.Marshal(all); err != nil {
		return err
	}
	return os.WriteFile(h.made.ConfigPath, raw, 0o600)
}

// command is a command line of the gateway, in an environment with nothing but
// this home and env.
func (h *home) command(args ...string) *exec.Cmd {
	cmd := exec.Command(h.binary, args...)
	cmd.Dir = h.dir
	cmd.Env = []string{"HOME=" + h.dir, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// serve starts the gateway, with its log in a file as under a service manager.
func (h *home) serve(env ...string) (*program, error) {
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := h.command("serve")
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = log
	return start(cmd)
}

const callback = "http://127.0.0.1/callback" // nobody listens: the redirect is read from the answer

// login gets a token for the endpoint, as a chat client does with its owner.
func (h *home) login(ctx context.Context) error {
	server, err := client.Discover(ctx, h.client, h.made.MCPURL)
	if err != nil {
		return err
	}
	id, err := server.Register(ctx, "bench", callback)
	if err != nil {
		return err
	}
	flow := server.Authorize(id, "", callback)
	to, err := flow.Consent(ctx, h.made.OwnerPassword, client.Allow)
	if err != nil {
		return err
	}
	token, err := flow.Redeem(ctx, to)
	if err != nil {
		return err
	}
	h.mcp.token = "Bearer " + token.AccessToken
	h.client.CloseIdleConnections()
	return nil
}

// peers is how many peers each gateway under load has.
const peers = 5

func peerID(i int) string { return fmt.Sprintf("peer-%d", i%peers) }

// loaded starts a gateway in a home of its own, with a client and its peers.
func (b *bench) loaded(ctx context.Context, env ...string) (*home, *program, error) {
	h, err := newHome(b.gateway, b.dir)
	if err != nil {
		return nil, nil, err
	}
	p, err := h.serve(env...)
	if err != nil {
		return nil, nil, err
	}
	if err := h.populate(ctx); err != nil {
		p.stop()
		return nil, nil, err
	}
	return h, p, nil
}

// populate logs a client in and registers its peers.
func (h *home) populate(ctx context.Context) error {
	if err := h.login(ctx); err != nil {
		return err
	}
	w, err := dial(h.mcp.url.Host)
	if err != nil {
		return err
	}
	defer w.conn.Close()
	for i := range peers {
		if err := w.call(h.mcp.request("register_peer", map[string]any{"peerId": peerID(i), "kind": "chat", "displayName": fmt.Sprintf("Peer %d", i)})); err != nil {
			return err
		}
	}
	return nil
}

// freePort is a port outside of the range from which systems take the ports of
// outgoing connections, so that it stays free between two starts.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port is free")
}
