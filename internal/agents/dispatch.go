package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

// sendBudget bounds the calls that give one dispatch to a daemon. What has no
// answer by then is unknown, and asked for.
const sendBudget = time.Minute

// plan is a checked call that dispatches.
type plan struct {
	row
	replyTo string // the agent's message that this answers
	route   *string
	quiet   bool // tell nobody
	// lock names what only one dispatch may work on; "" is nothing.
	lock string
	// admit asks whether it may be done now, before there is a receipt, and fills
	// in what it finds.
	admit func(ctx context.Context, d Daemon, p *plan) error
	// give hands it to the daemon. step must be called before each further call.
	give func(ctx context.Context, d Daemon, r *row) outcome
}

// outcome is what became of a dispatch when it was given to the daemon.
type outcome struct {
	state  State
	err    *fault.Error // why not
	answer any
	// settled says that the daemon itself decided about this key, not only about
	// this attempt.
	settled bool
}

// dispatch does a plan once for its key and answers the receipt.
func (s *Service) dispatch(ctx context.Context, who principal.Principal, p plan) (Receipt, error) {
	p.owner, p.clientID = who.Owner, who.ClientID
	stored, ok, err := s.read(ctx, byKey, p.owner, p.hostID, p.requestID)
	if err != nil {
		return Receipt{}, err
	}
	if ok {
		if err := p.checkRepeats(stored); err != nil {
			return Receipt{}, err
		}
		open := stored.state == Submitting || stored.state == Unknown && stored.closedAt == 0
		if !open && !s.mayGive(stored) {
			return repeated(stored), nil
		}
	}
	type result struct {
		receipt Receipt
		err     error
	}
	done := make(chan result, 1)
	working := s.work(func() {
		receipt, err := s.dispatchAlone(ctx, p)
		done <- result{receipt, err}
	})
	if !working {
		return Receipt{}, store.ErrClosed
	}
	select {
	case r := <-done:
		return r.receipt, r.err
	case <-ctx.Done():
		return Receipt{}, ctx.Err()
	}
}

// dispatchAlone is dispatch for one call of a key at a time: those that come
// meanwhile get the receipt of the first. It goes on when the caller leaves once
// there is a receipt.
func (s *Service) dispatchAlone(ctx context.Context, p plan) (Receipt, error) {
	release, err := s.keys.Acquire(ctx, p.owner+"\x00"+p.hostID+"\x00"+p.requestID)
	if err != nil {
		return Receipt{}, err
	}
	defer release()
	if p.replyTo != "" {
		unlock, err := s.keys.Acquire(ctx, p.owner+"\x00"+p.hostID+"\x00\x00"+p.replyTo)
		if err != nil {
			return Receipt{}, err
		}
		defer unlock()
	}
	stored, ok, err := s.read(ctx, byKey, p.owner, p.hostID, p.requestID)
	if err != nil {
		return Receipt{}, err
	}
	if ok {
		if err := p.checkRepeats(stored); err != nil {
			return Receipt{}, err
		}
	}
	if ok && stored.state == Unknown {
		s.askFor(ctx, stored)
		if stored, ok, err = s.read(ctx, byID, stored.id); err != nil {
			return Receipt{}, err
		}
	}
	if ok && !s.mayGive(stored) {
		return repeated(stored), nil
	}
	if !ok && p.replyTo != "" {
		if original, found, err := s.replied(ctx, p); err != nil || found {
			return replyReceipt(original), err
		}
	}
	return s.give(ctx, p, stored, ok)
}

