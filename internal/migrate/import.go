package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"agentrelay/internal/audit"
	"agentrelay/internal/channel/capability"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
)

// Left is something of the original that does not come along.
type Left struct {
	What  string `json:"what"`
	Count int    `json:"count"`
	Why   string `json:"why"`
}

// Imported says what came from an original gateway, or would come.
type Imported struct {
	Applied bool           `json:"applied"`
	Kept    map[string]int `json:"kept"`    // by what it is
	Present map[string]int `json:"present"` // was there already, from an earlier import
	Left    []Left         `json:"left"`
	Owners  []string       `json:"owners"`
}

// ImportOptions says how [Import] works.
type ImportOptions struct {
	// From is the state directory of the original, which is only read.
	From string
	// LocalHostID is what the gateway's machine is called here.
	LocalHostID string
	// Key seals the secrets of subscriptions; nil is enough for a rehearsal.
	Key *sealing.Key
	// Rand makes ids.
	Rand io.Reader
	// Apply writes. Without it everything is read and counted.
	Apply bool
}

// ErrNoOriginal means that a directory has no state of an original gateway.
var ErrNoOriginal = errors.New("it has none of the databases of an original gateway")

// Import brings what an original Node gateway has kept into the store: in one
// transaction, and a second time without doubling anything. Files that agents and
// commands need are written first, which changes nothing by itself.
func Import(ctx context.Context, s *store.Store, o ImportOptions) (Imported, error) {
	from := &original{dir: o.From, open: map[string]*sql.DB{}}
	defer from.close()
	places, err := from.places(o.LocalHostID)
	if err != nil {
		return Imported{}, fmt.Errorf("reading the original's state: %w", err)
	}
	if !slices.ContainsFunc([]string{"devspace.sqlite", "dispatch.sqlite", "collaboration.sqlite", "events.sqlite"}, func(name string) bool {
		_, err := os.Stat(filepath.Join(o.From, name))
		return err == nil
	}) {
		return Imported{}, fmt.Errorf("%s: %w", o.From, ErrNoOriginal)
	}
	i := &importing{ctx: ctx, o: o, stateDir: s.Dir(), places: places}
	if err := i.read(); err != nil {
		return Imported{}, fmt.Errorf("reading the original's state: %w", err)
	}
	if o.Apply {
		if err := i.files(); err != nil {
			return Imported{}, fmt.Errorf("writing what agents and commands need: %w", err)
		}
	}
	out, err := store.Write(ctx, s, func(tx *store.Tx) (Imported, error) {
		i.tx, i.out = tx, Imported{Kept: map[string]int{}, Present: map[string]int{}, Left: slices.Clone(i.left), Owners: []string{}}
		if err := i.rows(); err != nil {
			return Imported{}, err
		}
		i.out.Applied = o.Apply
		if !o.Apply {
			return Imported{}, &counted{i.out}
		}
		return i.out, audit.Record(tx, principal.Owner(""), "state.import", "", audit.OK)
	})
	var only *counted
	if errors.As(err, &only) {
		return only.out, nil
	}
	if err != nil {
		return Imported{}, fmt.Errorf("importing: %w", err)
	}
	return out, nil
}

// counted carries a report out of a transaction that is not committed.
type counted struct{ out Imported }

func (*counted) Error() string { return "counted" }

// importing is one import. read fills the first part, before the transaction, which
// may run twice.
type importing struct {
	ctx      context.Context
	o        ImportOptions
	stateDir string
	places   []place
	state    []hostState
	clients  []found
	tokens   int
	peers    []found
	messages []found
	left     []Left
	keys     map[[2]string]capability.File // by host and agent

	tx  *store.Tx
	out Imported
}

// hostState is what the original kept of one host.
type hostState struct {
	place
	dispatches, requests, messages, replies      []found
	subscriptions, outbox, commands, inputs, put []found
}

func (i *importing) leave(what string, count int, why string) {
	if count > 0 {
		i.left = append(i.left, Left{what, count, why})
	}
}

