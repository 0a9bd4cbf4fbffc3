package gateway

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/audit"
	"agentrelay/internal/config"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/principal"
)

// seeded is a home whose gateway has two peers and three messages.
func seeded(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	h.terminal = true
	h.init()
	c, _, err := config.Load(h.configPath(), h.env(nil, nil).Getenv)
	if err != nil {
		t.Fatal(err)
	}
	at := now
	b, closeBackend, err := admin.Open(t.Context(), c, func() time.Time { return at }, &counter{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer closeBackend()
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "seed", Permissions: principal.Full()}
	name := "Main chat"
	for _, p := range []mailbox.RegisterPeerIn{{PeerID: "chat-main", Kind: mailbox.Chat, DisplayName: &name}, {PeerID: "grok-bot", Kind: mailbox.Dot}} {
		at = at.Add(-90 * time.Minute)
		if _, err := b.Mailbox.RegisterPeer(t.Context(), who, p); err != nil {
			t.Fatal(err)
		}
	}
	for i, age := range []time.Duration{40 * 24 * time.Hour, 3 * time.Hour, 3 * time.Minute} {
		at = now.Add(-age)
		in := mailbox.SendPeerMessageIn{MessageID: "00000000-0000-4000-8000-00000000000" + string(rune('1'+i)), FromPeerID: "chat-main", ToPeerID: "grok-bot", Text: secretText}
		if _, err := b.Mailbox.SendPeerMessage(t.Context(), who, in); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := b.Mailbox.AckPeerMessage(t.Context(), who, mailbox.AckPeerMessageIn{MessageID: in.MessageID, PeerID: "grok-bot"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return h
}

// secretText is the text of every message; no command may show it.
const secretText = "the launch code is 0000"

// bothWays runs a test with and without a running gateway.
func bothWays(t *testing.T, make func(*testing.T) *home, test func(*testing.T, *home)) {
	for _, running := range []bool{false, true} {
		t.Run(map[bool]string{true: "running", false: "not running"}[running], func(t *testing.T) {
			h := make(t)
			if running {
				h.serve()
			}
			test(t, h)
		})
	}
}

func fresh(t *testing.T) *home {
	h := newHome(t)
	h.terminal = true
	h.init()
	return h
}

func TestListsOfANewGateway(t *testing.T) {
	bothWays(t, fresh, func(t *testing.T, h *home) {
		port := regexp.MustCompile(`127\.0\.0\.1:\d+`)
		for _, noun := range []string{"clients", "peers", "messages"} {
			h.golden(noun+"-empty", port.ReplaceAllString(h.ok(noun, "list"), "127.0.0.1:6768"))
		}
		h.golden("purge-empty", h.ok("messages", "purge", "--before", "30d"))
	})
}

func TestPeers(t *testing.T) {
	bothWays(t, seeded, func(t *testing.T, h *home) {
		h.golden("peers", h.ok("peers", "list"))
		page := decode[mailbox.AllPeersOut](t, h.ok("peers", "list", "--json", "--limit", "1"))
		if len(page.Peers) != 1 || page.Peers[0].PeerID != "chat-main" || page.NextCursor == "" {
			t.Errorf("the first page: %+v", page)
		}
		page = decode[mailbox.AllPeersOut](t, h.ok("peers", "list", "--json", "--cursor", page.NextCursor))
		if len(page.Peers) != 1 || page.Peers[0].PeerID != "grok-bot" || page.NextCursor != "" {
			t.Errorf("the second page: %+v", page)
		}
		h.golden("peers-stop", h.ok("peers", "stop", "grok-bot")+h.ok("peers", "stop", "grok-bot")+h.ok("peers", "list")+h.ok("peers", "list", "--all"))
		if r := h.run("peers", "stop", "nobody"); r.code != ExitFailed || !strings.Contains(r.stderr, "gateway peers list --all") {
			t.Errorf("an unknown peer: %+v", r)
		}
		if out := decode[mailbox.StopPeerOut](t, h.ok("peers", "stop", "chat-main", "--json")); out.AlreadyStopped || out.Peer.State != mailbox.Stopped {
			t.Errorf("stopping: %+v", out)
		}
	})
}

func TestMessages(t *testing.T) {
	bothWays(t, seeded, func(t *testing.T, h *home) {
		h.golden("messages", h.ok("messages", "list"))
		out := decode[mailbox.AllMessagesOut](t, h.ok("messages", "list", "--json", "--peer", "grok-bot", "--state", "unprocessed", "--limit", "1"))
		if len(out.Messages) != 1 || !strings.HasSuffix(out.Messages[0].MessageID, "3") || out.NextCursor == "" {
			t.Errorf("got %+v", out)
		}
		if r := h.run("messages", "list", "--state", "new"); r.code != ExitUsage || strings.Contains(r.stderr, "tool") || r.stdout != "" {
			t.Errorf("an unknown state: %+v", r)
		}
	})
}

func TestPurge(t *testing.T) {
	bothWays(t, seeded, func(t *testing.T, h *home) {
		r := h.run("messages", "purge", "--before", "30d")
		if r.code != ExitUsage {
			t.Errorf("without --yes: %+v", r)
		}
		h.golden("purge-unconfirmed", r.stdout+r.stderr)
		h.golden("purge-dry-run", h.ok("messages", "purge", "--before", "1h", "--dry-run"))
		if list := decode[mailbox.AllMessagesOut](t, h.ok("messages", "list", "--json")); slices.ContainsFunc(list.Messages, func(m mailbox.OwnerMessage) bool { return !m.PurgedAt.IsZero() }) {
			t.Fatalf("something was removed: %+v", list)
		}
		h.golden("purge", h.ok("messages", "purge", "--before", "30d", "--yes")+h.ok("messages", "list"))
		out := decode[map[string]any](t, h.ok("messages", "purge", "--before", "2026-11-05T11:00:00Z", "--include-unprocessed", "--yes", "--json"))
		if out["purged"] != 1.0 || out["keptUnprocessed"] != 0.0 || out["dryRun"] != false || out["before"] != "2026-11-05T11:00:00.000Z" {
			t.Errorf("got %v", out)
		}
		if r := h.run("messages", "purge", "--before", "1h", "--yes", "--dry-run"); r.code != ExitUsage {
			t.Errorf("--yes with --dry-run: %+v", r)
		}
	})
}

func TestClients(t *testing.T) {
	bothWays(t, fresh, func(t *testing.T, h *home) {
		added := decode[oauth.AddedClient](t, h.ok("clients", "add", "--name", "My app", "--redirect", "http://127.0.0.1:8080/cb", "--secret", "--json"))
		if added.ID == "" || added.Secret == "" {
			t.Fatalf("got %+v", added)
		}
		if r := h.run("clients", "add", "--name", "x", "--redirect", "https://app.example.com/cb"); r.code != ExitFailed || !strings.Contains(r.stderr, "oauth.redirects") {
			t.Errorf("a redirect that is not allowed: %+v", r)
		}
		if out := h.ok("clients", "deny", added.ID, "commands", "files_write"); out != "From its next request on the client may use mailbox, files_read, agents, devices.\n" {
			t.Errorf("deny says %q", out)
		}
		if out := h.ok("clients", "allow", added.ID, "all"); out != "From its next request on the client may use everything.\n" {
			t.Errorf("allow says %q", out)
		}
		set := decode[admin.PermissionsOut](t, h.ok("clients", "deny", added.ID, "all", "--json"))
		if len(set.Permissions) != 0 {
			t.Errorf("got %+v", set)
		}
		text := h.ok("clients", "list", "--json")
		if !strings.Contains(text, `"permissions": []`) {
			t.Errorf("no permissions are not an empty list: %s", text)
		}
		list := decode[struct{ Clients []oauth.ClientInfo }](t, text).Clients
		if len(list) != 1 || list[0].ID != added.ID || len(list[0].Permissions) != 0 {
			t.Errorf("got %+v", list)
		}
		if out := h.ok("clients", "list"); !strings.Contains(out, added.ID) || strings.Contains(out, added.Secret) {
			t.Errorf("the list is %s", out)
		}
		if out := h.ok("clients", "revoke", added.ID); out != "The client had no access: there was nothing to end.\n" {
			t.Errorf("revoke says %q", out)
		}
		for _, args := range [][]string{{"revoke", "nobody"}, {"allow", "nobody", "mailbox"}} {
			if r := h.run(append([]string{"clients"}, args...)...); r.code != ExitFailed || !strings.Contains(r.stderr, "gateway clients list") {
				t.Errorf("%v: %+v", args, r)
			}
		}
		if r := h.run("clients", "allow", added.ID, ""); r.code != ExitUsage || !strings.Contains(r.stderr, "a permission is missing") {
			t.Errorf("an empty permission: %+v", r)
		}
		if r := h.run("clients", "allow", added.ID, "files"); r.code != ExitUsage || !strings.Contains(r.stderr, "files_read") {
			t.Errorf("an unknown permission: %+v", r)
		}
	})
}

func TestClientsTable(t *testing.T) {
	var out bytes.Buffer
	at := func(d time.Duration) *time.Time { t := now.Add(-d); return &t }
	a := &app{Env: Env{Stdout: &out, Now: func() time.Time { return now }}}
	err := a.printClients([]oauth.ClientInfo{
		{ID: "https://claude.ai/oauth/claude-code-client-metadata", Name: "Claude Code", RedirectHosts: []string{"localhost", "127.0.0.1"}, Permissions: principal.Full(), ActiveGrants: 1, AuthorizedAt: at(time.Hour), LastUsedAt: at(3 * time.Minute)},
		{ID: "ar_client_1hd4oxithPFbf0S9Zt-s9Q", Name: "ChatGPT", RedirectHosts: []string{"chatgpt.com"}, Permissions: principal.Set{principal.Mailbox, principal.FilesRead}, ActiveGrants: 2, AuthorizedAt: at(48 * time.Hour), LastUsedAt: at(26 * time.Hour)},
		{ID: "ar_client_AAAAAAAAAAAAAAAAAAAAAA", Name: "\x1b[31mEvil\u202e client with a name that goes on and on and on", RedirectHosts: []string{"claude.ai"}, Permissions: principal.Full(), AuthorizedAt: at(time.Hour)},
		{ID: "ar_client_BBBBBBBBBBBBBBBBBBBBBB", Name: "日本語クライアント", RedirectHosts: []string{"www.cursor.com", "cursor://anysphere.cursor-mcp"}, Permissions: principal.Full()},
	})
	if err != nil {
		t.Fatal(err)
	}
	newHome(t).golden("clients", out.String())
}

func TestResetPassword(t *testing.T) {
	bothWays(t, fresh, func(t *testing.T, h *home) {
		file := filepath.Join(h.stateDir(), passwordName)
		pw := decode[admin.PasswordOut](t, h.ok("owner", "reset-password", "--json")).OwnerPassword
		if !holds(t, h, pw) {
			t.Error("the password of --json does not hold")
		}
		out := h.ok("owner", "reset-password")
		shown := regexp.MustCompile(`[a-z]{4}(-[a-z]{4}){6}`).FindString(out)
		if holds(t, h, pw) || !holds(t, h, shown) {
			t.Errorf("after a second reset: %s", out)
		}
		h.terminal = false
		out = h.ok("owner", "reset-password")
		raw, err := os.ReadFile(file)
		if err != nil || !strings.Contains(out, file) || !holds(t, h, string(raw)) {
			t.Errorf("without a terminal: %s, %v", out, err)
		}
		h.terminal = true
		h.ok("owner", "reset-password")
		if _, err := os.Lstat(file); err == nil {
			t.Error("the file of a password that no longer holds was left")
		}
	})
}

func TestOwnerCommandsAreAudited(t *testing.T) {
	bothWays(t, seeded, func(t *testing.T, h *home) {
		id := decode[oauth.AddedClient](t, h.ok("clients", "add", "--name", "App", "--redirect", "http://localhost/cb", "--json")).ID
		h.ok("clients", "deny", id, "commands")
		h.ok("clients", "revoke", id)
		h.ok("peers", "stop", "grok-bot")
		h.ok("messages", "purge", "--before", "30d", "--yes")
		h.ok("owner", "reset-password")
		r := h.run("status", "--audit", "6", "--json")
		var actions []string
		for _, e := range decode[statusOut](t, r.stdout).Audit {
			actions = append(actions, e.Action)
			if e.ClientID != principal.OwnerClientID || e.Outcome != audit.OK {
				t.Errorf("%+v is not recorded as done by the owner", e)
			}
		}
		if len(actions) != 6 || actions[0] != "owner.reset-password" || actions[5] != "client.add" {
			t.Errorf("the audit log has %v", actions)
		}
	})
}

func TestStatus(t *testing.T) {
	clean := func(s string) string {
		s = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(s, "127.0.0.1:6768")
		return regexp.MustCompile(`(schema |surface )\w+`).ReplaceAllString(s, "${1}X")
	}
	h := fresh(t)
	r := h.run("status")
	if r.code != ExitFailed {
		t.Errorf("nothing runs: %+v", r)
	}
	h.golden("status-unused", clean(r.stdout+r.stderr))
	if files, err := filepath.Glob(filepath.Join(h.stateDir(), "gateway.db*")); err != nil || len(files) > 0 {
		t.Errorf("looking made %v", files)
	}

	h = seeded(t)
	h.ok("peers", "stop", "grok-bot")
	r = h.run("status", "--audit", "3")
	if r.code != ExitFailed {
		t.Errorf("nothing runs: %+v", r)
	}
	h.golden("status-offline", clean(r.stdout+r.stderr))

	h.serve()
	h.golden("status-running", clean(h.ok("status", "--audit", "3")))
	out := decode[statusOut](t, h.ok("status", "--json"))
	if !out.Running || out.Gateway.StateDir != h.stateDir() || out.Gateway.Peers.Active != 1 || out.Audit != nil || out.Offline != nil {
		t.Errorf("got %+v", out)
	}
}

func TestConfigCheck(t *testing.T) {
	h := newHome(t)
	path := filepath.Join(h.dir, "c.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"publicBaseUrl": "https://gateway.example.com", "stateDir": "~/state", "hosts": [], "upstreamUrl": "http://127.0.0.1:6767", "paseoCommand": "/bin/paseo", "safedial": {"allowLoopback": true}}`)
	r := h.run("config", "check", "--config", path)
	if r.code != ExitOK {
		t.Errorf("got %+v", r)
	}
	h.golden("config-check", r.stderr+r.stdout)
	out := decode[struct {
		Path     string
		Warnings []config.Remark
		Config   map[string]any
	}](t, h.ok("config", "check", "--config", path, "--json"))
	if out.Path != path || len(out.Warnings) != 2 || out.Config["stateDir"] != filepath.Join(h.dir, "state") {
		t.Errorf("got %+v", out)
	}

	write("{\n  \"publicBaseURL\": \"https://gateway.example.com/mcp\",\n  \"port\": \"6768\",\n  \"stateDir\": \"state\"\n}\n")
	r = h.run("config", "check", "--config", path)
	if r.code != ExitConfig || r.stdout != "" {
		t.Errorf("got %+v", r)
	}
	h.golden("config-problems", r.stderr)
	r = h.run("config", "check", "--config", path, "--json")
	failure := decode[struct{ Error map[string]string }](t, r.stderr)
	if r.code != ExitConfig || !strings.Contains(failure.Error["message"], "line 3: port: must be a whole number") {
		t.Errorf("got %+v", r)
	}
}

func TestVersion(t *testing.T) {
	h := newHome(t)
	out := decode[build](t, h.ok("version", "--json"))
	if out.Version == "" || !strings.HasPrefix(out.Go, "go1.") || out.OS == "" || out.Arch == "" {
		t.Errorf("got %+v", out)
	}
	if text := h.ok("version"); !strings.Contains(text, out.Version) || !strings.Contains(text, out.Go) {
		t.Errorf("got %q", text)
	}
}

func TestExitCodes(t *testing.T) {
	h := fresh(t)
	bad := filepath.Join(h.dir, "bad.json")
	if err := os.WriteFile(bad, []byte(`{"prot": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"--help", ExitOK, ""},
		{"help clients", ExitOK, ""},
		{"version", ExitOK, ""},
		{"clients list", ExitOK, ""},
		{"status", ExitFailed, "not running"},
		{"clients revoke nobody", ExitFailed, "No client has this id."},
		{"peers list --limit 0", ExitUsage, "limit must be 1 to 200"},
		{"peers list --cursor x", ExitUsage, "cursor does not belong to this list"},
		{"messages list --state new", ExitUsage, "state must be unprocessed or processed"},
		{"", ExitUsage, "a command is missing"},
		{"clients", ExitUsage, "a command is missing"},
		{"serv", ExitUsage, `did you mean "gateway serve"?`},
		{"clients lsit", ExitUsage, `did you mean "gateway clients list"?`},
		{"config chekc --config x", ExitUsage, `did you mean "gateway config check"?`},
		{"frobnicate --now", ExitUsage, "the commands are "},
		{"status --verbose", ExitUsage, "unknown flag: --verbose"},
		{"status --audit many", ExitUsage, "invalid argument"},
		{"status --audit 1001", ExitUsage, "--audit must be from 0 to 1000"},
		{"status now", ExitUsage, `unexpected argument "now"`},
		{"clients revoke", ExitUsage, "the client id is missing"},
		{"clients allow x", ExitUsage, "a permission is missing"},
		{"clients add --name x", ExitUsage, "--redirect is missing"},
		{"peers stop a b", ExitUsage, `unexpected argument "b"`},
		{"messages purge", ExitUsage, "--before is missing"},
		{"messages purge --before soon", ExitUsage, "--before must be RFC 3339"},
		{"status --config none.json", ExitConfig, "there is no config at none.json"},
		{"serve --config none.json", ExitConfig, "there is no config at none.json"},
		{"config check --config " + bad, ExitConfig, `did you mean "port"?`},
		{"serve --config " + bad, ExitConfig, `did you mean "port"?`},
		{"clients list --config " + bad, ExitConfig, `did you mean "port"?`},
	} {
		t.Run(tt.args, func(t *testing.T) {
			r := h.run(strings.Fields(tt.args)...)
			if r.code != tt.code || !strings.Contains(r.stderr, tt.stderr) {
				t.Errorf("got %+v, want exit code %d and %q", r, tt.code, tt.stderr)
			}
			if r.code == ExitUsage && !strings.Contains(r.stderr, "--help") {
				t.Errorf("no hint at --help in %q", r.stderr)
			}
			if r.code != ExitOK && tt.args != "status" && r.stdout != "" {
				t.Errorf("an error wrote to standard output: %q", r.stdout)
			}
		})
	}
}

// Every command explains itself, and every command that answers a program's
// question takes --json.
func TestHelp(t *testing.T) {
	noJSON := []string{"gateway serve", "gateway relay", "gateway supervise", "gateway service logs", "gateway hosts trust"} // their answer is what they do, or they ask a person
	root := (&app{Env: Env{}}).root()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		path := c.CommandPath()
		if !slices.Contains([]string{"gateway help", "gateway completion"}, path) {
			if c.Example == "" || c.Short == "" {
				t.Errorf("%s has no example or no description", path)
			}
			if !c.HasSubCommands() && !slices.Contains(noJSON, path) && c.Flags().Lookup("json") == nil {
				t.Errorf("%s has no --json", path)
			}
			h := newHome(t)
			out := h.ok(append(strings.Fields(path)[1:], "--help")...)
			if !strings.Contains(out, "Examples:") || !strings.Contains(out, "--config") {
				t.Errorf("the help of %s:\n%s", path, out)
			}
			for _, line := range strings.Split(out, "\n") {
				if columns(line) > lineWidth {
					t.Errorf("%s --help has a line of %d columns: %s", path, columns(line), line)
				}
			}
			for _, sub := range c.Commands() {
				walk(sub)
			}
		}
	}
	walk(root)
}

// No command shows what peers write to each other.
func TestTextIsNeverShown(t *testing.T) {
	h := seeded(t)
	s := h.serve()
	var all strings.Builder
	for _, args := range []string{"messages list", "messages list --json", "peers list --json", "status --audit 100", "status --audit 100 --json", "messages purge --before 1h --dry-run"} {
		all.WriteString(h.ok(strings.Fields(args)...))
	}
	s.end(t)
	if text := all.String() + s.stderr.String(); strings.Contains(text, secretText) || strings.Contains(text, "launch code") {
		t.Errorf("text is shown:\n%s", text)
	}
	if !json.Valid([]byte(h.ok("messages", "list", "--json"))) {
		t.Error("not JSON")
	}
}
