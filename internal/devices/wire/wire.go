// Package wire is the language that a relay and its devices speak: JSON frames,
// one in a websocket message, of protocol version 1, and the check of a call's
// arguments, which both sides make.
//
// It owns the names of frames, fields, error codes and names of devices and tools,
// the sizes and times that both sides count on, the conversion between frames and
// bytes, and the check of arguments against a tool's JSON Schema. It promises that
// a device or relay that knows the public specification alone is understood and
// gets nothing it has to understand: fields beyond the specification only add, and
// frame types beyond it ([Ack], [Progress]) are sent only to a side that asked for
// them with [Frame.Resume]. It promises too that what is wrong with a frame or with
// arguments is said without their values. It leaves connections, queues, decisions
// and storage to the two sides.
//
// # Ids
//
// Each side names the frames that it sends: the relay a call with ref, the device
// its hello or ping with id. An answer repeats the name in ref. The relay also puts
// a call's ref into id, for devices that look there.
//
// # A call over a dropped link
//
// A device that says hello with resume promises: it remembers the refs of calls
// that it has begun, also over a restart of its own, never runs one of them twice,
// keeps the result until the relay sent [Ack] for it, and sends results that it
// keeps after each ready. A call that it had begun and of which it can't have a
// result any more (it was killed meanwhile) it answers with a result that is not ok.
// The relay promises it: a call that is open is sent again after ready, with the
// same ref, and a result is acknowledged once it is stored, or if it is no longer
// wanted. To a device without resume no call is ever sent twice.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
	"unicode/utf8"
)

// Proto is the protocol's version, in hello and ready.
const Proto = 1

// MaxFrame bounds a frame in bytes, in both directions.
const MaxFrame = 1 << 20

// Path is where a gateway serves the link; a stand-alone relay serves it at / too.
const Path = "/device"

// The times that both sides count on.
const (
	// PingEvery is how often the relay sends a websocket ping, and MissedPings how
	// many may be without an answer before it ends the link.
	PingEvery   = 20 * time.Second
	MissedPings = 2
	// Silence is how long a device waits for any sign of the relay before it takes
	// the link for dead: two and a half pings.
	Silence = 50 * time.Second
	// CallBudget is the time from the sending of a call to its end, in which the
	// human's answer lies; ApprovalBudget is the human's part if nothing else is set.
	CallBudget     = 120 * time.Second
	ApprovalBudget = 90 * time.Second
)

// NameForm is the form of the names of devices and tools.
var NameForm = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// The types of frames. The client is the device, the server the relay.
const (
	Pair       = "pair"        // client: code, device
	Hello      = "hello"       // client: token, proto, device, platform, tools; ours: resume
	ToolResult = "tool_result" // client: ref, ok, output, summary, spilled; ours: denied
	Ping       = "ping"        // client
	Paired     = "paired"      // server: device, token; the socket closes after it
	Ready      = "ready"       // server: device, proto, policy_hint; ours: resume
	Call       = "call"        // server: ref, tool, args, reason, agent; ours: deadline_ms, args_sha256, resent
	Deny       = "deny"        // server: ref, why
	Err        = "err"         // server: ref, code, msg; ours: retry_after_ms
	Pong       = "pong"        // server

	// Ack (server: ref) says that the relay needs the result of a call no more, and
	// Progress (client: ref, phase) where an open call stands. Both are ours, for a
	// link with resume.
	Ack      = "ack"
	Progress = "progress"
)

// The codes of an err frame.
const (
	CodeProto       = "proto"        // a protocol version that is not ours, or a frame out of order
	CodeAuth        = "auth"         // a token or pairing code that is not valid
	CodeDeviceTaken = "device_taken" // another device has that name
	CodeMalformed   = "malformed"    // no frame, or one without what its type needs
	CodeTooLarge    = "too_large"    // more than MaxFrame
)

// The reasons of a deny frame, besides free text.
const (
	WhyTimeout     = "timeout"
	WhyCancelled   = "cancelled"
	WhyRevoked     = "revoked"
	WhyUnknownTool = "unknown tool"
)

