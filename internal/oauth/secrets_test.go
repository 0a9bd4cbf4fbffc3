package oauth

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestNoSecretIsStoredOrLogged(t *testing.T) {
	r := newRelay(t)
	id, first := r.login()
	added := r.addClient(true)
	used := r.code(id, claude)
	unused := r.code(id, claude)
	second := r.redeem(id, used)
	next := r.refresh(id, first.text("refresh_token"))
	replayed := r.refresh(id, first.text("refresh_token"))
	r.clock.advance(time.Hour)
	last := r.refresh(id, next.text("refresh_token"))
	secrets := []string{added.Secret, used, unused, verifier}
	for _, got := range []reply{first, second, next, replayed, last} {
		if got.status != 200 {
			t.Fatal(got.body)
		}
		secrets = append(secrets, got.text("access_token"), got.text("refresh_token"))
	}
	// Everything that can be refused, with the real secrets in it.
	r.redeem(id, used)
	r.refresh(id, first.text("refresh_token"))
	r.refresh("nobody", last.text("refresh_token"))
	r.form("/revoke", "client_id", id, "client_secret", added.Secret, "token", last.text("access_token"))
	r.form("/token", "grant_type", "refresh_token", "client_id", id, "refresh_token", last.text("refresh_token"), "refresh_token", "again")
	r.post("/register", "application/json", `{"redirect_uris":["https://x.test/`+used+`#x"]}`)
	if _, err := r.access(first.text("access_token")); err == nil {
		t.Fatal("the family should be dead by now")
	}
	if _, err := r.consent(authorizeParams(id, claude, "response_type", used)); err == nil {
		t.Fatal("not refused")
	}
	if err := r.server.Close(context.Background()); err != nil {
		t.Fatal(err)
	}

	places := map[string][]byte{"log": []byte(r.log.String())}
	err := filepath.WalkDir(r.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		places[d.Name()], err = os.ReadFile(path)
		return err
	})
	if err != nil || len(places["gateway.db-wal"]) == 0 {
		t.Fatal(err, len(places))
	}
	for name, content := range places {
		for i, secret := range secrets {
			if secret == "" || bytes.Contains(content, []byte(secret)) {
				t.Errorf("secret %d is in clear in %s", i, name)
			}
		}
	}
}
