package commands

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"agentrelay/internal/callerid"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
)

// The limits of arguments.
const (
	MaxArgs          = 64
	MaxArgvBytes     = 16384 // as JSON
	MaxTimeoutMs     = 3_600_000
	DefaultTimeoutMs = 30_000
	MaxInputBytes    = 65536
	DefaultLimit     = 200
	MaxLimit         = output.MaxEvents
	MaxWaitMs        = 20_000
)

func checkID(argument, id string) error {
	if !callerid.Valid(id) {
		return direct.Invalid(argument, callerid.Rule)
	}
	return nil
}

// checked is a well-formed run.
type checked struct {
	RunDirectCommandIn
	cwd       string
	timeoutMs int
	open      bool // stdin
	wait      time.Duration
}

func check(in RunDirectCommandIn) (checked, error) {
	c := checked{RunDirectCommandIn: in, timeoutMs: DefaultTimeoutMs}
	if err := checkID("requestId", in.RequestID); err != nil {
		return c, err
	}
	if (in.Argv == nil) == (in.Command == nil) {
		return c, direct.Invalid("argv", "or command must be given, and not both")
	}
	if in.Argv != nil {
		if err := checkArgv(in.Argv); err != nil {
			return c, err
		}
	}
	if in.CWD != nil {
		c.cwd = *in.CWD
	}
	if in.TimeoutMs != nil {
		c.timeoutMs = *in.TimeoutMs
	}
	if c.timeoutMs < 1 || c.timeoutMs > MaxTimeoutMs {
		return c, direct.Invalid("timeoutMs", fmt.Sprintf("must be 1 to %d", MaxTimeoutMs))
	}
	if in.Stdin != nil {
		if !slices.Contains([]string{"closed", "open"}, *in.Stdin) {
			return c, direct.Invalid("stdin", "must be closed or open")
		}
		c.open = *in.Stdin == "open"
	}
	var err error
	c.wait, err = checkWait(in.WaitMs)
	return c, err
}

func checkArgv(argv []string) error {
	if len(argv) < 1 || len(argv) > MaxArgs {
		return direct.Invalid("argv", fmt.Sprintf("must have 1 to %d elements", MaxArgs))
	}
	if argv[0] == "" {
		return direct.Invalid("argv[0]", "must not be empty")
	}
	for i, a := range argv {
		if strings.ContainsRune(a, 0) {
			return direct.Invalid(fmt.Sprintf("argv[%d]", i), "must not contain a NUL character")
		}
		if !utf8.ValidString(a) {
			return direct.Invalid(fmt.Sprintf("argv[%d]", i), "must be valid UTF-8")
		}
	}
	if raw, err := json.Marshal(argv); err != nil || len(raw) > MaxArgvBytes {
		return direct.Invalid("argv", fmt.Sprintf("must have at most %d bytes as JSON; put long data into a file", MaxArgvBytes))
	}
	return nil
}

func checkWait(ms *int) (time.Duration, error) {
	if ms == nil {
		return 0, nil
	}
	if *ms < 0 || *ms > MaxWaitMs {
		return 0, direct.Invalid("waitMs", fmt.Sprintf("must be 0 to %d", MaxWaitMs))
	}
	return time.Duration(*ms) * time.Millisecond, nil
}

// fingerprint tells a repeat from another command. A registered command counts
// by its name, so that a change of the config does not turn a repeat into
// another command.
func (c checked) fingerprint() string {
	h := sha256.New()
	name := ""
	if c.Command != nil {
		name = *c.Command
	}
	writeFields(h, "run_direct_command", c.ProjectID, c.cwd, fmt.Sprint(c.timeoutMs), fmt.Sprint(c.open), fmt.Sprint(c.Command != nil), name)
	writeFields(h, c.Argv...)
	return hex.EncodeToString(h.Sum(nil))
}

func inputFingerprint(text string, eof bool) string {
	h := sha256.New()
	writeFields(h, text, fmt.Sprint(eof))
	return hex.EncodeToString(h.Sum(nil))
}

// writeFields writes each field after its length, so that no two different
// lists of fields are the same bytes.
func writeFields(h hash.Hash, fields ...string) {
	for _, f := range fields {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
}

// argv is what the caller wants executed, if the project allows it. owners says
// that the owner has chosen it and not the caller.
func (c checked) argv(p direct.Project) (argv []string, owners bool, err error) {
	if p.CommandMode != direct.Registered && p.CommandMode != direct.Full {
		return nil, false, CommandsDisabled.New("The owner does not allow commands in this project.")
	}
	for _, r := range p.Commands {
		if c.Command != nil && r.Name == *c.Command || c.Command == nil && slices.Equal(r.Argv, c.Argv) {
			return r.Argv, c.Command != nil || p.CommandMode == direct.Registered, nil
		}
	}
	switch {
	case c.Command != nil:
		return nil, false, CommandNotRegistered.New("command names no registered command of this project.")
	case p.CommandMode == direct.Registered:
		return nil, false, CommandNotRegistered.New("argv is not exactly that of a registered command of this project.")
	}
	return c.Argv, false, nil
}

// program makes the path in the argv[0] of an owner's command absolute. It counts
// from the project's directory: were it to count from cwd, the caller would
// choose the program. named is argv[0] as it was, or "" when it stays.
func program(argv []string, project string) (resolved []string, named string) {
	if !strings.Contains(argv[0], "/") || filepath.IsAbs(argv[0]) {
		return argv, ""
	}
	resolved = slices.Clone(argv)
	resolved[0] = filepath.Join(project, argv[0])
	return resolved, argv[0]
}

// page is the arguments that select output.
type page struct {
	cursor int64
	limit  int
}

func checkPage(cursor *int64, limit *int) (page, error) {
	p := page{limit: DefaultLimit}
	if cursor != nil {
		p.cursor = *cursor
	}
	if limit != nil {
		p.limit = *limit
	}
	if p.cursor < 0 || p.cursor >= record.UntilEnd {
		return p, direct.Invalid("cursor", "must be the nextCursor of an answer, or 0")
	}
	if p.limit < 1 || p.limit > MaxLimit {
		return p, direct.Invalid("limit", fmt.Sprintf("must be 1 to %d", MaxLimit))
	}
	return p, nil
}
