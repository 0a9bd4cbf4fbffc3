package peeragent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/channel/client"
	"agentrelay/internal/fault"
)

// peerEnv is everything the mailbox commands take from their surroundings.
type peerEnv struct {
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	// StdinTerminal says whether a person would type the text.
	StdinTerminal bool
	// Executable is [os.Executable].
	Executable func() (string, error)
	Rand       io.Reader
}

// exit is the exit code of a command that has said on standard output all there
// is to say.
type exit int

func (exit) Error() string { return "the answer stands on standard output" }

// agentVariable names the agent. Nothing else does: no flag can make one agent
// act as another.
const agentVariable = "PASEO_AGENT_ID"

const (
	maxText = 8192 // characters, as the mailbox counts them
	maxRead = 64 << 10
)

// The refusals that this program makes itself.
var (
	badUsage      = fault.Kind{Code: "invalid_usage", Hint: "Nothing was sent."}
	notInstalled  = fault.Kind{Code: "not_installed", Hint: "Nothing was sent. Run peer-agent by the path that the prompt or the owner named: it must lie in the bin directory of the gateway's state directory on this machine."}
	notRegistered = fault.Kind{Code: "not_registered", Hint: "Run peer-agent register first; then repeat this command."}
)

// PeerKinds lists the refusals of the mailbox commands for docs/errors.md.
func PeerKinds() []fault.Kind { return []fault.Kind{badUsage, notInstalled, notRegistered} }

// peerCommands are the commands by which an agent uses the mailbox. What they
// return is nil or an [exit]; they print one line of JSON and nothing else.
func peerCommands(env peerEnv) []*cobra.Command {
	return []*cobra.Command{
		registerCommand(env), peersCommand(env), sendCommand(env), inboxCommand(env),
		readCommand(env), ackCommand(env), stopCommand(env), messageCommand(env),
	}
}

// peerCommand is one command. run gets the positional arguments, whose names are
// want, and returns the line of the answer.
type peerCommand struct {
	use, short, long, example string
	want                      []string
	run                       func(context.Context, *agent, []string) (json.RawMessage, error)
	// id is the caller key that the run used, for the answer of a failed one.
	id *string
}

// command makes c a command of the program.
func (env peerEnv) command(c peerCommand) *cobra.Command {
	cmd := &cobra.Command{
		Use: c.use, Short: c.short, Long: c.short + ".\n\n" + c.long, Example: c.example,
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			line, err := env.try(cmd.Context(), c, args)
			if err != nil {
				return env.fail(cmd, err, c.id)
			}
			if _, err := fmt.Fprintf(env.Stdout, "%s\n", line); err != nil {
				return fmt.Errorf("writing the answer: %w", err)
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return env.fail(cmd, badUsage.New(flagRule(err)), nil)
	})
	cmd.Flags().SortFlags = false
	return cmd
}

// flagRule is what was wrong with a flag, without its value.
func flagRule(err error) string {
	text := err.Error()
	if _, rest, ok := strings.Cut(text, `for "`); ok && strings.HasPrefix(text, "invalid argument") {
		name, _, _ := strings.Cut(rest, `"`)
		return "The value of " + name + " is not one that it takes."
	}
	for _, before := range []string{"=", " in -"} {
		text, _, _ = strings.Cut(text, before)
	}
	return "The flags are not those of this command: " + text + "."
}

func (env peerEnv) try(ctx context.Context, c peerCommand, args []string) (json.RawMessage, error) {
	if len(args) < len(c.want) {
		return nil, badUsage.Newf("%s is missing.", c.want[len(args)])
	}
	if len(args) > len(c.want) {
		return nil, badUsage.New("There are more arguments than this command takes.")
	}
	a, err := env.agent()
	if err != nil {
		return nil, err
	}
	return c.run(ctx, a, args)
}

// fail prints a failure and returns its exit code.
func (env peerEnv) fail(cmd *cobra.Command, err error, id *string) error {
	type failure struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		Hint      string `json:"hint,omitempty"`
		Retryable bool   `json:"retryable"`
		ID        string `json:"id,omitempty"`
	}
	out := struct {
		Error     failure `json:"error"`
		MessageID string  `json:"messageId,omitempty"`
	}{}
	e, code := fault.From(err), exit(ExitFailed)
	out.Error = failure{e.Code, e.Message, e.Hint, e.Retryable, ""}
	if refused := (*client.Refused)(nil); errors.As(err, &refused) {
		out.Error.ID = refused.ID
	}
	if errors.Is(err, badUsage) {
		code = ExitUsage
		out.Error.Hint = "Nothing was sent. " + cmd.CommandPath() + " --help says how it is used."
	}
	if id != nil && *id != "" {
		out.MessageID = *id
	}
	if out.Error.Code == fault.Internal.Code && out.Error.ID == "" { // of this side
		out.Error.Message, out.Error.Hint = "The command was ended before it was done.", "Repeat it with the same ids."
	}
	var b bytes.Buffer
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	if err := j.Encode(out); err != nil {
		return fmt.Errorf("writing a failure: %w", err)
	}
	if _, err := env.Stdout.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing a failure: %w", err)
	}
	return code
}

