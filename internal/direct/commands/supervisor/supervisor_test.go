package supervisor

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
)

// Each command starts a supervisor, so what it links is paid for each time.
func TestItLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, heavy := range []string{"net/http", "database/sql", "crypto/tls", "html/template", "os/exec"} {
		for _, dep := range deps {
			if dep == heavy {
				t.Errorf("it links %s", heavy)
			}
		}
	}
	for _, dep := range deps {
		if first, _, _ := strings.Cut(dep, "/"); strings.Contains(first, ".") && !strings.HasPrefix(dep, "golang.org/x/sys/") {
			t.Errorf("it links %s", dep)
		}
		if strings.HasPrefix(dep, "agentrelay/") && !strings.HasPrefix(dep, "agentrelay/internal/direct/commands/") {
			t.Errorf("it links %s", dep)
		}
	}
}

func TestBadUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{{nil, exitUsage}, {[]string{"a", "b"}, exitUsage}, {[]string{t.TempDir()}, exitFailed}} {
		var said bytes.Buffer
		if code := Supervise(context.Background(), c.args, Stdio{Err: &said}); code != c.code || said.Len() == 0 {
			t.Errorf("%q: exit %d, said %q", c.args, code, said.String())
		}
	}
}
