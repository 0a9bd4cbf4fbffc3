package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/e2e/rig"
)

// systemd takes the units as they are shipped, and as they are installed.
func TestSystemdTakesTheUnits(t *testing.T) {
	home := rig.NewHome(t, binary)
	dir := t.TempDir()
	verify := func(name, text string, userUnit bool) {
		t.Helper()
		path := filepath.Join(dir, name, "agent-relay.service")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		args := []string{"verify", "--man=no"}
		if userUnit {
			args = append(args, "--user")
		}
		cmd := exec.Command("systemd-analyze", append(args, path)...)
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "agent-relay.service:") {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
		}
	}
	// The program and the user of the shipped files need not be on this machine.
	present := func(text string) string {
		lines := strings.Split(text, "\n")
		for i, l := range lines {
			if strings.HasPrefix(l, "ExecStart=") {
				lines[i] = "ExecStart=" + binary + " serve"
			}
			if strings.HasPrefix(l, "User=") {
				lines[i] = "User=daemon"
			}
		}
		return strings.Join(lines, "\n")
	}
	verify("system", present(file(t, "../../packaging/systemd/agent-relay.service")), false)
	verify("user", present(file(t, "../../packaging/systemd/user/agent-relay.service")), true)
	for name, args := range map[string][]string{"installed": nil, "installed-system": {"--system", "--user", "daemon"}} {
		out := home.OK(append([]string{"service", "install", "--manager", "systemd", "--dry-run", "--config", home.ConfigPath}, args...)...)
		_, text, found := strings.Cut(out, "\n\n")
		text, _, ran := strings.Cut(text, "\nWould run:")
		if !found || !ran {
			t.Fatalf("the rehearsal says\n%s", out)
		}
		verify(name, text, args == nil)
	}
}

// The gateway tells a service manager when it is ready, that it works, and when it
// stops.
func TestNotifiesItsManager(t *testing.T) {
	home := rig.NewHome(t, binary)
	path := filepath.Join(home.Dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	hear := func() string {
		t.Helper()
		_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
		b := make([]byte, 1000)
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	cmd := home.Command("serve")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=150000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if got := hear(); !strings.HasPrefix(got, "READY=1\nSTATUS=") {
		t.Errorf("first it says %q", got)
	}
	for range 5 {
		if got := hear(); got != "WATCHDOG=1" {
			t.Errorf("then it says %q", got)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for {
		got := hear()
		if got == "STOPPING=1" {
			break
		}
		if got != "WATCHDOG=1" {
			t.Fatalf("at the end it says %q", got)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
