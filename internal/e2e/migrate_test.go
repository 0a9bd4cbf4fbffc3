package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/e2e/rig"
)

// Two clients with domains of their own become one: what each had is there for both,
// under the same ids, and what ran does not run again. The backup leads back, byte for
// byte.
func TestTwoClientsGetOneDomain(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Configure("sharedOwner", false)
	withProjects(t, home)
	g := home.Serve()
	clients := map[string]*rig.Client{"ann": home.Authorize("Ann"), "bob": home.Authorize("Bob")}
	messages := map[string]string{}
	for name, c := range clients {
		s := connect(t, c)
		for _, peer := range []string{name, name + "-dot", "same"} {
			do[object](t, s, "register_peer", object{"peerId": peer, "kind": "chat"})
		}
		messages[name] = "00000000-0000-4000-8000-00000000000" + map[string]string{"ann": "a", "bob": "b"}[name]
		do[object](t, s, "send_peer_message", object{"messageId": messages[name], "fromPeerId": name, "toPeerId": name + "-dot", "text": "of " + name})
		do[object](t, s, "run_direct_command", object{"projectId": "site", "requestId": "run-" + name, "argv": []string{"sh", "-c", "echo x >> ran-" + name}, "waitMs": 20000})
	}
	if r := home.Run("migrate", "shared-owner"); r.Code != 1 || !strings.Contains(r.Stderr, "stop the gateway first") {
		t.Errorf("under a running gateway: %+v", r)
	}
	g.Stop()

	backups := filepath.Join(home.Dir, "before")
	args := []string{"migrate", "shared-owner", "--state-dir", home.StateDir, "--backup-dir", backups}
	refused := home.Run(append(args, "--apply")...)
	if refused.Code != 1 || !strings.Contains(refused.Stdout, `CONFLICT: the peer "same"`) || !strings.Contains(refused.Stdout, "gateway peers stop same --owner local-owner:") {
		t.Fatalf("a conflict: %+v", refused)
	}
	if _, err := os.Stat(backups); err == nil {
		t.Error("a backup was made for nothing")
	}
	home.OK("peers", "stop", "same", "--owner", "local-owner:"+clients["bob"].ID)

	// By the script, which takes the gateway on the PATH.
	bin := filepath.Join(home.Dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(bin, "gateway")); err != nil {
		t.Fatal(err)
	}
	script := func(more ...string) string {
		t.Helper()
		cmd := exec.Command("../../scripts/migrate-shared-owner", append(args[2:], more...)...)
		cmd.Env = []string{"HOME=" + home.Dir, "PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if out := script(); !strings.Contains(out, "Nothing was changed") || !strings.Contains(out, "same.archived-") {
		t.Errorf("the rehearsal says\n%s", out)
	}
	var done struct {
		Applied bool
		Backup  string
		Moved   map[string]int
	}
	if err := json.Unmarshal([]byte(script("--apply", "--json")), &done); err != nil || !done.Applied || done.Moved["mailbox_messages"] != 2 {
		t.Fatalf("%+v, %v", done, err)
	}

	home.Configure("sharedOwner", true)
	g = home.Serve()
	for name, c := range clients {
		s := connect(t, c)
		peers := do[struct{ Peers []struct{ PeerID string } }](t, s, "list_peers", object{})
		if len(peers.Peers) != 5 {
			t.Errorf("%s sees %v", name, peers.Peers)
		}
		for of, id := range messages {
			if m := do[struct{ Message struct{ Text string } }](t, s, "get_peer_message", object{"messageId": id}).Message; m.Text != "of "+of {
				t.Errorf("%s reads %q of %s", name, m.Text, of)
			}
			again := do[struct{ Duplicate bool }](t, s, "run_direct_command", object{"projectId": "site", "requestId": "run-" + of, "argv": []string{"sh", "-c", "echo x >> ran-" + of}, "waitMs": 20000})
			if raw, err := os.ReadFile(filepath.Join(home.Dir, "projects", "site", "ran-"+of)); err != nil || string(raw) != "x\n" || !again.Duplicate {
				t.Errorf("%s: what %s ran left %q, duplicate %v, %v", name, of, raw, again.Duplicate, err)
			}
		}
	}
	g.Stop()

	home.OK("restore", done.Backup)
	for _, name := range []string{"gateway.db", "sealing.key", "owner.json"} {
		if want, got := file(t, done.Backup, name), file(t, home.StateDir, name); want != got {
			t.Errorf("%s is not the one of the backup", name)
		}
	}
	home.Configure("sharedOwner", false)
	home.Serve()
	s := connect(t, clients["bob"])
	if err := s.Call(t.Context(), "get_peer_message", object{"messageId": messages["ann"]}, nil); refusedAs(err) != "unknown_message" {
		t.Errorf("after going back, Bob reads what is Ann's: %v", err)
	}
	do[object](t, s, "get_peer_message", object{"messageId": messages["bob"]})
}

func file(t *testing.T, parts ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
