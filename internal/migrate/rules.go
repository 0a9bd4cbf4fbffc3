package migrate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// rule says how the rows of a table change hands. Each table with an owner has one;
// a table without is refused, for its rows would be lost to everybody.
type rule struct {
	table string
	what  string // one row, for people
	// unique are the columns that name a row of an owner; nil when no two rows of
	// different owners can clash, or when a step before has seen to it.
	unique []string
	// newer is the column by which the newer of two rows of one name is told, which
	// stays. Without it two are a conflict.
	newer string
	// receipt says that the row is the receipt of a caller's key: two of one key are
	// told apart by their fingerprint, and running is a condition under which a row
	// can't be given another key.
	receipt bool
	running string
	// forget: the rows are worth nothing by tomorrow. history: they tell how it was.
	forget, history bool
}

// rules is every table with a column owner, parents before what refers to them.
var rules = []rule{
	{table: "mailbox_peers", what: "peer"}, // by peers
	{table: "mailbox_messages", what: "message", unique: []string{"message_id"}},
	{table: "mailbox_budgets", what: "sending budget of an hour", forget: true},
	{table: "event_subscriptions", what: "subscription"}, // by subscriptions
	{table: "event_verifications", what: "verified callback", unique: []string{"url"}, newer: "verified_at"},
	{table: "events", what: "event", unique: []string{"name", "subject"}},
	{table: "event_wake_targets", what: "wake-up target", unique: []string{"peer_id"}},
	{table: "transfers", what: "transfer", unique: []string{"host_id", "request_id"}, receipt: true, running: "state = 'pending'"},
	{table: "agents", what: "agent"},
	{table: "dispatches", what: "dispatch", unique: []string{"host_id", "request_id"}, receipt: true, running: "state = 'submitting'"},
	{table: "device_calls", what: "call of a device", unique: []string{"device", "request_id"}, receipt: true, running: "state IN ('queued', 'sent')"},
	{table: "agent_messages", what: "message of an agent", unique: []string{"host_id", "message_id"}},
	{table: "permission_answers", what: "answer to a permission"},
	{table: "native_deliveries", what: "delivery to an agent", unique: []string{"message_id"}},
	{table: "audit_log", what: "entry of the audit log", history: true},
	{table: "owner_aliases", what: "former owner", history: true},
}

// ownedTables are the tables of this database that have an owner.
func ownedTables(q store.Querier) (map[string]bool, error) {
	found, err := texts(q, `SELECT DISTINCT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND c.name = 'owner'`)
	if err != nil {
		return nil, fmt.Errorf("looking for tables with an owner: %w", err)
	}
	present := map[string]bool{}
	for _, table := range found {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.table == table }) {
			return nil, fmt.Errorf("the table %s has an owner, and this version does not know how its rows change hands", table)
		}
		present[table] = true
	}
	return present, nil
}

// clash is a name that several owners use.
type clash struct {
	key    []string // of rule.unique
	owners []string
}

func (c clash) name() string { return strings.Join(c.key, "/") }

