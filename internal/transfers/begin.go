package transfers

import (
	"bytes"
	"context"
	"fmt"

	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// ExportDirectFile takes a snapshot of a file and answers its receipt with a
// link to it. It waits for the snapshot as long as waitMs says; the work goes
// on in the background.
//
// Refusals, none of which uses the requestId up: invalid_arguments,
// key_conflict, transfer_too_large, too_many_transfers, spool_full, and those of
// the host for the file. What goes wrong later stands in the receipt.
func (s *Service) ExportDirectFile(ctx context.Context, who principal.Principal, in ExportDirectFileIn) (Transfer, error) {
	r, err := in.check()
	if err != nil {
		return Transfer{}, err
	}
	return s.begin(ctx, who, r, func(h Host) (job, error) { return s.prepareExport(ctx, h, who.Owner, r) })
}

// ImportDirectFile downloads a file from a public address and puts it in the
// place of a project's file. It waits as [Service.ExportDirectFile] does.
//
// Refusals, none of which uses the requestId up: invalid_arguments,
// key_conflict, download_refused, too_many_transfers, and those of the host for
// the place (hash_conflict, file_exists and others). What goes wrong later
// stands in the receipt.
func (s *Service) ImportDirectFile(ctx context.Context, who principal.Principal, in ImportDirectFileIn) (Transfer, error) {
	r, err := in.check()
	if err != nil {
		return Transfer{}, err
	}
	return s.begin(ctx, who, r, func(h Host) (job, error) { return s.prepareImport(ctx, h, r) })
}

// GetDirectTransfer answers the receipt of a transfer in its present state. It
// begins nothing again. The link of an export is for clients that may read files,
// whoever exported it.
//
// Refusals: invalid_arguments, unknown_transfer.
func (s *Service) GetDirectTransfer(ctx context.Context, who principal.Principal, in GetDirectTransferIn) (Transfer, error) {
	if err := checkRequestID(in.RequestID); err != nil {
		return Transfer{}, err
	}
	stored, ok, err := s.read(ctx, byKey, who.Owner, in.HostID, in.RequestID)
	if err != nil {
		return Transfer{}, err
	}
	if !ok {
		return Transfer{}, UnknownTransfer.New("No transfer of this owner on this host has this requestId.")
	}
	if stored.State == StateUnknown {
		if stored, err = s.settleNow(ctx, stored); err != nil {
			return Transfer{}, err
		}
	}
	return s.answer(ctx, who, stored)
}

func (s *Service) read(ctx context.Context, query string, args ...any) (r row, ok bool, err error) {
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		r, ok, err = find(q, query, args...)
		return err
	})
	return r, ok, err
}

// job is what a transfer does once its receipt is stored.
type job struct {
	spool string
	// run does the work and stores how it ended. ctx ends, with the cause, when
	// the transfer is revoked or the service closes.
	run func(ctx context.Context, r row)
	// drop releases what run would have, when it does not run.
	drop func()
}

// begin answers a stored transfer, or stores a new one and starts its job.
func (s *Service) begin(ctx context.Context, who principal.Principal, r request, prepare func(Host) (job, error)) (Transfer, error) {
	stored, ok, err := s.read(ctx, byKey, who.Owner, r.hostID, r.requestID)
	if err == nil && !ok {
		stored, ok, err = s.beginAlone(ctx, who, r, prepare)
	}
	if err != nil {
		return Transfer{}, err
	}
	if err := r.checkRepeats(stored); err != nil {
		return Transfer{}, err
	}
	if stored, err = s.wait(ctx, stored, r.wait); err != nil {
		return Transfer{}, err
	}
	out, err := s.answer(ctx, who, stored)
	out.Duplicate = ok
	return out, err
}

