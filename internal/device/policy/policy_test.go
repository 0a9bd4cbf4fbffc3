package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/devices/wire"
)

func file(t *testing.T, text string) File {
	t.Helper()
	f := File{filepath.Join(t.TempDir(), "conf", "policy.json")}
	if text != "" {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func TestAllowAndRevoke(t *testing.T) {
	f := file(t, "")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := f.Allow("laptop", fmt.Sprintf("tool-%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	p, err := f.Read()
	if err != nil || len(p.AutoAllow) != 20 || !p.Allows("laptop", "tool-7") || p.Allows("phone", "tool-7") {
		t.Fatalf("%+v %v", p, err)
	}
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if found, err := f.Revoke("laptop:tool-7"); !found || err != nil {
		t.Error(found, err)
	}
	if found, err := f.Revoke("laptop:tool-7"); found || err != nil {
		t.Error(found, err)
	}
	if p, _ := f.Read(); p.Allows("laptop", "tool-7") || !p.Allows("laptop", "tool-8") {
		t.Errorf("%+v", p)
	}
}

func TestKeepsWhatItDoesNotKnow(t *testing.T) {
	f := file(t, `{"approval_timeout_ms": 5000, "mine": {"a": 1}}`)
	if err := f.Allow("laptop", "run"); err != nil {
		t.Fatal(err)
	}
	raw, _ := os.ReadFile(f.Path)
	p, err := f.Read()
	if err != nil || p.Timeout != 5*time.Second || !strings.Contains(string(raw), `"mine"`) {
		t.Errorf("%s\n%+v %v", raw, p, err)
	}
}

func TestWhatIsNotUnderstoodAllowsNothing(t *testing.T) {
	for text, want := range map[string]string{
		`{"autoallow": ["laptop:run"]`:       "not a JSON object",
		`[]`:                                 "not a JSON object",
		`null`:                               "not a JSON object",
		`{"autoallow": "laptop:run"}`:        "wrong type",
		`{"autoallow": ["*"]}`:               "not device:tool",
		`{"autoallow": ["laptop:run\u00a0`:   "not a JSON object",
		`{"approval_timeout_ms": "forever"}`: "wrong type",
	} {
		f := file(t, text)
		p, err := f.Read()
		if err == nil || !strings.Contains(err.Error(), want) || len(p.AutoAllow) != 0 || p.Timeout != wire.ApprovalBudget {
			t.Errorf("%s: %+v %v", text, p, err)
		}
		if err := f.Allow("laptop", "run"); err == nil {
			t.Errorf("%s was overwritten", text)
		}
		if raw, _ := os.ReadFile(f.Path); string(raw) != text {
			t.Errorf("%s became %s", text, raw)
		}
	}
	f := file(t, `{"autoallow": ["laptop:run"]}`)
	if err := os.Chmod(f.Path, 0o622); err != nil {
		t.Fatal(err)
	}
	if p, err := f.Read(); err == nil || p.Allows("laptop", "run") {
		t.Errorf("a file that others write: %+v %v", p, err)
	}
}

func TestTimeoutIsClamped(t *testing.T) {
	for ms, want := range map[string]time.Duration{"-5": MinTimeout, "0": MinTimeout, "9999999999": MaxTimeout, "30000": 30 * time.Second} {
		if p, err := file(t, `{"approval_timeout_ms": `+ms+`}`).Read(); err != nil || p.Timeout != want {
			t.Errorf("%s: %+v %v", ms, p, err)
		}
	}
}

func TestNames(t *testing.T) {
	got, err := Names([]string{"run,read_file", " job-start "})
	if err != nil || len(got) != 3 || !got["read-file"] || !got["job-start"] {
		t.Error(got, err)
	}
	if _, err := Names([]string{"run,"}); err == nil {
		t.Error("an empty name was taken")
	}
}