// clashes finds what would have one name, and settles it by the rule.
func (m *shared) clashes(r rule) error {
	if r.unique == nil {
		return nil
	}
	columns := strings.Join(r.unique, ", ")
	var found []clash
	err := m.tx.Query(func(s store.Scanner) error {
		c := clash{key: make([]string, len(r.unique))}
		dest := make([]any, len(c.key))
		for i := range c.key {
			dest[i] = &c.key[i]
		}
		found = append(found, c)
		return s.Scan(dest...)
	}, `SELECT `+columns+` FROM `+r.table+` WHERE owner <> '' GROUP BY `+columns+` HAVING count(*) > 1`)
	if err != nil {
		return err
	}
	for _, c := range found {
		if c.owners, err = texts(m.tx, `SELECT owner FROM `+r.table+` WHERE owner <> '' AND `+r.named()+` ORDER BY owner`, anys(c.key)...); err != nil {
			return err
		}
		switch {
		case r.newer != "":
			err = m.dropOlder(r, c)
		case r.receipt:
			err = m.receipts(r, c)
		default:
			m.conflict(Conflict{r.what, c.name(), c.owners, "Both have one of this id.", "They can't be in one domain: leave sharedOwner false."})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// named is the condition of a row's name.
func (r rule) named() string {
	parts := make([]string, len(r.unique))
	for i, column := range r.unique {
		parts[i] = fmt.Sprintf("%s = ?%d", column, i+1)
	}
	return strings.Join(parts, " AND ")
}

func anys(all []string) []any {
	out := make([]any, len(all))
	for i, s := range all {
		out[i] = s
	}
	return out
}

func (m *shared) dropOlder(r rule, c clash) error {
	_, err := m.tx.Exec(fmt.Sprintf(`DELETE FROM %[1]s WHERE owner <> '' AND %[2]s AND owner <> (SELECT owner FROM %[1]s WHERE owner <> '' AND %[2]s ORDER BY %[3]s DESC, owner LIMIT 1)`,
		r.table, r.named(), r.newer), anys(c.key)...)
	return err
}

// receipts settles a key that several owners have used: the newest row keeps it. A
// repeat by another owner's client then meets that row: with the same arguments it is
// answered, with others it is refused. Either way nothing is done a second time.
func (m *shared) receipts(r rule, c clash) error {
	type receipt struct {
		id          int64
		owner       string
		fingerprint string
		running     bool
	}
	var all []receipt
	err := m.tx.Query(func(s store.Scanner) error {
		var x receipt
		err := s.Scan(&x.id, &x.owner, &x.fingerprint, &x.running)
		all = append(all, x)
		return err
	}, `SELECT id, owner, hex(fingerprint), `+r.running+` FROM `+r.table+` WHERE owner <> '' AND `+r.named()+` ORDER BY id DESC`, anys(c.key)...)
	if err != nil {
		return err
	}
	for _, x := range all[1:] {
		switch {
		case x.running:
			m.conflict(Conflict{r.what, c.name(), c.owners, "Both used this key, and one is still under way.", "Start the gateway, let it end, stop the gateway and try again."})
			return nil
		case x.fingerprint != all[0].fingerprint && !m.o.ArchiveKeys:
			m.conflict(Conflict{r.what, c.name(), c.owners, "Both used this key, for different things.", "With --archive-keys the older one gets another key; a repeat of it is then refused, and never done again."})
			return nil
		}
		key := r.unique[len(r.unique)-1]
		from := c.key[len(c.key)-1]
		to := archived(from, x.owner)
		if r.table == "transfers" { // its host knows it by what it was called
			if _, err := m.tx.Exec(`UPDATE transfers SET placement_id = ? WHERE id = ? AND direction = 'import' AND placement_id = ''`, placementID(x.owner, from), x.id); err != nil {
				return err
			}
		}
		if _, err := m.tx.Exec(`UPDATE `+r.table+` SET `+key+` = ? WHERE id = ?`, to, x.id); err != nil {
			return err
		}
		m.report.Renamed = append(m.report.Renamed, Renamed{r.what, x.owner, from, to})
	}
	return nil
}

// maxName is how long the ids of peers and the keys of callers may be.
const maxName = 128

// archived is the name of something whose own name another one keeps.
func archived(name, owner string) string {
	sum := sha256.Sum256([]byte(owner))
	suffix := ".archived-" + hex.EncodeToString(sum[:4])
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// placementID names an import on its host (internal/transfers).
func placementID(owner, requestID string) string {
	sum := sha256.Sum256([]byte(owner + "\x00" + requestID))
	return hex.EncodeToString(sum[:12])
}

// wakeReceivers renames the receivers of wake-up targets, whose address has the
// owner and the peer in it (internal/events).
func (m *shared) wakeReceivers() error {
	type receiver struct {
		id      int64
		address string
	}
	var all []receiver
	err := m.tx.Query(func(s store.Scanner) error {
		var r receiver
		err := s.Scan(&r.id, &r.address)
		all = append(all, r)
		return err
	}, `SELECT id, address FROM event_receivers WHERE address LIKE 'wake %'`)
	if err != nil {
		return fmt.Errorf("looking for receivers of wake-ups: %w", err)
	}
	for _, r := range all {
		rest := strings.TrimPrefix(r.address, "wake ")
		at := strings.LastIndex(rest, " ") // a peer's id has none
		if at < 0 || rest[:at] == principal.SharedOwner {
			continue
		}
		owner, peer := rest[:at], rest[at+1:]
		if to := m.renamed[[2]string{owner, peer}]; to != "" {
			peer = to
		}
		address := "wake " + principal.SharedOwner + " " + peer
		for _, statement := range []string{ // the one that is there already stands for both
			`UPDATE event_deliveries SET receiver = (SELECT id FROM event_receivers WHERE address = ?2) WHERE receiver = ?1 AND EXISTS (SELECT 1 FROM event_receivers WHERE address = ?2)`,
			`DELETE FROM event_receivers WHERE id = ?1 AND EXISTS (SELECT 1 FROM event_receivers WHERE address = ?2)`,
			`UPDATE event_receivers SET address = ?2 WHERE id = ?1`,
		} {
			if _, err := m.tx.Exec(statement, r.id, address); err != nil {
				return fmt.Errorf("renaming a receiver of wake-ups: %w", err)
			}
		}
	}
	return nil
}
