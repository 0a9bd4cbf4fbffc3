// Package hosts is the directory of the owner's machines: which there are, how
// each is reached, what is known of it now, and the Direct workspace of each.
//
// It promises that nothing waits for a machine longer than it was asked to, that
// one which does not answer delays no other, that what is said of a machine has
// an age and a reason, and that a call for one machine never goes to another. A
// machine that can't be reached refuses with [Unavailable]; nothing is queued.
//
// It leaves to others how a machine is reached (packages local and ssh below
// it), what the worker on it does (package worker), receipts of transfers, and
// who may call what.
package hosts

import (
	"context"
	"io"
	"time"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/files"
	placements "agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
)

// Unavailable refuses a call for a machine that can't be reached. Its message
// says why, and since when.
var Unavailable = fault.HostUnavailable

// OutcomeUnknown is the answer to a change whose host was lost before it said
// how the change ended.
var OutcomeUnknown = fault.OutcomeUnknown

// Outdated refuses what needs a newer worker than the host has.
var Outdated = fault.Kind{
	Code: "worker_outdated",
	Hint: "Ask the owner to run: gateway hosts install HOST",
}

// Kinds lists the refusals of this package for docs/errors.md.
func Kinds() []fault.Kind { return []fault.Kind{Outdated} }

// State is how well a host is reached.
type State string

// The states. A host goes from Down over Connecting to Up; Degraded is a
// connection that has stopped answering and is not given up yet.
const (
	Down       State = "down"
	Connecting State = "connecting"
	Up         State = "up"
	Degraded   State = "degraded"
)

// Status is what is known of a host, and since when.
type Status struct {
	State State
	// Since is when State began.
	Since time.Time
	// CheckedAt is when the host last answered, or was last found not to.
	CheckedAt time.Time
	// Reason says in one sentence for callers why the host is not Up, or what can't
	// be done there although it is, as without a worker; else "". It names no path
	// and no secret.
	Reason string
	// Worker is the helper on the host; nil where there is none to speak of.
	Worker *Worker
}

// Worker is the helper that does the Direct tools on an SSH host.
type Worker struct {
	Version  string `json:"version"`
	Outdated bool   `json:"outdated"` // still served, but should be installed anew
}

// Workspace is the Direct tools of one host. Package workspace does them on the
// machine of its process, package worker asks another one to. Every method ends with its
// context; refusals are [fault.Error] values, those of the packages below
// internal/direct and, of another machine, those of this package.
type Workspace interface {
	ListDirectProjects(context.Context, direct.ListDirectProjectsIn) (direct.ListDirectProjectsOut, error)
	ListDirectFiles(context.Context, files.ListDirectFilesIn) (files.ListDirectFilesOut, error)
	SearchDirectFiles(context.Context, files.SearchDirectFilesIn) (files.SearchDirectFilesOut, error)
	ReadDirectFile(context.Context, files.ReadDirectFileIn) (files.ReadDirectFileOut, error)
	WriteDirectFile(context.Context, files.WriteDirectFileIn) (files.WriteDirectFileOut, error)
	EditDirectFile(context.Context, files.EditDirectFileIn) (files.EditDirectFileOut, error)
	RunDirectCommand(context.Context, principal.Principal, commands.RunDirectCommandIn) (commands.RunDirectCommandOut, error)
	ReadDirectCommand(context.Context, principal.Principal, commands.ReadDirectCommandIn) (commands.ReadDirectCommandOut, error)
	WriteDirectCommandInput(context.Context, principal.Principal, commands.WriteDirectCommandInputIn) (commands.WriteDirectCommandInputOut, error)
	CancelDirectCommand(context.Context, principal.Principal, commands.CancelDirectCommandIn) (commands.CancelDirectCommandOut, error)
	// Placements moves whole files; its methods refuse as those above do.
	Placements() Placements
}

// Placements is the host's side of exports and imports, as package transfers
// uses it.
type Placements interface {
	Open(ctx context.Context, projectID, path string) (*placements.Snapshot, error)
	Check(ctx context.Context, in placements.Placement) error
	Place(ctx context.Context, in placements.Placement, content io.Reader) (placements.Placed, error)
	Settle(ctx context.Context, id string) (placed placements.Placed, ok bool, err error)
}
