package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// TrialName is what the client of the owner's doctor calls itself when it
// registers.
const TrialName = "Agent Relay doctor"

// trialLife is how old a registration may be that gets a trial's consent.
const trialLife = 10 * time.Minute

// NoTrial refuses a consent for a client that is not the doctor's own.
var NoTrial = fault.Kind{Code: "no_trial", Hint: "A client of yours gets its consent on the consent page, with the owner password. gateway doctor does the rest by itself."}

// ConsentTrial lets the owner's doctor walk the way of a client without the
// password: it takes the parameters of an authorization request, gives the
// consent, and returns the redirect with the code. It is for callers that have
// proved to be the owner by other means.
//
// The consent allows nothing: its tokens list the tools, and call only those that
// need no permission. It is given only to a client that registered itself under
// [TrialName] in the last ten minutes and never had one, else refused with
// [NoTrial]; [Server.EndTrials] removes it.
func (s *Server) ConsentTrial(ctx context.Context, params url.Values) (redirect string, err error) {
	a, err := s.checkAuthorization(ctx, params)
	var page *pageError
	var refused *redirectError
	switch {
	case errors.As(err, &page):
		return "", NoTrial.New(page.message)
	case errors.As(err, &refused):
		return "", NoTrial.New(refused.description)
	case err != nil:
		return "", err
	}
	c := a.client
	if c.kind != Dynamic || c.name != TrialName || !c.authorizedAt.IsZero() || s.now().Sub(c.createdAt) > trialLife {
		return "", NoTrial.New("This client is not the doctor's own, or not new.")
	}
	a.trial = true
	return store.Write(ctx, s.store, func(tx *store.Tx) (string, error) { return s.issueCode(tx, a, principal.Set{}) })
}

// EndTrials removes a client of the doctor with its grants and tokens, and those
// that an earlier doctor left behind; it returns how many there were. A client of
// that name which was allowed something is not one.
func (s *Server) EndTrials(ctx context.Context, clientID string) (int, error) {
	return store.Write(ctx, s.store, func(tx *store.Tx) (int, error) {
		consented := map[string]bool{}
		err := tx.Query(func(row store.Scanner) error {
			var id string
			var asked bool
			err := row.Scan(&id, &asked)
			consented[id] = asked
			return err
		}, `SELECT id, authorized_at IS NOT NULL FROM oauth_clients WHERE name = ? AND kind = 'dynamic' AND (id = ? OR created_at < ?)
			AND (authorized_at IS NULL OR permissions = '')`, TrialName, clientID, tx.Now().Add(-trialLife).UnixMilli())
		if err != nil {
			return 0, fmt.Errorf("looking for the doctor's clients: %w", err)
		}
		for id, asked := range consented {
			if err := s.endTrial(tx, id, asked); err != nil {
				return 0, err
			}
		}
		return len(consented), nil
	})
}

// endTrial removes one. Registrations without a consent can be anybody's, so they
// leave nothing in the audit log.
func (s *Server) endTrial(tx *store.Tx, id string, consented bool) error {
	if err := s.clients.end(tx, id); err != nil {
		return err
	}
	if _, err := tx.Exec(`DELETE FROM oauth_clients WHERE id = ?`, id); err != nil {
		return fmt.Errorf("removing the doctor's client: %w", err)
	}
	if !consented {
		return nil
	}
	return audit.Record(tx, s.clients.ownerOf(id), "doctor.end", id, audit.OK)
}
