package transfers

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/direct"
	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/store"
)

// prepareExport opens the file, so that what can be refused is refused before
// there is a receipt.
func (s *Service) prepareExport(ctx context.Context, h Host, owner string, r request) (job, error) {
	snap, err := h.Open(ctx, r.projectID, r.path)
	if err != nil {
		return job{}, err
	}
	name := newName()
	if snap.Size > s.limits.FileBytes {
		err = tooLarge(s.limits.FileBytes)
	} else if err = s.spool.reserve(name, owner, snap.Size); err != nil {
		if s.Sweep(ctx) == nil { // what has expired may make room
			err = s.spool.reserve(name, owner, snap.Size)
		}
	}
	if err != nil {
		snap.Content.Close()
		return job{}, err
	}
	return job{
		spool: name,
		run:   func(ctx context.Context, stored row) { s.export(ctx, h, stored, snap) },
		drop: func() {
			snap.Content.Close()
			s.discard(0, name)
		},
	}, nil
}

// export takes the snapshot and opens its link.
func (s *Service) export(ctx context.Context, h Host, r row, snap *host.Snapshot) {
	size, sum, err := s.snapshot(ctx, r, snap)
	for try := 1; errors.Is(err, direct.FileChanged) && try < snapshotTries; try++ {
		select {
		case <-time.After(snapshotRetryInterval):
		case <-ctx.Done():
		}
		if snap, err = h.Open(ctx, r.ProjectID, r.Path); err == nil {
			size, sum, err = s.snapshot(ctx, r, snap)
		}
	}
	if err = because(ctx, err); err != nil {
		s.fail(r, err)
		return
	}
	s.crash("copied")
	ticket, hash, err := s.newTicket()
	if err != nil {
		s.fail(r, err)
		return
	}
	s.end(r, true, func(tx *store.Tx) (bool, error) {
		now := tx.Now()
		ok, err := update(tx, r.id, Pending, `state = 'ready', size = ?, sha256 = ?, mime_type = ?, expires_at = ?, ended_at = ?`,
			size, sum, mimeTypeOf(r.FileName), now.Add(s.limits.TicketLife).UnixMilli(), now.UnixMilli())
		if err != nil || !ok {
			return false, err
		}
		if err := insertTicket(tx, hash, r.id); err != nil {
			return false, err
		}
		tx.AfterCommit(func() { s.tickets.keep(r.id, ticket) })
		return true, r.record(tx, "file.export", audit.OK, "size", size)
	})
	s.crash("ready")
}

// snapshot copies content into the spool, hashing it on the way, and closes it.
func (s *Service) snapshot(ctx context.Context, r row, snap *host.Snapshot) (size int64, sum string, err error) {
	defer snap.Content.Close()
	defer context.AfterFunc(ctx, func() { snap.Content.Close() })() // a host can hang in a read
	_ = os.Remove(s.spool.path(r.spool))                            // of an earlier try
	if c, ok := snap.Content.(host.Cloner); ok {
		if err := c.CloneTo(s.spool.path(r.spool)); err == nil {
			return s.hashClone(ctx, r)
		} else if !errors.Is(err, errors.ErrUnsupported) {
			return 0, "", err
		}
	}
	w, err := s.spool.create(r.spool, r.owner, s.limits.FileBytes)
	if err != nil {
		return 0, "", err
	}
	s.crash("copying")
	if _, err := copyInto(w, &within{ctx, snap.Content}); err != nil {
		w.abandon()
		return 0, "", err
	}
	if size, sum, err = w.finish(); err == nil {
		err = host.Arrived(snap.Content, sum)
	}
	return size, sum, err
}

// hashClone takes the size and hash of a file that shares the storage of its
// original, whatever happens to that.
func (s *Service) hashClone(ctx context.Context, r row) (size int64, sum string, err error) {
	f, err := os.Open(s.spool.path(r.spool))
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	if info.Size() > s.limits.FileBytes {
		return 0, "", tooLarge(s.limits.FileBytes)
	}
	if err := s.spool.reserve(r.spool, r.owner, info.Size()); err != nil {
		return 0, "", err
	}
	if sum, err = hashOf(&within{ctx, f}); err != nil {
		return 0, "", err
	}
	return info.Size(), sum, errors.Join(f.Sync(), s.spool.sync())
}

// within ends reading when its context ends.
type within struct {
	ctx context.Context
	r   io.Reader
}

func (r *within) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
