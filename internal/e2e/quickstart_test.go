package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentrelay/internal/config"
)

// newcomer is somebody who follows a page word for word: a home of his own, a clean
// checkout, and a shell that keeps its directory and its variables.
type newcomer struct {
	*testing.T
	home    string
	cwd     string
	path    string
	port    string // in the place of 6768, when that is taken on this machine
	gateway *exec.Cmd
	log     *lockedBuffer
	ended   chan struct{}
}

// checkout is a repository with the files of this work tree in it.
func checkout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	copyAll := exec.Command("bash", "-c", `cd "$1" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ -e "$f" ] && printf '%s\0' "$f"; done | tar --null -T - -cf - | tar -xf - -C "$2"`, "sh", root, dir)
	for _, cmd := range []*exec.Cmd{
		copyAll, exec.Command("git", "-C", dir, "init", "-q"), exec.Command("git", "-C", dir, "add", "-A"),
		exec.Command("git", "-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "a checkout"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	return dir
}

func newNewcomer(t *testing.T) *newcomer {
	t.Helper()
	home, err := os.MkdirTemp("", "new") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("chmod", "-R", "u+w", home).Run(); os.RemoveAll(home) })
	n := &newcomer{T: t, home: home, cwd: home, log: &lockedBuffer{}}
	// No service manager runs in a test: this one takes everything.
	bin := filepath.Join(home, "system-bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, bin, "systemctl", "#!/bin/sh\ncase \"$*\" in *KillMode*) echo process;; *show*) printf 'ActiveState=active\\nSubState=running\\nUnitFileState=enabled\\n';; esac\n")
	write(t, bin, "loginctl", "#!/bin/sh\necho yes\n")
	for _, name := range []string{"systemctl", "loginctl"} {
		if err := os.Chmod(filepath.Join(bin, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.path = bin + ":" + os.Getenv("PATH")
	if l, err := net.Listen("tcp", "127.0.0.1:6768"); err == nil {
		l.Close()
	} else {
		n.port = fmt.Sprint(unusedPort(t))
	}
	t.Cleanup(n.stop)
	return n
}

func (n *newcomer) env() []string {
	env := []string{"HOME=" + n.home, "PATH=" + n.path, "TMPDIR=" + os.TempDir(), "GOTOOLCHAIN=local"}
	// What was downloaded and built before is found again; nothing else is.
	for _, name := range []string{"GOMODCACHE", "GOCACHE", "GOPROXY"} {
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			n.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(out)))
	}
	return env
}

// do runs one line of a page and returns what it printed.
func (n *newcomer) do(line string) string {
	n.Helper()
	if n.port != "" {
		if line == "gateway init" {
			line += " --port " + n.port
		}
	}
	if strings.HasSuffix(line, "gateway serve") {
		n.start(line)
		return ""
	}
	if line == "gateway service install" {
		n.stop() // the page says Ctrl-C
	}
	ctx, cancel := context.WithTimeout(n.Context(), 10*time.Minute)
	defer cancel()
	// The shell tells where it ended up, as the terminal of a person would remember.
	cmd := exec.CommandContext(ctx, "bash", "-ec", line+"\nprintf '\\0%s\\0%s' \"$PWD\" \"$PATH\"")
	cmd.Dir, cmd.Env = n.cwd, n.env()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		n.Fatalf("$ %s\n%v\n%s%s%s", line, err, &stdout, &stderr, n.log)
	}
	parts := strings.Split(stdout.String(), "\x00")
	n.cwd, n.path = parts[len(parts)-2], parts[len(parts)-1]
	n.Logf("$ %s\n%s", line, parts[0])
	return parts[0]
}

// start runs the gateway in a terminal of its own, until it is ready.
func (n *newcomer) start(line string) {
	n.Helper()
	n.stop()
	cmd := exec.Command("bash", "-c", "exec "+line)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = n.cwd, n.env(), n.log, n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	n.gateway, n.ended = cmd, ended
	for deadline := time.Now().Add(time.Minute); !strings.Contains(n.log.String(), "is ready at"); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			n.Fatalf("$ %s\n%s", line, n.log)
		default:
		}
		if time.Now().After(deadline) {
			n.Fatalf("$ %s\nis not ready\n%s", line, n.log)
		}
	}
}

// stop is Ctrl-C.
func (n *newcomer) stop() {
	if n.gateway == nil {
		return
	}
	_ = syscall.Kill(-n.gateway.Process.Pid, syscall.SIGINT)
	select {
	case <-n.ended:
	case <-time.After(30 * time.Second):
		_ = syscall.Kill(-n.gateway.Process.Pid, syscall.SIGKILL)
		<-n.ended
		n.Error("the gateway did not stop")
	}
	n.gateway = nil
}

// fenced finds the blocks of a page.
func fenced(t *testing.T, page, kind string) []string {
	t.Helper()
	raw, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```$").FindAllStringSubmatch(string(raw), -1) {
		blocks = append(blocks, m[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no block of %s", page, kind)
	}
	return blocks
}

// follow does every command of a page.
func (n *newcomer) follow(page, repository string) {
	n.Helper()
	for _, block := range fenced(n.T, page, "sh") {
		for line := range strings.Lines(block) {
			if line = strings.TrimSpace(line); line != "" {
				n.do(strings.ReplaceAll(line, "<this repository>", repository))
			}
		}
	}
}

// TestQuickStart follows docs/quick-start.md and the README from a clean home.
func TestQuickStart(t *testing.T) {
	repository := checkout(t)
	for _, page := range []string{"docs/quick-start.md", "README.md"} {
		t.Run(page, func(t *testing.T) {
			n := newNewcomer(t)
			n.follow(page, repository)
			if page != "README.md" {
				return
			}
			if out := n.do("gateway doctor --json"); !strings.Contains(out, `"failed": 0`) {
				t.Errorf("the doctor finds faults in a new installation:\n%s", out)
			}
		})
	}
}

// TestConfigsOfThePages: each piece of a config on a page is one that the gateway takes.
func TestConfigsOfThePages(t *testing.T) {
	home := t.TempDir()
	for _, page := range []string{"docs/quick-start.md", "docs/clients/grok.md", "docs/clients/local-agents.md"} {
		for _, block := range fenced(t, page, "json") {
			if !json.Valid([]byte(block)) {
				t.Errorf("%s: not JSON:\n%s", page, block)
				continue
			}
			if _, _, err := config.Parse("config.json", []byte(block), func(name string) string { return map[string]string{"HOME": home}[name] }); err != nil {
				t.Errorf("%s: %v\n%s", page, err, block)
			}
		}
	}
}
