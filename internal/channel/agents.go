package channel

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/callerid"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/fault"
	"agentrelay/internal/keylock"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Source is how an agent became its owner's.
type Source string

// The sources.
const (
	Dispatched Source = "dispatch" // by a call of one of the owner's clients
	Adopted    Source = "adopted"  // by the owner's own command
)

// AgentsOptions says what [Agents] works with. Store and StateDir are required.
type AgentsOptions struct {
	Store *store.Store
	// StateDir is where the capability files of the local host lie, and copies of
	// those of the others.
	StateDir string
	// LocalHostID is the canonical id of the local host, which callers may also
	// call by LocalAliases or leave out; "" means "local".
	LocalHostID  string
	LocalAliases []string
	// HostIDs lists the configured hosts besides the local one; nil means none.
	HostIDs func() []string
	// Remote returns the files of another host. nil means that none is reached:
	// then agents of other hosts are recorded, and get their capability from
	// [Agents.Deliver].
	Remote func(hostID string) (RemoteFiles, error)
	// Rand makes keys.
	Rand io.Reader
	// Log receives what no caller sees; nil discards it.
	Log *slog.Logger
}

// RemoteFiles writes into the private state directory of another host.
type RemoteFiles interface {
	// WritePrivate puts a file with mode 0600 under the path, which is relative to
	// that directory and has slashes. It is there whole or not at all, and no link
	// is followed.
	WritePrivate(ctx context.Context, relPath string, content []byte) error
}

// Agents is the agents of all owners. It is safe for concurrent use.
type Agents struct {
	o      AgentsOptions
	issues keylock.Locks[string]
}

