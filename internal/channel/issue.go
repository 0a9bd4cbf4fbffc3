package channel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"agentrelay/internal/audit"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Issue sees to it that an agent's capability lies on its host, and returns where:
// an absolute path on the local host, one in that host's state directory on
// another. The key of an agent stays the same until its file is lost or it is
// revoked; calls at the same time issue one. The host id is canonical.
//
// Refusals: unknown_agent, agent_revoked, and those of the host. The error of a
// directory or file that isn't private is a [capability.UnsafeError].
func (g *Agents) Issue(ctx context.Context, hostID, agentID string) (string, error) {
	agentID, _ = capability.AgentID(agentID)
	unlock, err := g.issues.Acquire(ctx, hostID+" "+agentID)
	if err != nil {
		return "", err
	}
	defer unlock()
	a, err := g.known(ctx, hostID, agentID)
	if err != nil {
		return "", err
	}
	dir, err := g.filesOf(hostID)
	if err != nil {
		return "", err
	}
	file, fresh, err := g.file(dir, a)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, capability.Name(agentID))
	if hostID != g.o.LocalHostID {
		if path, err = g.carry(ctx, hostID, file); err != nil {
			return "", err
		}
	}
	if !fresh {
		return path, nil
	}
	// The hash comes last: one that is stored has reached its host.
	return path, store.Exec(ctx, g.o.Store, func(tx *store.Tx) error {
		n, err := tx.Exec(`UPDATE agents SET key_hash = ?, issued_at = ? WHERE host_id = ? AND agent_id = ? AND revoked_at IS NULL`,
			capability.Hash(file.Key), tx.Now().UnixMilli(), hostID, agentID)
		if err != nil {
			return fmt.Errorf("storing a capability: %w", err)
		}
		if n == 0 {
			return AgentRevoked.New("The agent was revoked meanwhile.")
		}
		return audit.Record(tx, principal.Owner(a.Owner), "agent.issue", agentID, audit.OK, "host", hostID)
	})
}

// known is an agent that may have a capability.
func (g *Agents) known(ctx context.Context, hostID, agentID string) (a Agent, err error) {
	found := false
	err = store.Read(ctx, g.o.Store, func(r *store.Reader) error {
		a, found, err = findAgent(r, hostID, agentID)
		return err
	})
	switch {
	case err != nil:
		return Agent{}, err
	case !found:
		return Agent{}, UnknownAgent.New("No agent of this id was dispatched or adopted on this host.")
	case !a.RevokedAt.IsZero():
		return Agent{}, AgentRevoked.New("The owner has ended this agent's access.")
	}
	return a, nil
}

// filesOf is the state directory, with no link on the way, that has the files of
// a host: its own on the local host, and one for each other.
func (g *Agents) filesOf(hostID string) (string, error) {
	dir, err := filepath.EvalSymlinks(g.o.StateDir)
	if err != nil {
		return "", fmt.Errorf("looking at the state directory: %w", err)
	}
	if hostID == g.o.LocalHostID {
		return dir, nil
	}
	for _, name := range []string{"hosts", hostID} {
		if err := capability.CheckDir(dir); err != nil {
			return "", err
		}
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("making %s: %w", dir, err)
		}
	}
	return dir, nil
}

// file is the capability that the database knows by its hash, or a new one, which
// it writes. A file that the database doesn't know opened nothing: it was left by
// an earlier life of the agent, or by a crash.
func (g *Agents) file(dir string, a Agent) (f capability.File, fresh bool, err error) {
	f, err = capability.Read(dir, a.AgentID)
	if err == nil && bytes.Equal(capability.Hash(f.Key), a.keyHash) {
		return f, false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, capability.ErrMalformed) {
		return f, false, err
	}
	if f, err = capability.New(a.AgentID, g.o.Rand); err != nil {
		return f, false, err
	}
	return f, true, capability.Write(dir, f)
}

// carry puts a file onto another host.
func (g *Agents) carry(ctx context.Context, hostID string, f capability.File) (string, error) {
	if g.o.Remote == nil {
		return "", errors.New("no gateway runs that could reach the host")
	}
	files, err := g.o.Remote(hostID)
	if err != nil {
		return "", err
	}
	name := capability.Name(f.AgentID)
	if err := files.WritePrivate(ctx, name, f.Encode()); err != nil {
		return "", fmt.Errorf("writing a capability on its host: %w", err)
	}
	return name, nil
}

// Deliver issues the capabilities of a host that have not reached it yet. It is
// called when the host is connected. One that fails does not keep the others.
func (g *Agents) Deliver(ctx context.Context, hostID string) error {
	var ids []string
	err := store.Read(ctx, g.o.Store, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			var id string
			err := row.Scan(&id)
			ids = append(ids, id)
			return err
		}, `SELECT agent_id FROM agents WHERE host_id = ? AND key_hash IS NULL AND revoked_at IS NULL ORDER BY agent_id`, hostID)
	})
	if err != nil {
		return fmt.Errorf("listing the agents of a host: %w", err)
	}
	var errs []error
	for _, id := range ids {
		_, err := g.Issue(ctx, hostID, id)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// forget removes our file of a revoked agent, after an issue that is under way.
func (g *Agents) forget(ctx context.Context, hostID, agentID string) error {
	unlock, err := g.issues.Acquire(ctx, hostID+" "+agentID)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := g.known(ctx, hostID, agentID); !errors.Is(err, AgentRevoked) {
		return err // it is back already, with a file that holds
	}
	dir, err := g.filesOf(hostID)
	if err != nil {
		return err
	}
	return capability.Remove(dir, agentID)
}
