// Package approval is the one decision about one call.
//
// It owns the states of a decision and the rule that exactly one of them wins:
// allowed, denied, expired or withdrawn, whichever comes first, by compare and
// set. It promises that whoever comes later is told what was decided and why, that
// an allowance counts only for the exact question that was shown, and that every
// party reads the same outcome for ever. It leaves to others who decides: people at
// a terminal, lists, clocks and the caller.
package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync/atomic"
)

// State is where a decision stands.
type State int

const (
	Pending State = iota
	Allowed
	Denied    // a human or a rule said no
	Expired   // nobody answered in time
	Withdrawn // the caller is gone
)

func (s State) String() string {
	return [...]string{"pending", "allowed", "denied", "expired", "withdrawn"}[s]
}

// Question is what is asked: everything that a human is shown, and everything that
// the tool will get.
type Question struct {
	Device string
	Tool   string
	Agent  string // the caller's claim
	Reason string // the caller's claim
	Args   json.RawMessage
	// Hint names the argument that says best what the call does; "" shows all.
	Hint     string
	Requires []string
	// Digest is the identity of the tool's definition.
	Digest string
}

// Hash identifies the question. Two that differ in anything have different hashes.
func (q Question) Hash() string {
	raw, err := json.Marshal([]any{q.Device, q.Tool, q.Agent, q.Reason, string(q.Args), q.Hint, q.Requires, q.Digest})
	if err != nil {
		panic(fmt.Sprintf("strings can be encoded: %v", err))
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Outcome is a decision that was made.
type Outcome struct {
	State State
	Why   string // in words for people; empty for a plain yes
	// Always says that the tool shall be allowed from now on.
	Always bool
}

// Approval is the decision about one question. It is safe for concurrent use.
type Approval struct {
	Question Question

	hash    string
	outcome atomic.Pointer[Outcome]
	done    chan struct{}
}

// New is a decision that is pending.
func New(q Question) *Approval {
	return &Approval{Question: q, hash: q.Hash(), done: make(chan struct{})}
}

// Done is closed once it is decided.
func (a *Approval) Done() <-chan struct{} { return a.done }

// Outcome is the decision, Pending while there is none.
func (a *Approval) Outcome() Outcome {
	if o := a.outcome.Load(); o != nil {
		return *o
	}
	return Outcome{}
}

// Decide makes o the decision if there is none, and reports whether it did. What
// comes back is the decision that counts. An allowance goes through [Approval.Allow].
func (a *Approval) Decide(o Outcome) (Outcome, bool) {
	if o.State == Pending || o.State == Allowed {
		panic("a decision ends the call; allowances need the hash of what was shown")
	}
	return a.settle(o)
}

// Allow allows what was shown, named by the hash of the question. If that is not
// what would run, the call is denied.
func (a *Approval) Allow(shown string, always bool) (Outcome, bool) {
	if shown != a.hash || a.Question.Hash() != a.hash {
		return a.settle(Outcome{State: Denied, Why: "what was shown is not what would run"})
	}
	return a.settle(Outcome{State: Allowed, Always: always})
}

func (a *Approval) settle(o Outcome) (Outcome, bool) {
	if a.outcome.CompareAndSwap(nil, &o) {
		close(a.done)
		return o, true
	}
	return *a.outcome.Load(), false
}
