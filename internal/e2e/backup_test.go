package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	_ "modernc.org/sqlite"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

// mailboxes makes the peers a and b.
func mailboxes(t *testing.T, s *client.Session) {
	t.Helper()
	for _, id := range []string{"a", "b"} {
		do[object](t, s, "register_peer", object{"peerId": id, "kind": "chat"})
	}
}

func send(ctx context.Context, s *client.Session, text string) (id string, err error) {
	id = uuid.NewString()
	return id, s.Call(ctx, "send_peer_message", object{"messageId": id, "fromPeerId": "a", "toPeerId": "b", "text": text}, nil)
}

// madeBackup is what gateway backup --json says.
type madeBackup struct {
	ID, Path string
}

func makeBackup(t *testing.T, home *rig.Home, more ...string) madeBackup {
	t.Helper()
	var made madeBackup
	if err := json.Unmarshal([]byte(home.OK(append([]string{"backup", "--json"}, more...)...)), &made); err != nil {
		t.Fatal(err)
	}
	return made
}

func TestBackupOfABusyGatewayHasWhatWasAcknowledged(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Configure("mailbox", object{"limits": object{"pairPerHour": 0, "ownerPerHour": 0}})
	home.Serve()
	c := home.Authorize("Client")
	mailboxes(t, connect(t, c))

	var mu sync.Mutex
	acknowledged, sent := map[string]bool{}, map[string]bool{}
	snapshot := func(of map[string]bool) map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		copied := map[string]bool{}
		for id := range of {
			copied[id] = true
		}
		return copied
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		s := connect(t, c)
		wg.Go(func() {
			for ctx.Err() == nil {
				id := uuid.NewString()
				mu.Lock()
				sent[id] = true
				mu.Unlock()
				err := s.Call(t.Context(), "send_peer_message", object{"messageId": id, "fromPeerId": "a", "toPeerId": "b", "text": "work"}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged[id] = true
				mu.Unlock()
			}
		})
	}
	to := filepath.Join(home.Dir, "elsewhere")
	for range 5 {
		before := snapshot(acknowledged)
		made := makeBackup(t, home, "--to", to)
		after := snapshot(sent)
		home.OK("backup", "verify", made.Path)
		have := messagesIn(t, filepath.Join(made.Path, "gateway.db"))
		for id := range before {
			if !have[id] {
				t.Errorf("%s lacks a message that was acknowledged before it", made.ID)
			}
		}
		for id := range have {
			if !after[id] {
				t.Errorf("%s has a message that nobody had sent", made.ID)
			}
		}
	}
	stop()
	wg.Wait()
	t.Logf("%d messages", len(acknowledged))
	if out := home.OK("backup", "list", "--in", to); strings.Count(out, "-manual") != 5 {
		t.Errorf("listed are\n%s", out)
	}
}

// messagesIn are the message ids in a database that nobody uses.
func messagesIn(t *testing.T, path string) map[string]bool {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT message_id FROM mailbox_messages`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	ids := map[string]bool{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	return ids
}

// What the owner and the clients of a gateway meet after a restore: whoever still has
// a token of that time goes on, the others connect again and nobody is taken for a
// thief; what ran once does not run again.
func TestRestoreAsItsUsersSeeIt(t *testing.T) {
	home := rig.NewHome(t, binary)
	project := filepath.Join(home.Dir, "project")
	if err := os.Mkdir(project, 0o755); err != nil {
		t.Fatal(err)
	}
	home.Configure("sharedOwner", true)
	home.Configure("allowedRoots", []string{project})
	home.Configure("direct", object{"projects": []object{{"id": "p", "path": project, "commandMode": "full"}}})
	g := home.Serve()
	stays, renews := home.Authorize("Stays"), home.Authorize("Renews")
	s := connect(t, stays)
	mailboxes(t, s)
	first, err := send(t.Context(), s, "before")
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *client.Session, requestID string) (duplicate bool) {
		t.Helper()
		out := do[struct {
			State     string
			Duplicate bool
		}](t, s, "run_direct_command", object{"projectId": "p", "requestId": requestID, "argv": []string{"sh", "-c", "echo x >> ran-" + requestID}, "waitMs": 20000})
		if out.State != "exited" {
			t.Errorf("%s: %+v", requestID, out)
		}
		return out.Duplicate
	}
	run(s, "early")

	made := makeBackup(t, home)

	run(s, "late")
	second, err := send(t.Context(), s, "after")
	if err != nil {
		t.Fatal(err)
	}
	old := renews.Token
	if renews.Token, err = renews.Refresh(t.Context(), renews.ID, old.RefreshToken); err != nil {
		t.Fatal(err)
	}
	comes := home.Authorize("Comes")

	refused := home.Run("restore", made.ID)
	if refused.Code != 1 || !strings.Contains(refused.Stderr, "stop the gateway first") {
		t.Errorf("under a running gateway: %+v", refused)
	}
	if code := g.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	out := home.OK("restore", made.ID)
	for _, want := range []string{"is kept in " + home.StateDir + ".before-restore-", "connect again", "gateway serve"} {
		if !strings.Contains(out, want) {
			t.Errorf("restore does not say %q:\n%s", want, out)
		}
	}
	home.Serve()

	s = connect(t, stays)
	do[object](t, s, "get_peer_message", object{"messageId": first})
	if err := s.Call(t.Context(), "get_peer_message", object{"messageId": second}, nil); err == nil {
		t.Error("a message that came after the backup is there")
	}
	for _, requestID := range []string{"early", "late"} {
		if !run(s, requestID) {
			t.Errorf("%s ran a second time", requestID)
		}
		if raw, err := os.ReadFile(filepath.Join(project, "ran-"+requestID)); err != nil || string(raw) != "x\n" {
			t.Errorf("%s left %q, %v", requestID, raw, err)
		}
	}
	// The refresh token that came after the backup is unknown, and takes nothing down
	// with it: the one before it is good again.
	if _, err := renews.Refresh(t.Context(), renews.ID, renews.Token.RefreshToken); refusedWith(err) != "invalid_grant" {
		t.Errorf("the newer refresh token: %v", err)
	}
	if renews.Token, err = renews.Refresh(t.Context(), renews.ID, old.RefreshToken); err != nil {
		t.Errorf("the refresh token of that time: %v", err)
	}
	connect(t, renews)
	if _, err := comes.Refresh(t.Context(), comes.ID, comes.Token.RefreshToken); err == nil {
		t.Error("a client that came after the backup is known")
	}
	home.Authorize("Comes") // and connects again
	if audit := home.OK("status", "--json", "--audit", "50"); !strings.Contains(audit, `"backup.restore"`) {
		t.Errorf("the restore is not on record:\n%s", audit)
	}
}

// A gateway moves: nothing but the backup comes to the other machine.
func TestRestoreOnANewMachine(t *testing.T) {
	home := rig.NewHome(t, binary)
	g := home.Serve()
	c := home.Authorize("Client")
	mailboxes(t, connect(t, c))
	made := makeBackup(t, home, "--to", filepath.Join(home.Dir, "usb"))
	if code := g.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, gone := range []string{home.ConfigPath, home.StateDir} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
	}
	if out := home.OK("restore", made.Path); !strings.Contains(out, "The config of the backup is now") {
		t.Errorf("it says\n%s", out)
	}
	home.Serve()
	out := do[struct{ Peers []object }](t, connect(t, c), "list_peers", object{})
	if len(out.Peers) != 2 {
		t.Errorf("the peers are %v", out.Peers)
	}
}