// give admits a plan, stores it and hands it to the daemon; again says that it is
// stored already and surely has had no effect, or is safe to repeat.
func (s *Service) give(ctx context.Context, p plan, stored row, again bool) (Receipt, error) {
	d, err := s.daemons.Daemon(p.hostID)
	if err != nil {
		return Receipt{}, err
	}
	if p.lock != "" {
		unlock, err := s.prompts.Acquire(ctx, p.lock)
		if err != nil {
			return Receipt{}, err
		}
		defer unlock()
	}
	admitting, cancel := context.WithTimeout(ctx, readBudget)
	err = p.admit(admitting, d, &p)
	cancel()
	if err != nil && again && stored.state == Unknown {
		receipt := repeated(stored)
		receipt.Message = "It is not known whether the daemon has it, and it can't be asked again now: " + fault.From(err).Message
		return receipt, nil
	}
	if err != nil {
		return Receipt{}, err
	}
	s.crash("admitted")
	// From here on without the caller's cancellation, so that it is known what was
	// sent.
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendBudget)
	defer cancel()
	r, err := store.Write(sending, s.store, func(tx *store.Tx) (row, error) {
		if again {
			return s.begin(tx, p, stored)
		}
		return s.insert(tx, p)
	})
	if err != nil {
		return Receipt{}, err
	}
	s.crash("stored")
	generation := d.Status().Generation
	if r.agentID != "" {
		s.follow(sending, r)
	}
	out := p.give(sending, d, &r)
	if again && stored.state == Unknown && out.state != Submitted && !out.settled {
		// That this attempt failed says nothing of the one before.
		out = outcome{state: Unknown, err: OutcomeUnknown.New("It is still not known whether the daemon has it; asking again failed: " + out.err.Message)}
	}
	s.crash("given")
	if r, err = s.settle(r, out); err != nil {
		return Receipt{}, fmt.Errorf("recording what became of a dispatch: %w", err)
	}
	s.crash("settled")
	s.afterDispatch(r, generation)
	receipt := receiptOf(r)
	receipt.Duplicate = again
	return receipt, nil
}

// insert stores a new dispatch with its route, its claim of a reply, and what
// makes the agent the owner's.
func (s *Service) insert(tx *store.Tx, p plan) (row, error) {
	r := p.row
	var err error
	if r.routeID, err = s.routeFor(tx, p); err != nil {
		return r, err
	}
	if r.agentID != "" {
		if err := s.agents.Record(tx, r.owner, r.hostID, r.agentID); err != nil {
			return r, err
		}
	}
	if r, err = r.insert(tx); err != nil {
		return r, err
	}
	return r, s.claimReply(tx, p, r)
}

// begin marks a stored dispatch as on its way again.
func (s *Service) begin(tx *store.Tx, p plan, r row) (row, error) {
	if err := s.claimReply(tx, p, r); err != nil {
		return r, err
	}
	if r.agentID == "" {
		r.cwd, r.workspaceID = p.cwd, p.workspaceID
	}
	r.keyed = r.keyed && r.state == Unknown // else nothing was given under the key
	r.state, r.closedAt = Submitting, 0
	return r, set(tx, r.id, "state", Submitting, "keyed", r.keyed, "error_code", "", "error_message", "", "error_hint", "", "closed_at", nil,
		"cwd", r.cwd, "workspace_id", r.workspaceID, "lost", "")
}

// mayGive reports whether a stored dispatch may be given to the daemon (again):
// it surely never got there, or the daemon itself does each key once.
func (s *Service) mayGive(r row) bool {
	if r.state == NotSent {
		return true
	}
	if r.state != Unknown || !r.keyed || r.lost != "" {
		return false
	}
	d, err := s.daemons.Daemon(r.hostID)
	if err != nil {
		return false
	}
	info, connected := d.Info()
	if r.tool == createWorkspace {
		return connected && info.WorkspaceReceipts()
	}
	return connected && info.RequestReceipts()
}

// checkRepeats refuses p unless it is the call that stored the row.
func (p plan) checkRepeats(stored row) error {
	if bytes.Equal(p.fingerprint, stored.fingerprint) {
		return nil
	}
	return fault.KeyConflict.Newf("requestId was used at %s for %s with other arguments.", at(stored.submittedAt), stored.tool).
		WithHint("get_dispatch_request shows what this requestId was used for. If yours is another request, give it a new requestId.")
}

// repeated answers a stored dispatch in its present state.
func repeated(stored row) Receipt {
	receipt := receiptOf(stored)
	receipt.Duplicate = true
	return receipt
}

// settle stores what became of a dispatch. It does not give up while the service
// lives: what is not stored would be unknown.
func (s *Service) settle(r row, out outcome) (row, error) {
	pause := 100 * time.Millisecond
	for {
		stored, err := store.Write(context.Background(), s.store, func(tx *store.Tx) (row, error) { return s.settleIn(tx, r, out) })
		if err == nil || errors.Is(err, store.ErrClosed) {
			return stored, err
		}
		s.log.Error("what became of a dispatch could not be stored and will be tried again", "host", r.hostID, "request", r.requestID, "error", err)
		select {
		case <-time.After(pause):
			pause = min(2*pause, 10*time.Second)
		case <-s.life.Done():
			return r, err
		}
	}
}

