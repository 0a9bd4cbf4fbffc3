package peeragent

import (
	"io"

	"github.com/spf13/cobra"
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

// The exit codes. They are a contract: agents branch on them.
const (
	exitDone    exit = 0
	exitRefused exit = 1 // refused, or not known whether it was done
	exitUsage   exit = 2
)

// peerCommands are the commands by which an agent uses the mailbox. What they
// return is nil or an [exit]; they print one line of JSON and nothing else.
func peerCommands(env peerEnv) []*cobra.Command {
	return nil
}
