// Package wire is what a gateway and its worker on another machine say to each
// other besides MCP: the first line each way, the keys of _meta, and the
// channels on which whole files go.
//
// It promises that what login shells print before a worker speaks is skipped and
// bounded, that nothing of it can pass for a worker, and that a file that was cut
// off never reads as one that ended. Versions are counted here: a worker serves
// the gateway's protocol and the one before, a gateway likewise. It leaves to
// others how the two are connected (package ssh), what the tools do, and what
// becomes of calls whose connection is lost.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/transfers"
	"agentrelay/internal/fault"
)

// Protocol is the version of what this package describes. Previous versions down
// to Oldest are served too.
const (
	Protocol = 1
	// MCP is the version of MCP that the two speak: a session that is set up once,
	// so that calls carry nothing but themselves.
	MCP = "2025-11-25"
)

// Oldest is the oldest version that a side with version current can speak to.
func Oldest(current int) int { return max(1, current-1) }

// The keys of _meta in a call of a gateway.
const (
	// OwnerKey is the owner of the caller; commands belong to it.
	OwnerKey = "agentrelay/owner"
	// ClientKey is the OAuth client that made the call.
	ClientKey = "agentrelay/client"
	// OperationKey names a change for [SettleKey]: 24 lower-case hexadecimal
	// digits that no other change has.
	OperationKey = "agentrelay/operation"
	// SettleKey is true in a call that asks what became of a change whose answer
	// was lost, with the arguments of that change. To ask is to settle: a change
	// that never arrived won't be made when it arrives after that.
	SettleKey = "agentrelay/settle"
)

// The methods besides those of MCP.
const (
	// CheckMethod refuses a placement that would be refused.
	CheckMethod = "agentrelay/placements/check"
	// SettleMethod settles a placement.
	SettleMethod = "agentrelay/placements/settle"
)

// PlacementParams are the arguments of both.
type PlacementParams struct {
	mcp.ParamsBase
	transfers.Placement
}

// PlacementResult is the answer to both.
type PlacementResult struct {
	mcp.ResultBase
	PlaceAnswer
}

// Settings is what a worker works by: the policy of its host, and how commands
// run there. It is part of the first line of a gateway, and the file that a
// worker gets which runs alone.
type Settings struct {
	direct.Policy
	Commands Commands `json:"commands"`
}

// Commands says how commands run. Zero values are the defaults of package
// commands.
type Commands struct {
	Path            string   `json:"path,omitempty"`            // the PATH of commands; "" is that of the login shell
	PassEnvironment []string `json:"passEnvironment,omitempty"` // names of further variables of the worker that commands get
	RunningPerOwner int      `json:"runningPerOwner,omitempty"`
	RunningPerHost  int      `json:"runningPerHost,omitempty"`
	OutputBytes     int64    `json:"outputBytes,omitempty"`
	StoredBytes     int64    `json:"storedBytes,omitempty"`
	KeepDays        int      `json:"keepDays,omitempty"`
}

// Options is c for the service that runs them.
func (c Commands) Options() commands.Options {
	return commands.Options{Path: c.Path, Pass: c.PassEnvironment, Limits: commands.Limits{
		RunningPerOwner: c.RunningPerOwner, RunningPerHost: c.RunningPerHost, OutputBytes: c.OutputBytes,
		StoredBytes: c.StoredBytes, StoredFor: time.Duration(c.KeepDays) * 24 * time.Hour,
	}}
}

// idForm is the form of the ids of hosts and projects.
var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Check refuses settings that can't be meant.
func (s *Settings) Check() error {
	if !idForm.MatchString(s.HostID) {
		return errors.New("hostId must be 1 to 64 letters, digits, _ or -")
	}
	seen := map[string]bool{}
	for i := range s.Projects {
		p := &s.Projects[i]
		at := fmt.Sprintf("projects[%d]", i)
		switch {
		case !idForm.MatchString(p.ID):
			return fmt.Errorf("%s.id must be 1 to 64 letters, digits, _ or -", at)
		case seen[p.ID]:
			return fmt.Errorf("%s.id is there twice", at)
		case !rooted(p.Path):
			return fmt.Errorf("%s.path must be absolute, or begin with ~/", at)
		}
		seen[p.ID] = true
		if p.Name == "" {
			p.Name = p.ID
		}
		switch p.CommandMode {
		case "":
			p.CommandMode = direct.Disabled
		case direct.Disabled, direct.Registered, direct.Full:
		default:
			return fmt.Errorf("%s.commandMode must be disabled, registered or full", at)
		}
		for j, c := range p.Commands {
			if c.Name == "" || len(c.Argv) == 0 || c.Argv[0] == "" {
				return fmt.Errorf("%s.commands[%d] must have a name and an argv", at, j)
			}
		}
	}
	for name, paths := range map[string][]string{"allowedRoots": s.AllowedRoots, "protected": s.Protected} {
		for i, p := range paths {
			if !rooted(p) {
				return fmt.Errorf("%s[%d] must be absolute, or begin with ~/", name, i)
			}
		}
	}
	c := s.Commands
	if min(int64(c.RunningPerOwner), int64(c.RunningPerHost), c.OutputBytes, c.StoredBytes, int64(c.KeepDays)) < 0 {
		return errors.New("no limit in commands may be negative")
	}
	return nil
}

