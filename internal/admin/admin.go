// Package admin is the owner's commands: looking at and changing clients, peers,
// agents, messages, commands, transfers and the owner's password, from the owner's own command line.
//
// It owns the table of these commands and the two ways to run one. While a
// gateway runs, a command goes to it over a unix socket in the state directory;
// else the command takes the state lock and runs in its own process. It promises
// that both ways do and answer the same, that only the user who owns the state
// directory gets in (the mode of the directory and of the socket, nothing else),
// and that every change is audited as the owner's in the transaction of its
// effect. It leaves the rules and the SQL to the packages whose data it is, and
// the words and flags to internal/cli.
package admin

import (
	"context"
	"io"
	"log/slog"

	"agentrelay/internal/backup"
	"agentrelay/internal/channel"
	"agentrelay/internal/devices"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

// Backend is what the commands act on: the parts of a running gateway, or the
// same parts opened under the state lock.
type Backend struct {
	// Store is the open state directory.
	Store *store.Store
	// Clients is the table of OAuth clients.
	Clients *oauth.Clients
	// Mailbox is the peers and messages.
	Mailbox *mailbox.Service
	// Agents is who may come over the channels of hosts.
	Agents *channel.Agents
	// Hosts is the machines that are reached.
	Hosts Hosts
	// Events is the subscriptions and deliveries.
	Events *events.Service
	// Transfers is the transfers of files.
	Transfers *transfers.Service
	// Devices is the paired devices. A stand-alone relay has them alone.
	Devices *devices.Service
	// Commands returns the commands of this machine; without a gateway it opens
	// them when it is first called.
	Commands func() (*commands.Service, error)
	// Backups is how the config wants them.
	Backups backup.Plan
	// OwnerFile is the config's ownerTokenFile.
	OwnerFile string
	// Rand makes passwords and the ids of errors.
	Rand io.Reader
	// Status describes the running gateway; nil when none runs. What it returns
	// becomes JSON.
	Status func(context.Context) (any, error)
	// Doctor is the running gateway as the owner's doctor asks it; nil when none runs.
	Doctor Doctor
	// Log gets one line for each command that failed; nil discards them.
	Log *slog.Logger
}

// Command is one of the owner's commands, by name.
type Command[In, Out any] struct {
	name string
	run  func(context.Context, *Backend, In) (Out, error)
}

// Call runs the command over a connection.
func (c Command[In, Out]) Call(ctx context.Context, conn *Conn, in In) (Out, error) {
	if conn.local != nil {
		return c.run(ctx, conn.local, in)
	}
	var out Out
	err := conn.post(ctx, c.name, in, &out)
	return out, err
}