func (s *Service) settleIn(tx *store.Tx, r row, out outcome) (row, error) {
	r.state, r.updatedAt = out.state, tx.Now().UnixMilli()
	if out.state == Unknown {
		now, _, err := find(tx, byID, r.id)
		if err != nil {
			return r, err
		}
		if now.epoch != "" { // its prompt came by in the live timeline
			r.state = Submitted
		}
	}
	if out.err != nil {
		r.errCode, r.errMessage, r.errHint = out.err.Code, out.err.Message, out.err.Hint
	}
	if out.answer != nil {
		raw, err := json.Marshal(out.answer)
		if err != nil {
			return r, fmt.Errorf("writing the daemon's answer: %w", err)
		}
		r.answer = string(raw)
	}
	if out.state == Rejected || out.state == NotSent || r.tool == createWorkspace && out.state == Submitted {
		r.closedAt = r.updatedAt
	}
	if r.agentID != "" && r.tool == createAgent {
		if err := s.agents.Record(tx, r.owner, r.hostID, r.agentID); err != nil {
			return r, err
		}
	}
	err := set(tx, r.id, "state", r.state, "stage", r.stage, "keyed", r.keyed, "error_code", r.errCode, "error_message", r.errMessage, "error_hint", r.errHint,
		"answer", r.answer, "agent_id", r.agentID, "workspace_id", r.workspaceID, "cwd", r.cwd, "closed_at", nullable(r.closedAt))
	tx.AfterCommit(func() { s.news.tell(r.name()) })
	return r, err
}

func nullable(ms int64) any {
	if ms == 0 {
		return nil
	}
	return ms
}

// name is what [news] calls a dispatch.
func (r row) name() string { return fmt.Sprint("dispatch ", r.id) }

// follow has the events of an agent followed before it is given something.
func (s *Service) follow(ctx context.Context, r row) {
	if f := s.followers[r.hostID]; f != nil {
		f.prepare(ctx, r.agentID)
	}
}

// afterDispatch follows the agent of a dispatch from now on.
func (s *Service) afterDispatch(r row, generation uint64) {
	f := s.followers[r.hostID]
	if f == nil || r.agentID == "" || r.closedAt != 0 {
		return
	}
	f.sent(r, generation)
	s.work(func() {
		ctx, cancel := context.WithTimeout(s.life, readBudget)
		defer cancel()
		if err := s.agents.Issue(ctx, r.hostID, r.agentID); err != nil && ctx.Err() == nil {
			s.log.Warn("an agent was not given what it needs to reach the gateway", "host", r.hostID, "agent", r.agentID, "error", err)
		}
	})
	f.refresh()
	f.look(r.agentID)
}

// outcomeOf is what a failed call says of a dispatch.
func outcomeOf(err error, hostID string) outcome {
	var lost *paseo.Lost
	var rejected *paseo.Rejected
	_ = errors.As(err, &rejected)
	switch {
	case err == nil:
		return outcome{state: Submitted}
	case errors.As(err, &lost):
		return outcome{state: Unknown, err: OutcomeUnknown.New("The daemon was asked, and how it ended is not known: " + lost.Reason)}
	case paseo.RejectedAs(err, paseo.CodeKeyConflict): // its key is nobody else's, so it got there once
		return outcome{state: Unknown, err: OutcomeUnknown.New("The daemon was given this request before, with another route or program in its text, and does not say how that ended.")}
	case paseo.RejectedAs(err, paseo.CodeHandlerError): // no refusal: those have forms of their own
		return outcome{state: Unknown, err: OutcomeUnknown.New("The daemon failed while it worked on this: " + rejection(rejected).Message)}
	case rejected != nil && rejected.Code != paseo.CodeNotAccepted:
		return outcome{state: Rejected, err: rejection(rejected), settled: rejected.Code != paseo.CodeAgentNotFound}
	case rejected != nil:
		return outcome{state: NotSent, err: DaemonRefused.New("The agent did not get it.").WithHint("Repeat the call with the same requestId."), settled: true}
	}
	return outcome{state: NotSent, err: fault.From(refusal(context.Background(), err, hostID, true))}
}

func (s *Service) read(ctx context.Context, where string, args ...any) (r row, ok bool, err error) {
	err = store.Read(ctx, s.store, func(q *store.Reader) error {
		r, ok, err = find(q, where, args...)
		return err
	})
	return r, ok, err
}

