package commands

import (
	"errors"
	"io/fs"
	"slices"

	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/principal"
)

// owns reports whether an owner has the records of another one: its own, and as the
// shared owner those that it has taken over.
func (s *Service) owns(owner, recorded string) bool {
	return owner == recorded || owner == principal.SharedOwner && slices.Contains(s.host.FormerOwners(), recorded)
}

// settled settles the record of a request and returns it: that of its owner, else
// that of an owner which it has taken over. Several of those may have used one
// requestId: then the record of these arguments counts, else the newest, and one
// that ran before one that came to nothing. The error is [fs.ErrNotExist] when
// there is none.
//
// No start under a former name can still be on its way: the worker that it was sent
// to ended before the one of today opened this state.
func (s *Service) settled(owner, requestID, fingerprint string) (record.Record, error) {
	best, _, err := s.root.Settle(record.Name(owner, requestID))
	if !errors.Is(err, fs.ErrNotExist) || owner != principal.SharedOwner {
		return best, err
	}
	none, rank := err, 0
	for _, former := range s.host.FormerOwners() {
		rec, _, err := s.root.Settle(record.Name(former, requestID))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return record.Record{}, err
		}
		this := 1
		switch {
		case rec.Tombstone:
		case rec.Fingerprint != fingerprint:
			this = 2
		default:
			this = 3
		}
		if this > rank || this == rank && rec.CreatedAt > best.CreatedAt {
			best, rank = rec, this
		}
	}
	if rank == 0 {
		return record.Record{}, none
	}
	return best, nil
}
