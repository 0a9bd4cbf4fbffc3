// Package migrate moves state from one form to another when the owner asks for it:
// what belongs to single clients to the shared owner, and what an original gateway
// has kept into this one.
//
// It owns the rules by which rows of every table change hands, table by table, and
// the reports of what was done, what was given another name and why something can't
// be done. It promises that a migration happens in one transaction or not at all,
// that a rehearsal does the same and takes it back, that ids, texts, states,
// watermarks and claims stay as they are, and that a key that was used once stays
// used. It leaves backups to package backup and the words for people to
// internal/cli.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"agentrelay/internal/audit"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// Conflict is something that stops a migration.
type Conflict struct {
	What   string   `json:"what"` // "peer", "message", ...
	Name   string   `json:"name"` // as its owners call it
	Owners []string `json:"owners"`
	Why    string   `json:"why"`
	Next   string   `json:"next"` // what to do
}

// Renamed is something that got another name, because another of its name stays.
type Renamed struct {
	What  string `json:"what"`
	Owner string `json:"owner"` // of before
	From  string `json:"from"`
	To    string `json:"to"`
}

// Merged is a subscription that another one stands for from now on.
type Merged struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
	Into  string `json:"into"`
}

// Report is what a migration to the shared owner did, or would do.
type Report struct {
	// Applied is false after a rehearsal, and when there are conflicts.
	Applied bool `json:"applied"`
	// Owners are those whose rows move.
	Owners []string `json:"owners"`
	// Moved counts rows by table.
	Moved     map[string]int64 `json:"moved"`
	Renamed   []Renamed        `json:"renamed"`
	Merged    []Merged         `json:"merged"`
	Conflicts []Conflict       `json:"conflicts"`
	Notes     []string         `json:"notes"`
}

// SharedOptions says how [SharedOwner] works.
type SharedOptions struct {
	// Apply commits. Without it everything is done and taken back.
	Apply bool
	// ArchiveKeys gives the older of two receipts with one key and different
	// arguments another key, which would else be a conflict. A repeat of it is then
	// refused instead of answered.
	ArchiveKeys bool
}

// maxPeers is how many peers an owner may have (internal/mailbox).
const maxPeers = 512

// SharedOwner makes everything that belongs to single clients the shared owner's,
// in one transaction. Conflicts stop it, and are all in the report. An error is
// trouble of the store, and nothing has changed then.
func SharedOwner(ctx context.Context, s *store.Store, o SharedOptions) (Report, error) {
	report, err := store.Write(ctx, s, func(tx *store.Tx) (Report, error) {
		m := &shared{tx: tx, o: o, report: Report{Owners: []string{}, Moved: map[string]int64{}, Renamed: []Renamed{}, Merged: []Merged{}, Conflicts: []Conflict{}, Notes: []string{}}}
		if err := m.run(); err != nil {
			return Report{}, err
		}
		if !o.Apply || len(m.report.Conflicts) > 0 {
			return Report{}, &takenBack{m.report}
		}
		m.report.Applied = true
		return m.report, nil
	})
	var back *takenBack
	if errors.As(err, &back) {
		return back.report, nil
	}
	if err != nil {
		return Report{}, fmt.Errorf("moving everything to the shared owner: %w", err)
	}
	return report, nil
}

// takenBack carries a report out of a transaction that must not be committed.
type takenBack struct{ report Report }

func (*takenBack) Error() string { return "taken back" }