// rooted reports a path that [Settings.Expand] makes absolute.
func rooted(path string) bool {
	return filepath.IsAbs(path) || path == "~" || path == "$HOME" || strings.HasPrefix(path, "~/") || strings.HasPrefix(path, "$HOME/")
}

// Expand replaces ~ and $HOME at the beginning of the paths by the home
// directory of the machine that has them.
func (s *Settings) Expand(home string) {
	expand := func(paths []string) {
		for i, p := range paths {
			for _, prefix := range []string{"~", "$HOME"} {
				if rest, ok := strings.CutPrefix(p, prefix); ok && (rest == "" || rest[0] == '/') {
					paths[i] = filepath.Join(home, rest)
				}
			}
		}
	}
	expand(s.AllowedRoots)
	expand(s.Protected)
	for i := range s.Projects {
		path := []string{s.Projects[i].Path}
		expand(path)
		s.Projects[i].Path = path[0]
	}
}

// Hello is the first line of a gateway.
type Hello struct {
	// Protocol is the gateway's version; the worker may answer with the one
	// before.
	Protocol int `json:"protocol"`
	// Nonce is repeated in the answer, which is known by it.
	Nonce string `json:"nonce"`
	// Gateway is the version of the gateway's program, for logs.
	Gateway string `json:"gateway"`
	// StateDir is the private directory on the worker's machine, absolute, or
	// relative to the home directory.
	StateDir string   `json:"stateDir"`
	Settings Settings `json:"settings"`
	// PatienceMs is how long an older worker is given to finish what it changes
	// before it is told to end by a signal, and again before it is killed; 0 is
	// the worker's own.
	PatienceMs int64 `json:"patienceMs,omitempty"`
}

// Reply is the first line of a worker.
type Reply struct {
	// Protocol is the version that is spoken from here on.
	Protocol int `json:"protocol"`
	// Version is that of the worker's program.
	Version string `json:"version"`
	// Bulk is the socket for whole files.
	Bulk string `json:"bulk,omitempty"`
	// Error is why the worker ends now instead of working.
	Error *Failure `json:"error,omitempty"`
}

// The codes of the Error of a [Reply].
const (
	CodeGatewayOutdated = "gateway_outdated" // the gateway's protocol is not served any more
	CodeBusy            = "worker_busy"      // another worker has the state directory and stays
	CodeBadSettings     = "bad_settings"     // the first line can't be read or obeyed
	CodeStateDir        = "bad_state_dir"    // the state directory is not private, or can't be used
)

// ExitReplaced is the exit status of a worker that made way for another one.
const ExitReplaced = 75

// Failure is an error on its way from a worker.
type Failure struct {
	Code      string `json:"code"`
	Message   string `json:"message,omitempty"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
}

// FailureOf is err for the wire. What is no refusal goes as an internal error
// without its text, which may name files.
func FailureOf(err error) *Failure {
	for word, sentinel := range sentinels() {
		if errors.Is(err, sentinel) {
			return &Failure{Code: word}
		}
	}
	e := fault.From(err)
	return &Failure{e.Code, e.Message, e.Hint, e.Retryable}
}

// maxText bounds the message and the hint of a refusal, in bytes.
const maxText = 64 << 10

// codeForm is the form of the codes of refusals.
var codeForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// Err is the error again. Codes go into the audit log and messages to callers, so
// what can't be a refusal is an error that is none.
func (f *Failure) Err() error {
	if sentinel, ok := sentinels()[f.Code]; ok {
		return sentinel
	}
	if !codeForm.MatchString(f.Code) || len(f.Message) > maxText || len(f.Hint) > maxText {
		return errors.New("a refusal of the worker can't be read")
	}
	return (fault.Kind{Code: f.Code, Hint: f.Hint, Retryable: f.Retryable}).New(f.Message)
}

// Withdrawn is the refusal of a change that was settled as not made before it
// arrived, and the answer when that is asked.
var Withdrawn = fault.Kind{
	Code:      "operation_withdrawn",
	Hint:      "Nothing was changed: the connection was lost before this arrived. Repeat the call.",
	Retryable: true,
}

// ProgramVersion is what the Go tool wrote into this program: "devel" for one
// built from a work tree.
func ProgramVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Absolute is a state directory as the worker's machine understands it.
func Absolute(dir string) (string, error) {
	if filepath.IsAbs(dir) {
		return filepath.Clean(dir), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, strings.TrimPrefix(dir, "~/")), nil
}

// sentinels are the errors of placements that mean something to the gateway, by
// the word that goes over the wire.
func sentinels() map[string]error {
	return map[string]error{"placement_withdrawn": transfers.ErrWithdrawn, "placement_unsettled": transfers.ErrUnsettled, "placement_busy": transfers.ErrBusy}
}

func line(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	return append(raw, '\n'), err
}
