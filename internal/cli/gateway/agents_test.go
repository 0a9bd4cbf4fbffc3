package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/channel"
	"agentrelay/internal/channel/capability"
)

func TestAgentsCommands(t *testing.T) {
	for _, running := range []bool{false, true} {
		t.Run(map[bool]string{true: "running gateway", false: "no gateway"}[running], func(t *testing.T) {
			h := newHome(t)
			h.init()
			if running {
				h.serve()
			}
			h.golden("agents-empty", h.ok("agents", "list"))
			adopted := h.ok("agents", "adopt", "--agent", "builder") + h.ok("agents", "adopt", "--agent", "builder") + h.ok("agents", "adopt", "--agent", "0B9C1D0E-8E3D-4A53-9D2E-8C2F3B1F7A10")
			listed := h.ok("agents", "list") + h.ok("agents", "revoke", "--agent", "builder") + h.ok("agents", "revoke", "--agent", "builder") + h.ok("agents", "list") + h.ok("agents", "list", "--all")
			h.golden("agents", adopted+listed)
			page := decode[channel.ListOut](t, h.ok("agents", "list", "--json", "--all", "--limit", "1"))
			if len(page.Agents) != 1 || page.NextCursor == "" {
				t.Errorf("%+v", page)
			}
			out := h.ok("agents", "adopt", "--agent", "builder", "--json")
			back := decode[channel.AdoptOut](t, out)
			if !back.Created || !back.Agent.RevokedAt.IsZero() {
				t.Errorf("%+v", back)
			}
			f, err := capability.Read(h.stateDir(), "builder")
			if err != nil || strings.Contains(out, f.Key) {
				t.Errorf("%v; %s", err, out)
			}
			if out := decode[channel.RevokeOut](t, h.ok("agents", "revoke", "--agent", "builder", "--json")); out.AlreadyRevoked {
				t.Errorf("%+v", out)
			}
			for _, c := range []struct {
				args string
				code int
				says string
			}{
				{"agents", ExitUsage, "a command is missing"},
				{"agents adopt", ExitUsage, "--agent is missing"},
				{"agents adopt builder", ExitUsage, `unexpected argument "builder"`},
				{"agents adopt --agent ../x", ExitUsage, "must be 1 to 128 characters"},
				{"agents adopt --agent x --host nowhere", ExitFailed, "The hosts are: "},
				{"agents adopt --agent x --owner me", ExitUsage, "local-owner:shared"},
				{"agents revoke", ExitUsage, "--agent is missing"},
				{"agents revoke --agent nobody", ExitFailed, "gateway agents list"},
				{"agents list --limit 0", ExitUsage, "limit must be 1 to 200"},
			} {
				if r := h.run(strings.Fields(c.args)...); r.code != c.code || !strings.Contains(r.stderr, c.says) {
					t.Errorf("%s: %+v", c.args, r)
				}
			}
			// What is not private is named to the owner.
			if err := os.Chmod(filepath.Join(h.stateDir(), capability.Dir), 0o755); err != nil {
				t.Fatal(err)
			}
			if r := h.run("agents", "adopt", "--agent", "late"); r.code != ExitFailed || !strings.Contains(r.stderr, "agent-channels has mode 0755") {
				t.Errorf("%+v", r)
			}
		})
	}
}