// FormerOwners are the owners whose rows the shared owner has taken over.
func FormerOwners(ctx context.Context, s *store.Store) (owners []string, err error) {
	err = store.Read(ctx, s, func(r *store.Reader) error {
		owners, err = texts(r, `SELECT former FROM owner_aliases WHERE owner = ? ORDER BY since DESC, former`, principal.SharedOwner)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading former owners: %w", err)
	}
	return owners, nil
}

// shared is one migration to the shared owner.
type shared struct {
	tx     *store.Tx
	o      SharedOptions
	report Report
	// renamed are the peers that got another id, by owner and former id.
	renamed map[[2]string]string
}

func (m *shared) run() error {
	present, err := ownedTables(m.tx)
	if err != nil {
		return err
	}
	if m.report.Owners, err = m.owners(present); err != nil {
		return err
	}
	if len(m.report.Owners) == 0 {
		m.note("Nothing belongs to single clients.")
		return nil
	}
	for _, step := range []func() error{m.peers, m.wakeReceivers, m.subscriptions} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, r := range rules {
		if present[r.table] {
			if err := m.clashes(r); err != nil {
				return fmt.Errorf("comparing the keys of %s: %w", r.table, err)
			}
		}
	}
	if len(m.report.Conflicts) > 0 {
		return nil
	}
	if err := m.keepPlacements(); err != nil {
		return err
	}
	for _, r := range rules {
		if !present[r.table] || r.history {
			continue
		}
		statement := `UPDATE ` + r.table + ` SET owner = ?1 WHERE owner <> ?1 AND owner <> ''`
		if r.forget {
			statement = `DELETE FROM ` + r.table + ` WHERE owner <> ?1 AND owner <> ''`
		}
		n, err := m.tx.Exec(statement, principal.SharedOwner)
		if err != nil {
			return fmt.Errorf("moving the rows of %s: %w", r.table, err)
		}
		if n > 0 && !r.forget {
			m.report.Moved[r.table] = n
		}
	}
	return m.remember()
}

func (m *shared) note(format string, args ...any) {
	m.report.Notes = append(m.report.Notes, fmt.Sprintf(format, args...))
}

func (m *shared) conflict(c Conflict) { m.report.Conflicts = append(m.report.Conflicts, c) }

// owners are all but the shared one that have rows which move.
func (m *shared) owners(present map[string]bool) ([]string, error) {
	seen := []string{}
	for _, r := range rules {
		if !present[r.table] || r.history || r.forget {
			continue
		}
		found, err := texts(m.tx, `SELECT DISTINCT owner FROM `+r.table+` WHERE owner <> ? AND owner <> ''`, principal.SharedOwner)
		if err != nil {
			return nil, fmt.Errorf("looking for the owners of %s: %w", r.table, err)
		}
		seen = append(seen, found...)
	}
	slices.Sort(seen)
	return slices.Compact(seen), nil
}

// remember makes the former owners known for good.
func (m *shared) remember() error {
	for _, owner := range m.report.Owners {
		_, err := m.tx.Exec(`INSERT INTO owner_aliases (former, owner, since) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET owner = excluded.owner, since = excluded.since`,
			owner, principal.SharedOwner, m.tx.Now().UnixMilli())
		if err != nil {
			return fmt.Errorf("keeping the names of former owners: %w", err)
		}
	}
	var peers int
	if err := m.tx.QueryRow(`SELECT count(*) FROM mailbox_peers WHERE owner = ?`, principal.SharedOwner).Scan(&peers); err != nil {
		return fmt.Errorf("counting peers: %w", err)
	}
	if peers > maxPeers {
		m.note("There are %d peers now; no new one can register, because an owner has at most %d.", peers, maxPeers)
	}
	return audit.Record(m.tx, principal.Owner(principal.SharedOwner), "owner.share", "", audit.OK, "owners", m.report.Owners)
}

// keepPlacements notes by which names hosts know what was placed, which are made of
// owner and key.
func (m *shared) keepPlacements() error {
	type row struct {
		id             int64
		owner, request string
	}
	var rows []row
	err := m.tx.Query(func(s store.Scanner) error {
		var r row
		err := s.Scan(&r.id, &r.owner, &r.request)
		rows = append(rows, r)
		return err
	}, `SELECT id, owner, request_id FROM transfers WHERE owner <> ? AND direction = 'import' AND placement_id = ''`, principal.SharedOwner)
	if err != nil {
		return fmt.Errorf("looking for imports: %w", err)
	}
	for _, r := range rows {
		if _, err := m.tx.Exec(`UPDATE transfers SET placement_id = ? WHERE id = ?`, placementID(r.owner, r.request), r.id); err != nil {
			return fmt.Errorf("keeping the name of a placement: %w", err)
		}
	}
	return nil
}

// texts are the values of a query for one column.
func texts(q store.Querier, query string, args ...any) (all []string, err error) {
	err = q.Query(func(s store.Scanner) error {
		var text string
		err := s.Scan(&text)
		all = append(all, text)
		return err
	}, query, args...)
	return all, err
}