// checkRepeats refuses r unless it is the call that stored the transfer.
func (r request) checkRepeats(stored row) error {
	if bytes.Equal(r.fingerprint(), stored.fingerprint) {
		return nil
	}
	return fault.KeyConflict.Newf("requestId was used at %s for an %s with other arguments.", stored.CreatedAt, stored.Direction).
		WithHint("get_direct_transfer shows what this requestId was used for. If your transfer is another one, give it a new requestId.")
}

// beginAlone is beginNew for one call of a key at a time: those that come
// meanwhile wait for it instead of asking the host and taking space too.
func (s *Service) beginAlone(ctx context.Context, who principal.Principal, r request, prepare func(Host) (job, error)) (stored row, duplicate bool, err error) {
	release, err := s.keys.Acquire(ctx, key{who.Owner, r.hostID, r.requestID})
	if err != nil {
		return row{}, false, err
	}
	defer release()
	stored, ok, err := s.read(ctx, byKey, who.Owner, r.hostID, r.requestID)
	if err != nil || ok {
		return stored, ok, err
	}
	return s.beginNew(ctx, who, r, prepare)
}

// beginNew stores a transfer that was not stored a moment ago. duplicate says
// that it is stored by now.
func (s *Service) beginNew(ctx context.Context, who principal.Principal, r request, prepare func(Host) (job, error)) (stored row, duplicate bool, err error) {
	leave, ok := s.enter()
	if !ok {
		return row{}, false, store.ErrClosed
	}
	defer leave()
	ended := s.endings.count(who.ClientID)
	h, err := s.hosts.Host(r.hostID)
	if err != nil {
		return row{}, false, err
	}
	if err := s.admits(ctx, who.Owner); err != nil {
		return row{}, false, err
	}
	j, err := prepare(h)
	if err != nil {
		return row{}, false, err
	}
	type outcome struct {
		row
		duplicate bool
	}
	// Without the caller's cancellation, so that it is known whether the job has
	// started. The store answers in any case.
	out, err := store.Write(context.WithoutCancel(ctx), s.store, func(tx *store.Tx) (outcome, error) {
		if stored, ok, err := find(tx, byKey, who.Owner, r.hostID, r.requestID); err != nil || ok {
			return outcome{stored, ok}, err
		}
		if s.endings.count(who.ClientID) != ended {
			return outcome{}, TransferRevoked.New("The client was revoked, or may not do it any more, since the call began.")
		}
		if err := s.underLimit(tx, who.Owner, tx.Now().UnixMilli()); err != nil {
			return outcome{}, err
		}
		stored, err := insert(tx, who, r, j.spool)
		if err != nil {
			return outcome{}, err
		}
		tx.AfterCommit(func() { s.start(stored, j) })
		return outcome{row: stored}, nil
	})
	if err != nil || out.duplicate {
		j.drop()
	}
	return out.row, out.duplicate, err
}

// admits refuses early what underLimit would refuse, before a host is asked.
func (s *Service) admits(ctx context.Context, owner string) error {
	return store.Read(ctx, s.store, func(q *store.Reader) error { return s.underLimit(q, owner, s.now().UnixMilli()) })
}

const countSpooled = `SELECT count(*) FROM transfers WHERE owner = ? AND spool <> '' AND (expires_at IS NULL OR expires_at > ?)`

func (s *Service) underLimit(q store.Querier, owner string, now int64) error {
	var n int
	if err := q.QueryRow(countSpooled, owner, now).Scan(&n); err != nil {
		return fmt.Errorf("counting transfers: %w", err)
	}
	if n >= s.limits.PerOwner {
		return TooManyTransfers.Newf("%d transfers of this owner are pending or have a live link, and no more are allowed (transfers.perOwner).", n)
	}
	return nil
}

// placementOf is what the host is asked for an import.
func (r row) placementOf() host.Placement {
	p := host.Placement{ID: r.placementID(), ProjectID: r.ProjectID, Path: r.Path, SHA256: r.SHA256}
	if r.expected != "" {
		p.ExpectedSHA256 = &r.expected
	}
	if r.Size != nil {
		p.Size = *r.Size
	}
	return p
}
