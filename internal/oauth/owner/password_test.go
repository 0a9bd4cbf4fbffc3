package owner_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/oauth/owner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const password = "abcd-efgh-ijkm-npqr-stuv-wxyz-abcd"

func TestGeneratedPasswords(t *testing.T) {
	form := regexp.MustCompile(`^[a-km-np-z]{4}(-[a-km-np-z]{4}){6}$`)
	seen := map[string]bool{}
	letters := map[rune]int{}
	for range 500 {
		pw, err := owner.GeneratePassword(rand.Reader)
		if err != nil || !form.MatchString(pw) || seen[pw] {
			t.Fatalf("password %q, %v", pw, err)
		}
		seen[pw] = true
		for _, r := range strings.ReplaceAll(pw, "-", "") {
			letters[r]++
		}
	}
	if bits := 28 * math.Log2(float64(len(letters))); bits < 128 {
		t.Errorf("%d letters are used: %.1f bits", len(letters), bits)
	}
	for r, n := range letters { // 583 each are expected; 6 standard deviations
		if n < 440 || n > 726 {
			t.Errorf("letter %c came %d times", r, n)
		}
	}
}

func TestPasswordFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	if err := owner.WritePassword(path, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	raw, _ := os.ReadFile(path)
	if strings.Contains(string(raw), password) || !strings.HasPrefix(string(raw), `{"ownerTokenHash":"$argon2id$v=19$m=19456,t=2,p=1$`) {
		t.Errorf("the file holds %s", raw)
	}
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(pw string, want bool) {
		t.Helper()
		if got, err := p.Verify(t.Context(), pw); err != nil || got != want {
			t.Errorf("Verify = %v, %v; want %v", got, err, want)
		}
	}
	check(password, true)
	check(" "+password+"\r\n", true)
	check("", false)
	check(password+"x", false)
	check(strings.Repeat("x", 1<<20), false)

	other := strings.ReplaceAll(password, "a", "z")
	if err := owner.WritePassword(path, other, rand.Reader, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing file was not kept: %v", err)
	}
	check(password, true)
	if err := owner.WritePassword(path, other, rand.Reader, true); err != nil {
		t.Fatal(err)
	}
	check(password, false) // a running gateway hears of it
	check(other, true)
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 1 {
		t.Errorf("files are left over: %v", files)
	}

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), other); err == nil {
		t.Error("without a file the answer is no error")
	}
	for _, short := range []string{"", "fifteen letters", "          \n      "} {
		if err := owner.WritePassword(path, short, rand.Reader, false); err == nil {
			t.Errorf("%q became a password", short)
		}
	}
}

func TestPlainOwnerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	os.WriteFile(path, []byte(`{"ownerToken":"`+password+`"}`+"\n"), 0o600)
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	for pw, want := range map[string]bool{password: true, password + " ": true, password[1:]: false, "": false} {
		if got, err := p.Verify(t.Context(), pw); err != nil || got != want {
			t.Errorf("Verify(%q) = %v, %v", pw, got, err)
		}
	}
}

func TestRefusedOwnerFiles(t *testing.T) {
	hash, err := owner.HashPassword(password, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "owner.json")
	good := `{"ownerTokenHash":"` + hash + `"}`
	for _, c := range []struct {
		name, content string
		mode          os.FileMode
		want          string // in the error
	}{
		{"group may read", good, 0o640, "chmod 600 " + path},
		{"others may read", good, 0o604, "chmod 600 " + path},
		{"empty", "", 0o600, "must be"},
		{"no JSON", password, 0o600, "must be"},
		{"no object", `["` + hash + `"]`, 0o600, "must be"},
		{"no key", `{}`, 0o600, "must be"},
		{"both keys", `{"ownerToken":"` + password + `","ownerTokenHash":"` + hash + `"}`, 0o600, "nothing else"},
		{"other key", `{"ownertoken":"` + password + `"}`, 0o600, `unknown key "ownertoken"`},
		{"short", `{"ownerToken":"hunter2"}`, 0o600, "16 to 1024 bytes"},
		{"number", `{"ownerToken":1234567890123456}`, 0o600, "must be a string"},
		{"bcrypt", `{"ownerTokenHash":"$2b$12$abcdefghijklmnopqrstuv"}`, 0o600, "argon2id"},
		{"argon2i", strings.Replace(good, "argon2id", "argon2i", 1), 0o600, "argon2id"},
		{"old version", strings.Replace(good, "v=19", "v=16", 1), 0o600, "standard form"},
		{"too costly", strings.Replace(good, "m=19456", "m=4194304", 1), 0o600, "out of bounds"},
		{"free", strings.Replace(good, "t=2", "t=0", 1), 0o600, "out of bounds"},
		{"trailing", strings.Replace(good, "p=1", "p=1,x=2", 1), 0o600, "standard form"},
		{"bad base64", strings.Replace(good, "p=1$", "p=1$*", 1), 0o600, "base64"},
		{"huge", good + strings.Repeat(" ", 9000), 0o600, "longer than"},
	} {
		if err := errors.Join(os.WriteFile(path, []byte(c.content), c.mode), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		_, err := owner.LoadPassword(path)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		} else if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error repeats the password: %v", c.name, err)
		}
		os.Remove(path)
	}
	if _, err := owner.LoadPassword(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := owner.LoadPassword(dir); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a directory: %v", err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.LoadPassword(path); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Errorf("a pipe: %v", err)
	}
}

func TestVerifyWaitsItsTurn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "owner.json")
	if err := owner.WritePassword(path, password, rand.Reader, false); err != nil {
		t.Fatal(err)
	}
	p, err := owner.LoadPassword(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if ok, err := p.Verify(t.Context(), password); !ok || err != nil {
				t.Errorf("a waiting check: %v %v", ok, err)
			}
			// Whether it got its turn or not, it is never a wrong verdict.
			if ok, err := p.Verify(ended, password); !ok && !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled check: %v %v", ok, err)
			}
		})
	}
	wg.Wait()
}

func FuzzOwnerFile(f *testing.F) {
	hash, _ := owner.HashPassword(password, rand.Reader)
	f.Add(`{"ownerTokenHash":"` + hash + `"}`)
	f.Add(`{"ownerToken":"` + password + `"}`)
	f.Add(`{"ownerTokenHash":"$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA"}`)
	path := filepath.Join(f.TempDir(), "owner.json")
	f.Fuzz(func(t *testing.T, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := owner.LoadPassword(path); err == nil && !strings.Contains(content, "ownerToken") && !strings.Contains(content, `\u`) {
			t.Errorf("%q was accepted", content)
		}
	})
}
