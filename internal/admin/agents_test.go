package admin

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/channel"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/config"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/principal"
)

func TestAgents(t *testing.T) {
	bothWays(t, func(t *testing.T, c *config.Config, conn *Conn, b *Backend) {
		ctx := t.Context()
		out, err := AdoptAgent.Call(ctx, conn, AdoptIn{HostID: "mac", AgentID: "builder"})
		if err != nil || !out.Created || out.Agent.HostID != local.ID() || out.Agent.Owner != principal.SharedOwner || out.StateDir != c.StateDir || out.Pending != "" {
			t.Fatalf("%+v, %v", out, err)
		}
		dir, err := filepath.EvalSymlinks(c.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := capability.Read(dir, "builder"); err != nil {
			t.Errorf("its capability: %v", err)
		}
		if _, err := AdoptAgent.Call(ctx, conn, AdoptIn{HostID: "nowhere", AgentID: "builder"}); !errors.Is(err, fault.UnknownHost) {
			t.Error(err)
		}
		if list, err := ListAgents.Call(ctx, conn, channel.ListIn{}); err != nil || len(list.Agents) != 1 || list.Agents[0].IssuedAt.IsZero() {
			t.Errorf("%+v, %v", list, err)
		}
		if out, err := RevokeAgent.Call(ctx, conn, ByAgent{AgentID: "builder"}); err != nil || out.AlreadyRevoked {
			t.Errorf("%+v, %v", out, err)
		}
		if _, err := RevokeAgent.Call(ctx, conn, ByAgent{AgentID: "nobody"}); !errors.Is(err, channel.UnknownAgent) {
			t.Error(err)
		}
		if list, err := ListAgents.Call(ctx, conn, channel.ListIn{}); err != nil || len(list.Agents) != 0 {
			t.Errorf("%+v, %v", list, err)
		}
	})
}

// TestAdoptingWithoutAWay: without a gateway an agent of another host is recorded,
// and its capability follows.
func TestAdoptingWithoutAWay(t *testing.T) {
	c := testConfig(t, shortDir(t))
	c.SharedOwner = false
	c.Hosts = []config.Host{{ID: "box"}}
	conn, err := Dial(t.Context(), c.StateDir, open(t, c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := AdoptAgent.Call(t.Context(), conn, AdoptIn{HostID: "box", AgentID: "builder"}); !errors.Is(err, fault.InvalidArguments) || !strings.Contains(fault.From(err).Hint, "--owner") {
		t.Errorf("without an owner: %v", err)
	}
	out, err := AdoptAgent.Call(t.Context(), conn, AdoptIn{Owner: "local-owner:x", HostID: "box", AgentID: "builder"})
	if err != nil || out.Pending == "" || out.StateDir != "" || !out.Agent.IssuedAt.IsZero() {
		t.Errorf("%+v, %v", out, err)
	}
}
