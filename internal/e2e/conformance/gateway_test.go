package conformance

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/client"
	"agentrelay/internal/config"
	"agentrelay/internal/gateway"
	"agentrelay/internal/oauth/owner"
)

// startTime bounds the start of a gateway, and its end.
const startTime = 20 * time.Second

// relay is a gateway that serves until the test ends.
type relay struct {
	mcpURL   string
	password string // the owner's
	binary   string // "" in this process
	config   string // its file, for the binary
}

// startHere starts a gateway in this process, for its parts.
func startHere(t *testing.T) (*gateway.Gateway, relay) {
	t.Helper()
	home := t.TempDir()
	c, err := config.Default(func(name string) string { return map[string]string{"HOME": home}[name] })
	if err != nil {
		t.Fatal(err)
	}
	c.StateDir, c.OwnerTokenFile, c.Port = filepath.Join(home, "state"), filepath.Join(home, "owner.json"), 0
	if err := os.Mkdir(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	password, err := owner.GeneratePassword(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.WritePassword(c.OwnerTokenFile, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	g, err := gateway.New(t.Context(), gateway.Options{Config: c, Version: "conformance"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() { ended <- g.Run(ctx, func(url string) { ready <- url }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case url := <-ready:
		return g, relay{mcpURL: url, password: password}
	case err := <-ended:
		ended <- nil // for the cleanup
		t.Fatalf("the gateway did not start: %v", err)
		panic("unreachable")
	}
}

// startBinary builds the gateway and starts it as its owner would.
func startBinary(t *testing.T) relay {
	t.Helper()
	dir := t.TempDir()
	r := relay{binary: filepath.Join(dir, "gateway"), config: filepath.Join(dir, "config.json")}
	build := exec.Command("go", "build", "-o", r.binary, "agentrelay/cmd/gateway")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the gateway: %v\n%s", err, out)
	}
	var made struct{ OwnerPassword string }
	r.command(t, &made, "init", "--state-dir", filepath.Join(dir, "state"), "--port", strconv.Itoa(freePort(t)))
	r.password = made.OwnerPassword

	cmd := exec.Command(r.binary, "serve", "--config", r.config)
	log := &bytes.Buffer{}
	cmd.Stderr = log
	cmd.WaitDelay = startTime
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(startTime, func() { cmd.Process.Kill() })
	t.Cleanup(func() {
		kill.Reset(startTime)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		err := cmd.Wait()
		kill.Stop()
		if err != nil {
			t.Errorf("the gateway ended with %v", err)
		}
		if t.Failed() {
			t.Logf("the gateway's log ends with\n%s", tail(log.Bytes()))
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the gateway did not start: %v", err)
	}
	kill.Stop()
	r.mcpURL = strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
	return r
}

// command runs a command of the gateway's binary and reads its JSON.
func (r relay) command(t *testing.T, into any, args ...string) {
	t.Helper()
	cmd := exec.Command(r.binary, append(args, "--config", r.config, "--json")...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("gateway %s: %v", args[0], err)
	}
}

// freePort is a port that nobody listened on a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// discover finds the gateway's authorization server as a client does.
func (r relay) discover(t *testing.T) *client.Server {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s, err := client.Discover(t.Context(), &http.Client{Transport: transport}, r.mcpURL)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// token is an access token of a client that registers itself and that the owner
// allows everything.
func (r relay) token(t *testing.T) string {
	t.Helper()
	const redirect = "http://127.0.0.1/callback"
	s := r.discover(t)
	id, err := s.Register(t.Context(), "Conformance suite", redirect)
	if err != nil {
		t.Fatal(err)
	}
	flow := s.Authorize(id, "", redirect)
	to, err := flow.Consent(t.Context(), r.password, client.Allow)
	if err != nil {
		t.Fatal(err)
	}
	token, err := flow.Redeem(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	return token.AccessToken
}