// The messages of receipts.
const (
	onItsWay     = "It is on its way to the daemon. Read this receipt again; do not dispatch it anew."
	maybeRan     = "It may have reached the daemon and is not sent again by itself. The gateway asks the daemon for it as soon as it can; read this receipt again. Do not dispatch the same work under another requestId before that."
	maybeMade    = "It may have been made, and is not made again by itself. Repeat the same call, which asks a daemon that can tell; else look for it with list_workspaces before you make it under another requestId."
	noTrace      = "The daemon was asked and shows no trace of it, which does not prove that it never ran. Look at the agents with list_agents before you dispatch the same work under another requestId."
	sendAgain    = "It surely did not reach the daemon. Repeat the same call with the same requestId to send it."
	accepted     = "The daemon has it. Whether the work is done is another matter: wait_for_agent_result."
	lostAfterAll = "It may have run; the daemon can't tell any more."
)

// receiptOf is a stored dispatch as callers see it.
func receiptOf(r row) Receipt {
	out := Receipt{
		Found: true, RequestID: r.requestID, Tool: r.tool, State: r.state, AgentID: r.agentID, WorkspaceID: r.workspaceID,
		NotificationRouteID: r.routeID, SubmittedAt: at(r.submittedAt), UpdatedAt: at(r.updatedAt), HostID: r.hostID,
	}
	if r.answer != "" {
		out.UpstreamResult = json.RawMessage(r.answer)
	}
	if r.errCode != "" && r.state != Submitted {
		out.Error = &ReceiptError{r.errCode, r.errMessage, r.errHint}
	}
	switch {
	case r.state == Submitting:
		out.Message = onItsWay
	case r.state == Unknown && r.lost != "":
		out.Message = lostAfterAll
	case r.state == Unknown && r.tool == createWorkspace:
		out.Message = maybeMade
	case r.state == Unknown:
		out.Message = maybeRan
	case r.state == NotSent:
		out.Message = sendAgain
	case r.state == Submitted && r.tool != createWorkspace:
		out.Message = accepted
	}
	return out
}

// GetDispatchRequest answers a receipt; it sends nothing. An unknown one is asked
// for first, if the daemon can be asked at once.
func (s *Service) GetDispatchRequest(ctx context.Context, who principal.Principal, in RequestIn) (Receipt, error) {
	if err := checkRequestID("requestId", in.RequestID); err != nil {
		return Receipt{}, err
	}
	r, ok, err := s.read(ctx, byKey, who.Owner, in.HostID, in.RequestID)
	if err != nil || !ok {
		return Receipt{HostID: in.HostID}, err
	}
	asked := false
	if r.state == Unknown && r.closedAt == 0 {
		asked = s.askFor(ctx, r)
		if r, _, err = s.read(ctx, byID, r.id); err != nil {
			return Receipt{}, err
		}
	}
	receipt := receiptOf(r)
	if asked && r.state == Unknown && r.lost == "" {
		receipt.Message = noTrace
	}
	return receipt, nil
}

// settleInterrupted says of what was on its way when the last run ended that it
// may have happened.
func (s *Service) settleInterrupted(ctx context.Context) error {
	e := OutcomeUnknown.New("The gateway stopped while the daemon was asked.")
	return store.Exec(ctx, s.store, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE dispatches SET state = 'not_sent', closed_at = ?1, error_code = ?2, error_message = ?3, error_hint = ?4, updated_at = ?1 WHERE state = 'submitting' AND stage = 'prepared'`,
			tx.Now().UnixMilli(), HostUnavailable.Code, "The gateway stopped before the daemon was asked.", "Repeat the same call with the same requestId.")
		if err != nil {
			return fmt.Errorf("settling interrupted dispatches: %w", err)
		}
		_, err = tx.Exec(`UPDATE dispatches SET state = 'unknown', error_code = ?, error_message = ?, error_hint = ?, updated_at = ? WHERE state = 'submitting'`,
			e.Code, e.Message, e.Hint, tx.Now().UnixMilli())
		if err == nil {
			_, err = tx.Exec(`UPDATE native_prompts SET state = 'unknown', reason = 'The gateway stopped while it was submitted.' WHERE state = 'submitting'`)
		}
		if err == nil {
			_, err = tx.Exec(`UPDATE permission_answers SET state = 'unknown' WHERE state = 'submitting'`)
		}
		if err != nil {
			return fmt.Errorf("settling interrupted dispatches: %w", err)
		}
		return nil
	})
}