// agent is who runs the command.
type agent struct {
	*client.Client
}

// agent finds out who runs the command: from the environment, and from where the
// program lies.
func (env peerEnv) agent() (*agent, error) {
	id, ok := capability.AgentID(env.Getenv(agentVariable))
	if !ok {
		return nil, badUsage.New("The environment variable " + agentVariable + " does not name the agent: peer-agent is run by agents, which have it set.")
	}
	path, err := env.Executable()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, notInstalled.New("It can't be found out where this program lies.")
	}
	bin := filepath.Dir(path)
	if filepath.Base(bin) != "bin" {
		return nil, notInstalled.New("This program does not lie in the bin directory of a state directory.")
	}
	return &agent{&client.Client{StateDir: filepath.Dir(bin), AgentID: id}}, nil
}

// ask makes a request that changes nothing.
func (a *agent) ask(ctx context.Context, route string, in any, wait time.Duration) (json.RawMessage, error) {
	return a.Do(ctx, client.Request{Route: route, In: in, Wait: wait})
}

// change makes a request that changes something.
func (a *agent) change(ctx context.Context, route string, in any) (json.RawMessage, error) {
	return a.Do(ctx, client.Request{Route: route, In: in, Changes: true})
}

// peer is the peer in whose name the agent acts, "" when it has none.
func (a *agent) peer(ctx context.Context) (string, error) {
	raw, err := a.ask(ctx, "self", nil, 0)
	if err != nil {
		return "", err
	}
	var self struct {
		PeerID string `json:"peerId"`
	}
	if err := json.Unmarshal(raw, &self); err != nil {
		return "", client.NoAnswer.New("The answer was not one of the gateway.")
	}
	return self.PeerID, nil
}

// ownPeer is peer for commands that need one.
func (a *agent) ownPeer(ctx context.Context) (string, error) {
	id, err := a.peer(ctx)
	if err == nil && id == "" {
		err = notRegistered.New("This agent has no peer yet.")
	}
	return id, err
}

// messageID is the caller key of a message: the one that was given, in lower
// case, else a new one.
func (env peerEnv) messageID(given *string) error {
	if *given == "" {
		id, err := uuid.NewRandomFromReader(env.Rand)
		if err != nil {
			return fmt.Errorf("making an id: %w", err)
		}
		*given = id.String()
		return nil
	}
	if !capability.IsUUID(*given) {
		*given = "" // it is not repeated in the answer
		return badUsage.New("--message-id must be a UUID.")
	}
	*given = strings.ToLower(*given)
	return nil
}

// text is what --text says, or standard input without the line end that shells
// add.
func (env peerEnv) text(cmd *cobra.Command, flag string) (string, error) {
	text := flag
	if !cmd.Flags().Changed("text") {
		if env.StdinTerminal {
			return "", badUsage.New("The text is missing: pass it with --text, or on standard input.")
		}
		raw, err := io.ReadAll(io.LimitReader(env.Stdin, maxRead+1))
		if err != nil {
			return "", badUsage.New("The text could not be read from standard input.")
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	}
	switch n := utf8.RuneCountInString(text); {
	case text == "":
		return "", badUsage.New("The text is empty: pass it with --text, or on standard input.")
	case !utf8.ValidString(text):
		return "", badUsage.New("The text is not valid UTF-8.")
	case n > maxText:
		return "", badUsage.Newf("The text has more than %d characters: send it in parts, or put it into a file and say where that is.", maxText)
	}
	return text, nil
}

// messageArgument checks an id that names a message: a mistyped one is bad usage.
func messageArgument(s string) (string, error) {
	if !capability.IsUUID(s) {
		return "", badUsage.New("The message id must be a UUID, as inbox shows it.")
	}
	return strings.ToLower(s), nil
}

const textHelp = `The text is that of --text, else standard input, where one line end at the end is left out;
it has 1 to 8192 characters.`