// NewAgents returns the agents of a store.
func NewAgents(o AgentsOptions) *Agents {
	if o.LocalHostID == "" {
		o.LocalHostID = "local"
	}
	if o.HostIDs == nil {
		o.HostIDs = func() []string { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Agents{o: o}
}

// Agent is one agent as its owner sees it.
type Agent struct {
	HostID     string    `json:"hostId"`
	AgentID    string    `json:"agentId"`
	Owner      string    `json:"owner"`
	Source     Source    `json:"source"`
	CreatedAt  time.Time `json:"createdAt"`
	IssuedAt   time.Time `json:"issuedAt,omitzero"`   // when its present capability was made
	RevokedAt  time.Time `json:"revokedAt,omitzero"`  // when the owner ended its access
	LastSeenAt time.Time `json:"lastSeenAt,omitzero"` // when it last came, to the minute

	keyHash []byte
}

const selectAgent = `SELECT host_id, agent_id, owner, source, created_at, key_hash, coalesce(issued_at, 0), coalesce(revoked_at, 0), coalesce(last_seen_at, 0) FROM agents `

func scanAgent(row store.Scanner) (Agent, error) {
	var a Agent
	var created, issued, revoked, seen int64
	err := row.Scan(&a.HostID, &a.AgentID, &a.Owner, &a.Source, &created, &a.keyHash, &issued, &revoked, &seen)
	a.CreatedAt, a.IssuedAt, a.RevokedAt, a.LastSeenAt = at(created), at(issued), at(revoked), at(seen)
	return a, err
}

// at makes a time of database milliseconds; 0, which a NULL is read as, is none.
func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func findAgent(q store.Querier, hostID, agentID string) (a Agent, found bool, err error) {
	a, err = scanAgent(q.QueryRow(selectAgent+`WHERE host_id = ? AND agent_id = ?`, hostID, agentID))
	if errors.Is(err, sql.ErrNoRows) {
		return Agent{}, false, nil
	}
	if err != nil {
		return Agent{}, false, fmt.Errorf("reading an agent: %w", err)
	}
	return a, true, nil
}

// HostIDs implements mailbox.AgentDirectory.
func (g *Agents) HostIDs() []string { return g.o.HostIDs() }

// Owner returns whose an agent is, also when it was revoked; "" is that it was never
// recorded.
func (g *Agents) Owner(q store.Querier, hostID, agentID string) (string, error) {
	a, _, err := findAgent(q, hostID, agentID)
	return a.Owner, err
}

// OwnsAgent implements mailbox.AgentDirectory: the owner has dispatched or
// adopted the agent and not revoked it.
func (g *Agents) OwnsAgent(q store.Querier, owner, hostID, agentID string) (bool, error) {
	a, found, err := findAgent(q, hostID, agentID)
	return found && a.Owner == owner && a.RevokedAt.IsZero(), err
}

// Record notes, in the transaction of a dispatch, that an owner dispatched an
// agent. The host id is canonical. An agent that is the owner's already stays as
// it is, also when it was revoked.
//
// Refusals: agent_taken.
func (g *Agents) Record(tx *store.Tx, owner, hostID, agentID string) error {
	agentID, ok := capability.AgentID(agentID)
	if !ok {
		return fmt.Errorf("recording an agent: its id has no form that can be recorded")
	}
	a, found, err := findAgent(tx, hostID, agentID)
	switch {
	case err != nil:
		return err
	case found && a.Owner != owner:
		return AgentTaken.New("This agent belongs to another owner.")
	case found:
		return nil
	}
	return insertAgent(tx, owner, hostID, agentID, Dispatched)
}

func insertAgent(tx *store.Tx, owner, hostID, agentID string, source Source) error {
	_, err := tx.Exec(`INSERT INTO agents (host_id, agent_id, owner, source, created_at) VALUES (?, ?, ?, ?, ?)`,
		hostID, agentID, owner, source, tx.Now().UnixMilli())
	if err != nil {
		return fmt.Errorf("storing an agent: %w", err)
	}
	return nil
}

// AdoptOut is an adopted agent.
type AdoptOut struct {
	Agent Agent `json:"agent"`
	// Created is false when the agent was this owner's already.
	Created bool `json:"created"`
	// StateDir is the directory in which its capability lies; "" on another host,
	// whose config says where it is.
	StateDir string `json:"stateDir,omitempty"`
	// Pending says why the capability has not reached the agent's host yet; it
	// follows when the host is connected. "" when it is there.
	Pending string `json:"pending,omitempty"`
}

// Adopt makes an agent that was started by hand the owner's, or lets one come
// back that was revoked, and issues its capability. hostID "" is the local host.
//
// Refusals: invalid_arguments, unknown_host, agent_taken, capability_not_private,
// which names a path of this machine and so is for its owner alone.
func (g *Agents) Adopt(ctx context.Context, owner, hostID, agentID string) (AdoptOut, error) {
	hostID, agentID, err := g.checkAgent(hostID, agentID)
	if err != nil {
		return AdoptOut{}, err
	}
	if !strings.HasPrefix(owner, "local-owner:") || len(owner) == len("local-owner:") {
		return AdoptOut{}, fault.InvalidArguments.New("The owner must be one that gateway clients and peers belong to, such as " + principal.SharedOwner + ".")
	}
	created, err := store.Write(ctx, g.o.Store, func(tx *store.Tx) (bool, error) {
		a, found, err := findAgent(tx, hostID, agentID)
		switch {
		case err != nil:
			return false, err
		case !found:
			err = insertAgent(tx, owner, hostID, agentID, Adopted)
		case !a.RevokedAt.IsZero(): // a new capability: the old one has ended
			_, err = tx.Exec(`UPDATE agents SET owner = ?, revoked_at = NULL, issued_at = NULL WHERE host_id = ? AND agent_id = ?`, owner, hostID, agentID)
		case a.Owner != owner:
			return false, AgentTaken.New("This agent belongs to another owner.")
		default:
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, audit.Record(tx, principal.Owner(owner), "agent.adopt", agentID, audit.OK, "host", hostID)
	})
	if err != nil {
		return AdoptOut{}, err
	}
	out := AdoptOut{Created: created}
	if hostID == g.o.LocalHostID {
		out.StateDir = g.o.StateDir
	}
	if _, err := g.Issue(ctx, hostID, agentID); err != nil {
		if unsafe := (*capability.UnsafeError)(nil); errors.As(err, &unsafe) {
			return AdoptOut{}, notPrivate.New(unsafe.Error() + ".").Because(err)
		}
		if hostID == g.o.LocalHostID {
			return AdoptOut{}, err
		}
		g.o.Log.Warn("a capability did not reach its host and will when that is connected again", "host", hostID, "agent", agentID, "error", err)
		out.Pending = pending(err)
	}
	err = store.Read(ctx, g.o.Store, func(r *store.Reader) error {
		out.Agent, _, err = findAgent(r, hostID, agentID)
		return err
	})
	return out, err
}

// pending says why a capability has not reached its host.
func pending(err error) string {
	var refusal *fault.Error
	var setup *setupError
	switch {
	case errors.As(err, &refusal):
		return refusal.Message
	case errors.As(err, &setup):
		return setup.reason
	}
	return "The host is not reached now."
}

// checkAgent is the canonical ids of an agent that a caller names.
func (g *Agents) checkAgent(hostID, agentID string) (string, string, error) {
	agentID, ok := capability.AgentID(agentID)
	if !ok {
		return "", "", fault.InvalidArguments.New("The agent's id " + callerid.Rule + ".")
	}
	others := g.o.HostIDs()
	switch {
	case hostID == "", hostID == g.o.LocalHostID, slices.Contains(g.o.LocalAliases, hostID):
		return g.o.LocalHostID, agentID, nil
	case slices.Contains(others, hostID):
		return hostID, agentID, nil
	}
	return "", "", fault.UnknownHost.Newf("There is no host of this id. The hosts are: %s.", strings.Join(append([]string{g.o.LocalHostID}, others...), ", "))
}

// RevokeOut is a revoked agent.
type RevokeOut struct {
	Agent          Agent `json:"agent"`
	AlreadyRevoked bool  `json:"alreadyRevoked"`
}

// Revoke ends an agent's access: its next request is refused, and it is not
// issued another capability. Its peer and its mail stay. hostID "" is the local
// host; a host that is not in the config any more can be named too.
//
// Refusals: unknown_agent.
func (g *Agents) Revoke(ctx context.Context, hostID, agentID string) (RevokeOut, error) {
	if hostID == "" || slices.Contains(g.o.LocalAliases, hostID) {
		hostID = g.o.LocalHostID
	}
	agentID, _ = capability.AgentID(agentID)
	out, err := store.Write(ctx, g.o.Store, func(tx *store.Tx) (RevokeOut, error) {
		a, found, err := findAgent(tx, hostID, agentID)
		if err != nil {
			return RevokeOut{}, err
		}
		if !found {
			return RevokeOut{}, UnknownAgent.New("No agent of this id was dispatched or adopted on this host.")
		}
		if !a.RevokedAt.IsZero() {
			return RevokeOut{a, true}, nil
		}
		a.RevokedAt = tx.Now()
		_, err = tx.Exec(`UPDATE agents SET revoked_at = ?, key_hash = NULL WHERE host_id = ? AND agent_id = ?`, tx.Now().UnixMilli(), hostID, agentID)
		if err != nil {
			return RevokeOut{}, fmt.Errorf("revoking an agent: %w", err)
		}
		return RevokeOut{a, false}, audit.Record(tx, principal.Owner(a.Owner), "agent.revoke", agentID, audit.OK, "host", hostID)
	})
	if err != nil {
		return RevokeOut{}, err
	}
	if err := g.forget(ctx, hostID, agentID); err != nil { // it opens nothing any more
		g.o.Log.Warn("the file of a revoked agent could not be removed", "host", hostID, "agent", agentID, "error", err)
	}
	return out, nil
}

// ListIn selects agents.
type ListIn struct {
	Owner          string  `json:"owner"` // "" is every owner
	IncludeRevoked bool    `json:"includeRevoked"`
	Limit          *int    `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor         *string `json:"cursor,omitempty"`
}

// ListOut is a page of agents, ordered by host and id in byte order.
type ListOut struct {
	Agents     []Agent `json:"agents"`
	NextCursor string  `json:"nextCursor,omitempty"`
}

// List lists a page of agents.
//
// Refusals: invalid_arguments, invalid_cursor.
func (g *Agents) List(ctx context.Context, in ListIn) (ListOut, error) {
	limit := 50
	if in.Limit != nil {
		limit = *in.Limit
	}
	if limit < 1 || limit > 200 {
		return ListOut{}, fault.InvalidArguments.New("limit must be 1 to 200.")
	}
	var host, agent string
	if in.Cursor != nil {
		raw, err := base64.RawURLEncoding.DecodeString(*in.Cursor)
		var ok bool
		if host, agent, ok = strings.Cut(string(raw), " "); err != nil || !ok {
			return ListOut{}, fault.InvalidCursor.New("cursor does not belong to this list.")
		}
	}
	out := ListOut{Agents: []Agent{}}
	err := store.Read(ctx, g.o.Store, func(r *store.Reader) error {
		return r.Query(func(row store.Scanner) error {
			a, err := scanAgent(row)
			if len(out.Agents) < limit {
				out.Agents = append(out.Agents, a)
				return err
			}
			last := out.Agents[limit-1]
			out.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(last.HostID + " " + last.AgentID))
			return err
		}, selectAgent+`WHERE (host_id, agent_id) > (?, ?) AND (? = '' OR owner = ?) AND (? OR revoked_at IS NULL) ORDER BY host_id, agent_id LIMIT ?`,
			host, agent, in.Owner, in.Owner, in.IncludeRevoked, limit+1)
	})
	if err != nil {
		return ListOut{}, fmt.Errorf("listing agents: %w", err)
	}
	return out, nil
}
