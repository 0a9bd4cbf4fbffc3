package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/e2e/rig"
)

func TestDemoIsQuickAndLeavesNothing(t *testing.T) {
	home := rig.NewHome(t, binary)
	before := names(t, home.Dir)
	begun := time.Now()
	out := home.OK("demo")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the demo took %v", took)
	}
	if !strings.Contains(out, "acknowledges it as processed") || !strings.Contains(out, "Done in") {
		t.Errorf("the transcript is\n%s", out)
	}
	if after := names(t, home.Dir); after != before {
		t.Errorf("the demo left %s, before there was %s", after, before)
	}
}

func TestDemoCanBeInterrupted(t *testing.T) {
	home := rig.NewHome(t, binary)
	before := names(t, home.Dir)
	for after := range 6 {
		cmd := home.Command("demo")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(after) * 60 * time.Millisecond) // any instant will do
		_ = cmd.Process.Signal(syscall.SIGINT)
		begun := time.Now()
		_ = cmd.Wait()
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("it ended %v after the interrupt", took)
		}
		if s := stderr.String(); strings.Contains(s, "panic") || strings.Contains(s, "goroutine ") {
			t.Errorf("interrupted, it says\n%s", s)
		}
		// Before the program has begun the interrupt simply ends it.
		if now := names(t, home.Dir); now != before {
			t.Errorf("interrupted after %d, it left %s; before there was %s", after, now, before)
		}
	}
}

// names are the names in a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func TestSecondGatewayIsRefused(t *testing.T) {
	home := rig.NewHome(t, binary)
	first := home.Serve()
	c := home.Authorize("Client")

	begun := time.Now()
	second := home.Run("serve")
	if took := time.Since(begun); took > time.Second {
		t.Errorf("the refusal took %v", took)
	}
	if second.Code != 1 || second.Stdout != "" || !strings.Contains(second.Stderr, fmt.Sprintf("process %d", first.PID())) {
		t.Errorf("got %+v", second)
	}
	session, err := c.Connect(t.Context(), "client", c.Token.AccessToken)
	if err != nil {
		t.Fatalf("the first gateway is harmed: %v", err)
	}
	if err := session.Call(t.Context(), "list_peers", object{}, nil); err != nil {
		t.Errorf("the first gateway is harmed: %v", err)
	}
	session.Close()

	first.Kill()
	home.Serve() // works at once
	session, err = c.Connect(t.Context(), "client", c.Token.AccessToken)
	if err != nil {
		t.Fatalf("the token is gone with the killed gateway: %v", err)
	}
	session.Close()
}
