package transfers

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// OwnerTransfer is a transfer as the owner's commands show it: without its link.
type OwnerTransfer struct {
	Owner    string `json:"owner"`
	ClientID string `json:"clientId"`
	Transfer
}

// AllTransfersIn selects transfers for [Service.AllTransfers].
type AllTransfersIn struct {
	Owner  string  `json:"owner"`           // "" is every owner
	Limit  *int    `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor *string `json:"cursor,omitempty"`
}

// AllTransfersOut is a page of transfers, newest first.
type AllTransfersOut struct {
	Transfers  []OwnerTransfer `json:"transfers"`
	NextCursor string          `json:"nextCursor,omitempty"`
}

const (
	listAll   = `SELECT ` + columns + ` FROM transfers t WHERE id < ?1 ORDER BY id DESC LIMIT ?2`
	listOwner = `SELECT ` + columns + ` FROM transfers t WHERE id < ?1 AND owner = ?3 ORDER BY id DESC LIMIT ?2`
)

// AllTransfers answers a page of the transfers of one owner or of all, for the
// owner's own command line.
func (s *Service) AllTransfers(ctx context.Context, in AllTransfersIn) (AllTransfersOut, error) {
	limit := DefaultLimit
	if in.Limit != nil {
		if limit = *in.Limit; limit < 1 || limit > MaxLimit {
			return AllTransfersOut{}, invalid("limit", fmt.Sprintf("must be 1 to %d", MaxLimit))
		}
	}
	before, err := readCursor(in.Cursor)
	if err != nil {
		return AllTransfersOut{}, err
	}
	query, args := listAll, []any{before, limit + 1}
	if in.Owner != "" {
		query, args = listOwner, append(args, in.Owner)
	}
	var rows []row
	err = store.Read(ctx, s.store, func(q *store.Reader) (err error) {
		rows, err = all(q, query, args...)
		return err
	})
	if err != nil {
		return AllTransfersOut{}, err
	}
	out := AllTransfersOut{Transfers: []OwnerTransfer{}}
	if len(rows) > limit {
		rows = rows[:limit]
		out.NextCursor = base64.RawURLEncoding.EncodeToString(binary.AppendUvarint(nil, uint64(rows[limit-1].id)))
	}
	for _, r := range rows {
		if r.State == Ready && !r.linked(s.now()) {
			r.State = Expired
		}
		out.Transfers = append(out.Transfers, OwnerTransfer{r.owner, r.client, r.Transfer})
	}
	return out, nil
}

// readCursor returns the id below which a page begins. Cursors hold nothing but
// that, so one from another owner's list does no harm.
func readCursor(cursor *string) (int64, error) {
	if cursor == nil {
		return math.MaxInt64, nil
	}
	if raw, err := base64.RawURLEncoding.DecodeString(*cursor); err == nil {
		if id, n := binary.Uvarint(raw); n == len(raw) && n > 0 && id <= math.MaxInt64 {
			return int64(id), nil
		}
	}
	return 0, fault.InvalidCursor.New("cursor does not belong to this list.")
}

// EndClient ends what a client made, in the transaction that revokes it: links
// stop working and downloads are cut, running transfers are broken off. An
// import that is just being placed ends as what it turns out to be.
func (s *Service) EndClient(tx *store.Tx, clientID string) error {
	// At once, for a call may be stored in the same commit. Should this
	// transaction fail, such a call is refused without need, and can be repeated.
	s.endings.add(clientID)
	return s.endOf(tx, clientID, Export, Import)
}

// NarrowClient ends, as [Service.EndClient] does, what a client made and may not
// do any more, in the transaction that decides what it may: its exports when it
// may not read files, its imports when it may not write them.
func (s *Service) NarrowClient(tx *store.Tx, clientID string, may principal.Set) error {
	var ended []Direction
	for permission, direction := range map[principal.Permission]Direction{principal.FilesRead: Export, principal.FilesWrite: Import} {
		if !may.Has(permission) {
			ended = append(ended, direction)
		}
	}
	if ended == nil {
		return nil
	}
	s.endings.add(clientID)
	return s.endOf(tx, clientID, ended...)
}

// endOf ends the transfers of a client in some directions.
func (s *Service) endOf(tx *store.Tx, clientID string, directions ...Direction) error {
	for _, direction := range directions {
		rows, err := all(tx, `SELECT `+columns+` FROM transfers t WHERE spool <> '' AND client_id = ? AND direction = ?`, clientID, direction)
		if err != nil {
			return err
		}
		if err := s.revoke(tx, principal.Principal{}, rows); err != nil {
			return err
		}
	}
	return nil
}

// RevokeIn names what the owner revokes.
type RevokeIn struct {
	Owner string `json:"owner"`
	// HostID and RequestID name one transfer; both empty, all of the owner.
	HostID    string `json:"hostId"`
	RequestID string `json:"requestId"`
}

// Revoke ends transfers for the owner, as [Service.EndClient] does, and returns
// how many were still alive.
//
// Refusals: unknown_transfer.
func (s *Service) Revoke(ctx context.Context, who principal.Principal, in RevokeIn) (int, error) {
	return store.Write(ctx, s.store, func(tx *store.Tx) (int, error) {
		query, args := `SELECT `+columns+` FROM transfers t WHERE owner = ? AND spool <> ''`, []any{in.Owner}
		if in.RequestID != "" {
			query, args = byKey, append(args, in.HostID, in.RequestID)
		}
		rows, err := all(tx, query, args...)
		if err != nil {
			return 0, err
		}
		if in.RequestID != "" && len(rows) == 0 {
			return 0, UnknownTransfer.New("No transfer of this owner on this host has this requestId.")
		}
		alive := rows[:0]
		for _, r := range rows {
			if r.spool != "" {
				alive = append(alive, r)
			}
		}
		return len(alive), s.revoke(tx, who, alive)
	})
}

// revoke ends transfers that have a file in the spool. The zero who stands for
// the gateway.
func (s *Service) revoke(tx *store.Tx, who principal.Principal, rows []row) error {
	f := failure(TransferRevoked.New("It was revoked."))
	for _, r := range rows {
		switch {
		case r.State == Pending && r.placing: // the job stores what it turns out to be
		case r.State == Pending, r.linked(tx.Now()) && r.State == Ready:
			if _, err := update(tx, r.id, r.State, `state = 'revoked', spool = '', ended_at = ?, error_code = ?, error_message = ?, error_hint = ?`, tx.Now().UnixMilli(), f.Code, f.Message, f.Hint); err != nil {
				return err
			}
		default:
			if _, err := tx.Exec(`UPDATE transfers SET spool = '', state = iif(state = 'ready', 'expired', state) WHERE id = ?`, r.id); err != nil {
				return fmt.Errorf("ending a link: %w", err)
			}
		}
		if err := deleteTickets(tx, r.id); err != nil {
			return err
		}
		by := who
		by.Owner = cmp.Or(by.Owner, r.owner)
		if err := audit.Record(tx, by, "transfer.revoke", r.RequestID, audit.OK, "host", r.HostID, "path", r.Path); err != nil {
			return err
		}
		tx.AfterCommit(func() {
			s.streams.cut(r.id)
			if job := s.jobs.find(r.id); job != nil {
				job.cancel(errRevoked)
			}
			if r.State != Pending { // else the job removes it when it ends
				s.discard(r.id, r.spool)
			}
		})
	}
	return nil
}