// The phases of [Progress].
const (
	PhaseApproval = "approval" // a human is being asked
	PhaseRunning  = "running"  // the tool was started
)

// CloseRestart is the websocket close code (RFC 6455 registry: service restart)
// of a relay that stops; the reason then is [RetryReason].
const CloseRestart = 1012

// ToolInfo is a tool as a device offers it.
type ToolInfo struct {
	Name   string          `json:"name"`
	Desc   string          `json:"desc"`
	Schema json.RawMessage `json:"schema,omitempty"` // absent: any object
	// Requires is what the tool needs, of net, fs and shell: advice for people. The
	// specification shows it in lists but has no field for it here.
	Requires []string `json:"requires,omitempty"`
}

// ID is the name that a sender gave its frame. A number is taken by its digits, for
// the specification does not say that it is a string.
type ID string

// UnmarshalJSON takes anything: a name that can't be used is none.
func (id *ID) UnmarshalJSON(raw []byte) error {
	var s string
	var n json.Number
	switch {
	case json.Unmarshal(raw, &s) == nil:
		*id = ID(s)
	case json.Unmarshal(raw, &n) == nil:
		*id = ID(n)
	}
	if len(*id) > 128 {
		*id = (*id)[:128]
	}
	return nil
}

// Frame is any frame; which fields count says its type.
type Frame struct {
	Type string `json:"type"`
	ID   ID     `json:"id,omitempty"`
	Ref  string `json:"ref,omitempty"`

	Code   string `json:"code,omitempty"` // of pair: the pairing code; of err: the error
	Device string `json:"device,omitempty"`

	Token    string     `json:"token,omitempty"`
	Proto    int        `json:"proto,omitempty"`
	Platform string     `json:"platform,omitempty"`
	Tools    []ToolInfo `json:"tools,omitempty"`
	Resume   bool       `json:"resume,omitempty"` // the package comment says what it promises

	OK      *bool  `json:"ok,omitempty"`
	Output  string `json:"output,omitempty"`
	Summary string `json:"summary,omitempty"`
	Spilled bool   `json:"spilled,omitempty"`
	// Denied says that the device did not run the call because its human or its
	// policy said no; Why is the reason.
	Denied bool   `json:"denied,omitempty"`
	Why    string `json:"why,omitempty"`
	Phase  string `json:"phase,omitempty"`

	PolicyHint string `json:"policy_hint,omitempty"`

	Tool   string          `json:"tool,omitempty"`
	Args   json.RawMessage `json:"args,omitempty"`
	Reason string          `json:"reason,omitempty"`
	Agent  string          `json:"agent,omitempty"`
	// DeadlineMs is what is left of the call's budget when the frame is sent, in
	// milliseconds, so that the two clocks need not agree.
	DeadlineMs int64 `json:"deadline_ms,omitempty"`
	// ArgsSHA256 is the SHA-256 of the bytes of args in this frame, in hex.
	ArgsSHA256 string `json:"args_sha256,omitempty"`
	// Resent says that this call may have arrived before.
	Resent bool `json:"resent,omitempty"`

	Msg          string `json:"msg,omitempty"`
	RetryAfterMs int64  `json:"retry_after_ms,omitempty"`
}

// ProtocolError is a frame that was refused: Code is that of an err frame, Msg says
// why without the frame's values, Ref names the frame if it had a name.
type ProtocolError struct{ Code, Msg, Ref string }

func (e *ProtocolError) Error() string { return e.Code + ": " + e.Msg }

// Frame is the err frame that says so.
func (e *ProtocolError) Frame() Frame { return Frame{Type: Err, Ref: e.Ref, Code: e.Code, Msg: e.Msg} }

func malformed(ref, format string, args ...any) error {
	return &ProtocolError{CodeMalformed, fmt.Sprintf(format, args...), ref}
}