// read reads everything that is looked at.
func (i *importing) read() error {
	i.keys = map[[2]string]capability.File{}
	for _, p := range i.places {
		h := hostState{place: p}
		for _, t := range []struct {
			into            *[]found
			database, table string
		}{
			{&h.dispatches, "dispatch.sqlite", "dispatch_requests"},
			{&h.requests, "collaboration.sqlite", "collaboration_requests"},
			{&h.messages, "collaboration.sqlite", "agent_messages"},
			{&h.replies, "collaboration.sqlite", "message_replies"},
			{&h.subscriptions, "events.sqlite", "event_subscriptions"},
			{&h.outbox, "events.sqlite", "event_outbox"},
			{&h.commands, "direct.sqlite", "direct_commands"},
			{&h.inputs, "direct.sqlite", "direct_inputs"},
		} {
			var err error
			if *t.into, err = p.rows(i.ctx, t.database, t.table); err != nil {
				return err
			}
		}
		if _, err := p.file("direct-transfer-receipts.json", &h.put); err != nil {
			return err
		}
		if err := i.capabilities(p); err != nil {
			return err
		}
		i.state = append(i.state, h)
	}
	if err := i.readGlobal(); err != nil {
		return err
	}
	waiting, inputs := 0, 0
	for _, h := range i.state {
		for _, d := range h.outbox {
			if s := d.text("state"); s == "queued" || s == "retry" || s == "sending" {
				waiting++
			}
		}
		inputs += len(h.inputs)
		if h.dir != "" {
			i.leave("command of "+h.hostID, len(h.commands), "Records of commands lie on the machine where they ran, and that one can't be asked while the gateway stands still. Do not repeat them under their old requestIds.")
		}
	}
	i.leave("access and refresh token", i.tokens, "Tokens have another form here. Each client has to connect again; it keeps its client id.")
	i.leave("event on its way", waiting, "What was not delivered is not delivered later: it is in the mailbox and in the receipts.")
	i.leave("input of a command", inputs, "Commands of the original ended with it.")
	return nil
}

// readGlobal reads what the original kept for all hosts.
func (i *importing) readGlobal() error {
	home := i.places[0]
	var err error
	if i.clients, err = home.rows(i.ctx, "devspace.sqlite", "oauth_clients"); err != nil {
		return err
	}
	for _, table := range []string{"oauth_access_tokens", "oauth_refresh_tokens"} {
		tokens, err := home.rows(i.ctx, "devspace.sqlite", table)
		if err != nil {
			return err
		}
		i.tokens += len(tokens)
	}
	for _, t := range []struct {
		into    *[]found
		columns []string
	}{
		{&i.peers, []string{"owner", "peer_id", "kind"}},
		{&i.messages, []string{"owner", "message_id", "from_peer_id", "to_peer_id", "text"}},
	} {
		tables, err := home.tablesWith(i.ctx, t.columns...)
		if err != nil {
			return err
		}
		for _, table := range tables {
			rows, err := home.rows(i.ctx, table[0], table[1])
			if err != nil {
				return err
			}
			*t.into = append(*t.into, rows...)
		}
	}
	return nil
}

// capabilities reads the keys by which agents of a host prove who they are.
func (i *importing) capabilities(p place) error {
	found, err := filepath.Glob(filepath.Join(p.o.dir, p.dir, capability.Dir, "*.json"))
	if err != nil {
		return err
	}
	broken := 0
	for _, path := range found {
		id, ok := capability.AgentID(path[len(filepath.Dir(path))+1 : len(path)-len(".json")])
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := capability.Decode(raw, id)
		if !ok || err != nil {
			broken++
			continue
		}
		i.keys[[2]string{p.hostID, id}] = f
	}
	i.leave("capability file", broken, "It is damaged. The agent gets a new key with its next dispatch.")
	return nil
}

// rows writes everything that is a row, and counts it.
func (i *importing) rows() error {
	for _, step := range []func() error{i.addClients, i.addPeers, i.addMessages, i.addSubscriptions, i.addDispatches, i.addAgentMessages, i.addAgents, i.addTransfers, i.countCommands} {
		if err := step(); err != nil {
			return err
		}
	}
	slices.Sort(i.out.Owners)
	i.out.Owners = slices.Compact(i.out.Owners)
	return nil
}

// insert writes a row unless its name is taken, and counts it.
func (i *importing) insert(what, owner, query string, args ...any) (added bool, err error) {
	n, err := i.tx.Exec(query+` ON CONFLICT DO NOTHING`, args...)
	if err != nil {
		return false, fmt.Errorf("storing a %s: %w", what, err)
	}
	if owner != "" {
		i.out.Owners = append(i.out.Owners, owner)
	}
	if n == 0 {
		i.out.Present[what]++
		return false, nil
	}
	i.out.Kept[what]++
	return true, nil
}

func (i *importing) skip(what, why string) {
	for n := range i.out.Left {
		if l := &i.out.Left[n]; l.What == what && l.Why == why {
			l.Count++
			return
		}
	}
	i.out.Left = append(i.out.Left, Left{what, 1, why})
}
