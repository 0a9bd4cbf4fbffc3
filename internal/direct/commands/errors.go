package commands

import (
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/commands/supervisor"
	"agentrelay/internal/fault"
)

// The refusals of command tools, besides those of package direct. Their
// messages name arguments, never the caller's value.
var (
	CommandsDisabled     = fault.Kind{Code: "commands_disabled", Hint: "Ask the owner to set commandMode to registered or full for this project in the gateway's config, or use a project that list_direct_projects shows with one of them."}
	CommandNotRegistered = fault.Kind{Code: "command_not_registered", Hint: "list_direct_projects shows the registered commands of the project: pass the name of one as command, or its argv without any change. Ask the owner to register another."}
	TooManyCommands      = fault.Kind{Code: "too_many_commands", Hint: "Wait until one ends (read_direct_command with waitMs) or cancel one that is not needed, then repeat the call with the same requestId.", Retryable: true}
	UnknownCommand       = fault.Kind{Code: "unknown_direct_command", Hint: "Pass the commandId that run_direct_command answered, to the same host, or pass the requestId: its answer says what became of that request."}
	TooManyUnknown       = fault.Kind{Code: "too_many_unknown_requests", Hint: "Ask by requestId only about requests that you have made. To settle one of these now, repeat its run_direct_command with the same requestId and arguments: it runs at most once.", Retryable: true}
	CommandEnded         = fault.Kind{Code: "command_ended", Hint: "Nothing was written. read_direct_command shows how it ended; run it again with a new requestId to give it other input."}
	StdinClosed          = fault.Kind{Code: "stdin_closed", Hint: "Nothing was written. A command takes input only when it is run with stdin open, and until an input with eof."}
	CommandsClosed       = fault.Kind{Code: "commands_closed", Hint: "The gateway is stopping. Repeat the call with the same ids in a few seconds.", Retryable: true}
)

// The codes of the error in a receipt.
var (
	NotStarted       = fault.Kind{Code: record.CodeNotStarted, Hint: "It never ran and never will. Run it with a new requestId if it is still wanted."}
	Interrupted      = fault.Kind{Code: record.CodeInterrupted, Hint: "Look at what the command did so far, then run it again with a new requestId if that is safe."}
	NotFound         = fault.Kind{Code: supervisor.CodeNotFound, Hint: "With a new requestId, run it by its path; or ask the owner to install it or to set the PATH of commands in the config. Built-ins such as cd, pipes and redirections need a shell: sh -c '...'."}
	NotExecutable    = fault.Kind{Code: supervisor.CodeNotExecutable, Hint: "With a new requestId, run it through its interpreter (such as sh or python3), or make it executable."}
	NoDirectory      = fault.Kind{Code: supervisor.CodeNoDirectory, Hint: "list_direct_files shows what there is. Run it in another cwd with a new requestId."}
	ExecFailed       = fault.Kind{Code: supervisor.CodeExecFailed, Hint: "Look at the file: a script needs a first line such as #!/bin/sh whose program exists. Long arguments belong in a file. Then run it with a new requestId."}
	SupervisorFailed = fault.Kind{Code: "supervisor_failed", Hint: "The command did not run. Run it again with a new requestId; if it fails again, the gateway's log tells the owner why."}
)

// Kinds lists the refusals of this package for docs/errors.md, the errors of
// receipts last. Malformed arguments are refused with [fault.InvalidArguments],
// a key that was used for something else with [fault.KeyConflict].
func Kinds() []fault.Kind {
	return append([]fault.Kind{
		CommandsDisabled, CommandNotRegistered, TooManyCommands, UnknownCommand, TooManyUnknown, CommandEnded, StdinClosed, CommandsClosed,
	}, receiptKinds()...)
}

func receiptKinds() []fault.Kind {
	return []fault.Kind{NotStarted, Interrupted, NotFound, NotExecutable, NoDirectory, ExecFailed, SupervisorFailed}
}

// keyConflict is a requestId or inputId that was used for something else.
func keyConflict(message string) *fault.Error {
	return fault.KeyConflict.New(message).WithHint("read_direct_command with this requestId shows what it was used for. If this is another command or another input, give it an id of its own.")
}
