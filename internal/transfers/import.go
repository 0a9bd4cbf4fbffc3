package transfers

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path"

	"agentrelay/internal/audit"
	host "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
)

// prepareImport refuses what can be told to be wrong before anything is
// downloaded.
func (s *Service) prepareImport(ctx context.Context, h Host, r request) (job, error) {
	if err := s.dialer.CheckURL(r.url); err != nil {
		return job{}, downloadError(err)
	}
	place := host.Placement{ProjectID: r.projectID, Path: r.path}
	if r.expected != "" {
		place.ExpectedSHA256 = &r.expected
	}
	if err := h.Check(ctx, place); err != nil {
		return job{}, err
	}
	name := newName()
	return job{
		spool: name,
		run:   func(ctx context.Context, stored row) { s.importFile(ctx, h, stored, r) },
		drop:  func() {},
	}, nil
}

// importFile downloads, and places what it got.
func (s *Service) importFile(ctx context.Context, h Host, r row, in request) {
	size, sum, err := s.fetch(ctx, r, in.url)
	if err == nil && in.sha256 != "" && sum != in.sha256 {
		err = ContentMismatch.New("The downloaded content does not have the sha256 that was given.")
	}
	if err != nil {
		s.fail(r, because(ctx, err))
		return
	}
	s.crash("downloaded")
	r.Size, r.SHA256 = &size, sum
	// What will be placed is on record before the host is asked to.
	ok, err := store.Write(context.WithoutCancel(ctx), s.store, func(tx *store.Tx) (bool, error) {
		return update(tx, r.id, Pending, `placing = 1, size = ?, sha256 = ?, file_name = ?`, size, sum, cmp.Or(r.FileName, path.Base(r.Path)))
	})
	switch {
	case err != nil:
		s.fail(r, err)
		return
	case !ok: // revoked
		s.discard(r.id, r.spool)
		return
	}
	s.crash("placing")
	err = s.place(ctx, h, r)
	s.crash("placed")
	s.endImport(r, because(ctx, err))
}

// place gives the host what was downloaded. The error is nil, a refusal, the
// reason for which ctx ended, or errUnsettled.
func (s *Service) place(ctx context.Context, h Host, r row) error {
	f, err := os.Open(s.spool.path(r.spool))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = h.Place(ctx, r.placementOf(), f)
	var refused *fault.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingBudget)
	defer cancel()
	_, placed, unknown := h.Settle(ctx, r.placementID())
	switch {
	case unknown != nil:
		return errors.Join(errUnsettled, err, unknown)
	case placed:
		return nil
	}
	s.log.Warn("an import broke off on its host", "transfer", r.id, "error", err)
	return Interrupted.New("The host, or the connection to it, failed before the file was in its place.").Because(err)
}

// errUnsettled means that the host can't tell what became of a placement.
var errUnsettled = errors.New("the outcome is unknown")

// endImport stores how an import ended whose host was asked to place it.
func (s *Service) endImport(r row, err error) {
	switch {
	case err == nil:
		s.end(r, false, func(tx *store.Tx) (bool, error) { return complete(tx, r, Pending) })
	case errors.Is(err, errUnsettled):
		s.log.Warn("the outcome of an import is unknown until its host can be asked", "transfer", r.id, "error", err)
		s.end(r, false, func(tx *store.Tx) (bool, error) { return leaveUnknown(tx, r) })
	default:
		s.fail(r, err)
	}
}

// complete ends an import that took effect.
func complete(tx *store.Tx, r row, from State) (bool, error) {
	ok, err := update(tx, r.id, from, `state = 'completed', spool = '', ended_at = ?, error_code = '', error_message = '', error_hint = ''`, tx.Now().UnixMilli())
	if err != nil || !ok {
		return false, err
	}
	return true, r.record(tx, "file.import", audit.OK, "size", *r.Size, "created", r.expected == "")
}

// leaveUnknown ends an import of which nobody can tell at present.
func leaveUnknown(tx *store.Tx, r row) (bool, error) {
	f := OutcomeUnknown.New("The file may be in its place or not: the host can't be asked at present.")
	return update(tx, r.id, Pending, `state = 'outcome_unknown', spool = '', ended_at = ?, error_code = ?, error_message = ?, error_hint = ?`, tx.Now().UnixMilli(), f.Code, f.Message, f.Hint)
}

// downloadError is the refusal for an error of a request to a source. It shows
// nothing of the address or the answer.
func downloadError(err error) error {
	var refused *fault.Error
	var destination *safedial.RefusedError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.As(err, &destination):
		return DownloadRefused.New("file.download_url was refused: " + destination.Reason + ".")
	case errors.Is(err, safedial.ErrTooLarge):
		return TransferTooLarge.New("The source has more bytes than one transfer may have.")
	}
	return DownloadFailed.New("The source could not be read to its end: the connection failed or broke off.").Because(safedial.Cause(err))
}
