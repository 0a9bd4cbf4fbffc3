package transfers

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"net/url"
	"path"
	"sync"

	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// ticketBytes is what a link holds that can't be guessed.
const ticketBytes = 32

// tickets remembers the links of this run, of which the database has only the
// hashes, so that a repeated call answers the same link.
type tickets struct {
	mu sync.Mutex
	of map[int64]string
}

func (t *tickets) keep(id int64, ticket string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of[id] = ticket
}

func (t *tickets) get(id int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[id]
}

func (t *tickets) forget(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, id)
}

func (s *Service) newTicket() (ticket string, hash []byte, err error) {
	raw := make([]byte, ticketBytes)
	if _, err := io.ReadFull(s.rand, raw); err != nil {
		return "", nil, fmt.Errorf("making a ticket: %w", err)
	}
	ticket = base64.RawURLEncoding.EncodeToString(raw)
	return ticket, hashTicket(ticket), nil
}

func hashTicket(ticket string) []byte {
	sum := sha256.Sum256([]byte(ticket))
	return sum[:]
}

func insertTicket(tx *store.Tx, hash []byte, id int64) error {
	if _, err := tx.Exec(`INSERT INTO transfer_tickets (hash, transfer) VALUES (?, ?)`, hash, id); err != nil {
		return fmt.Errorf("storing a ticket: %w", err)
	}
	return nil
}

func deleteTickets(tx *store.Tx, id int64) error {
	if _, err := tx.Exec(`DELETE FROM transfer_tickets WHERE transfer = ?`, id); err != nil {
		return fmt.Errorf("removing tickets: %w", err)
	}
	return nil
}

// answer is a row as its owner sees it now, with a link for a client that may
// read files. A link that was given out by an earlier run still works, but can't
// be told again: there is a further one.
func (s *Service) answer(ctx context.Context, who principal.Principal, r row) (Transfer, error) {
	t := r.Transfer
	if t.State == Ready && !r.linked(s.now()) {
		t.State = Expired
	}
	if !r.linked(s.now()) || !who.Permissions.Has(principal.FilesRead) {
		return t, nil
	}
	ticket := s.tickets.get(r.id)
	if ticket == "" {
		var err error
		if ticket, err = s.furtherTicket(ctx, r); err != nil || ticket == "" {
			return t, err
		}
	}
	t.DownloadURL = s.baseURL + filesPrefix + ticket + "/" + url.PathEscape(r.FileName)
	return t, nil
}

// furtherTicket makes another link of a transfer, or "" when it has ended.
func (s *Service) furtherTicket(ctx context.Context, r row) (string, error) {
	ticket, hash, err := s.newTicket()
	if err != nil {
		return "", err
	}
	return store.Write(ctx, s.store, func(tx *store.Tx) (string, error) {
		now, ok, err := find(tx, byID, r.id)
		if err != nil || !ok || !now.linked(tx.Now()) {
			return "", err
		}
		if err := insertTicket(tx, hash, r.id); err != nil {
			return "", err
		}
		tx.AfterCommit(func() { s.tickets.keep(r.id, ticket) })
		return ticket, nil
	})
}

// mimeTypeOf guesses from the name, for people; downloads are always sent as
// bytes.
func mimeTypeOf(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

func hashOf(r io.Reader) (string, error) {
	h := sha256.New()
	if _, err := copyInto(h, r); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
