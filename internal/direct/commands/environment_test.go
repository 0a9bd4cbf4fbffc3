package commands_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestEnvironmentHasNoSecretsAndAsksNobody(t *testing.T) {
	h := newHost(t, func(h *host) {
		vars := map[string]string{"HOME": "/home/x", "WEBHOOK_TOKEN": "secret", "LANG": "C.UTF-8", "JAVA_HOME": "/jdk", "PATH": "/evil"}
		h.options.Getenv = func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
		h.options.Pass = []string{"JAVA_HOME"}
	})
	out := h.run("r", "env; cat; tty; ps -o tty= -p $$")
	got := text(*out.Output)
	for _, want := range []string{"HOME=/home/x\n", "LANG=C.UTF-8\n", "JAVA_HOME=/jdk\n", "GIT_TERMINAL_PROMPT=0\n", "PAGER=cat\n", "PATH=" + os.Getenv("PATH") + "\n", "not a tty\n", "PWD=" + h.project + "\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, "secret") || strings.Contains(got, "/evil") {
		t.Errorf("the gateway's environment went to the command:\n%s", got)
	}
}

func TestTheLoginShellSaysThePath(t *testing.T) {
	shell := func(script string) string {
		path := filepath.Join(t.TempDir(), "shell")
		os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700)
		return path
	}
	for name, c := range map[string]struct{ script, want string }{
		"banner": {`echo Welcome; printf "\\0\\0"; exit 0`, ""},
		"shell":  {`PATH=/from/shell:/bin:/usr/bin; export PATH; echo hi; exec /bin/sh -c "$3"`, "/from/shell:/bin:/usr/bin"},
		"fails":  {`exit 1`, ""},
		"hangs":  {`sleep 60`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := shell(c.script)
			h := newHost(t, func(h *host) {
				h.options.Path = ""
				h.options.Getenv = func(n string) (string, bool) { return map[string]string{"SHELL": path}[n], n == "SHELL" }
			})
			got := strings.TrimSpace(text(*h.run("r", "echo $PATH").Output))
			if want := c.want; want != "" && got != want || want == "" && !strings.HasPrefix(got, "/usr/local/bin:") {
				t.Fatalf("PATH is %q", got)
			}
		})
	}
}

// TestCommandsInheritNoFiles: what whoever started the gateway had open stays
// with the gateway.
func TestCommandsInheritNoFiles(t *testing.T) {
	h := newHost(t)
	inherited, err := syscall.Dup(int(os.Stdin.Fd())) // unlike what Go opens, it goes to children
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	out := h.run("r", fmt.Sprintf("if test -e /dev/fd/%d; then echo there; else echo absent; fi", inherited))
	if got := text(*out.Output); got != "absent\n" {
		t.Errorf("descriptor %d is %s", inherited, got)
	}
}