// Decode reads a frame. Unknown fields are ignored, and so is an unknown type: the
// caller decides. Its errors are [*ProtocolError].
func Decode(raw []byte) (Frame, error) {
	if len(raw) > MaxFrame {
		return Frame{}, &ProtocolError{CodeTooLarge, fmt.Sprintf("a frame has at most %d bytes", MaxFrame), ""}
	}
	if !utf8.Valid(raw) {
		return Frame{}, malformed("", "the frame is not UTF-8")
	}
	var f Frame
	if err := json.Unmarshal(raw, &f); err != nil {
		return Frame{}, malformed("", "%s", jsonProblem(err))
	}
	if f.Type == "" {
		return Frame{}, malformed(f.name(), "the frame has no type")
	}
	return f, f.check()
}

// name is what an answer repeats in ref.
func (f Frame) name() string {
	if f.ID != "" {
		return string(f.ID)
	}
	return f.Ref
}

// Answer is a frame of the given type that names f in ref.
func (f Frame) Answer(kind string) Frame { return Frame{Type: kind, Ref: f.name()} }

// check says what a frame of a known type lacks.
func (f Frame) check() error {
	if f.Device != "" && !NameForm.MatchString(f.Device) {
		return malformed(f.name(), "device must match %s", NameForm)
	}
	for _, n := range needs[f.Type] {
		if !n.has(f) {
			return malformed(f.name(), "%s needs %s", f.Type, n.field)
		}
	}
	if f.Type == Hello {
		return f.checkTools()
	}
	return nil
}

type need struct {
	field string
	has   func(Frame) bool
}

var (
	needRef    = need{"ref", func(f Frame) bool { return f.Ref != "" }}
	needDevice = need{"device", func(f Frame) bool { return f.Device != "" }}
	needToken  = need{"token", func(f Frame) bool { return f.Token != "" }}
	needCode   = need{"code", func(f Frame) bool { return f.Code != "" }}

	needs = map[string][]need{
		Pair:       {needCode, needDevice},
		Hello:      {needToken, needDevice},
		ToolResult: {needRef, {"ok", func(f Frame) bool { return f.OK != nil }}},
		Progress:   {needRef},
		Ack:        {needRef},
		Paired:     {needDevice, needToken},
		Call:       {needRef, {"tool", func(f Frame) bool { return f.Tool != "" }}},
		Deny:       {needRef},
		Err:        {needCode},
	}
)

// MaxTools bounds the tools of one device, MaxDesc their descriptions, in bytes.
const (
	MaxTools = 256
	MaxDesc  = 4096
)

// checkTools refuses a hello whose tools can't be told apart.
func (f Frame) checkTools() error {
	if len(f.Tools) > MaxTools {
		return malformed(f.name(), "a device offers at most %d tools", MaxTools)
	}
	seen := map[string]bool{}
	for i, t := range f.Tools {
		switch {
		case !ToolForm.MatchString(t.Name):
			return malformed(f.name(), "the name of tools[%d] must match %s", i, ToolForm)
		case seen[t.Name]:
			return malformed(f.name(), "tools[%d] has the name of another tool", i)
		case len(t.Desc) > MaxDesc:
			return malformed(f.name(), "the desc of tools[%d] has more than %d bytes", i, MaxDesc)
		}
		seen[t.Name] = true
	}
	return nil
}

// ToolForm is what a relay takes as the name of a tool. The specification binds
// plugins to [NameForm]; tools that a device forwards from elsewhere, and those of
// its early drafts (read_file), have wider names.
var ToolForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Encode is the frame's bytes, without escapes for HTML. A frame over [MaxFrame] is
// a [*ProtocolError] with too_large.
func Encode(f Frame) ([]byte, error) {
	raw, err := compact(f)
	if err != nil {
		return nil, fmt.Errorf("encoding a %s frame: %w", f.Type, err)
	}
	if len(raw) > MaxFrame {
		return nil, &ProtocolError{CodeTooLarge, fmt.Sprintf("the %s frame would have %d bytes; the limit is %d", f.Type, len(raw), MaxFrame), f.Ref}
	}
	return raw, nil
}

// jsonProblem is an error of encoding/json without the text it met.
func jsonProblem(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%s must not be a JSON %s", shown(kind.Field), firstWord(kind.Value))
	}
	return "the frame is not a JSON object"
}
