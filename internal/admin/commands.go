package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/transfers"
)

// None is a command's arguments or result when there are none.
type None struct{}

// ByClient names a client.
type ByClient struct {
	ClientID string `json:"clientId"`
}

// PermissionsIn changes what a client may do.
type PermissionsIn struct {
	ClientID string        `json:"clientId"`
	Allow    principal.Set `json:"allow"`
	Deny     principal.Set `json:"deny"`
}

// PermissionsOut is what a client may do from its next request on.
type PermissionsOut struct {
	ClientID    string        `json:"clientId"`
	Permissions principal.Set `json:"permissions"`
}

// RevokeOut is what a revocation ended.
type RevokeOut struct {
	ClientID string `json:"clientId"`
	Grants   int64  `json:"grants"`
}

// PeersIn selects peers.
type PeersIn struct {
	Owner          string  `json:"owner"` // "" is every owner
	IncludeStopped bool    `json:"includeStopped"`
	Limit          *int    `json:"limit,omitempty"` // 1..200, nil is 50
	Cursor         *string `json:"cursor,omitempty"`
}

// StopPeerIn names a peer. Owner may be empty when only one owner has a peer of
// this id.
type StopPeerIn struct {
	Owner  string `json:"owner"`
	PeerID string `json:"peerId"`
}

// MessagesIn selects messages; see [mailbox.AllMessagesIn].
type MessagesIn struct {
	Owner  string        `json:"owner"`
	PeerID string        `json:"peerId"`
	State  mailbox.State `json:"state"`
	Limit  *int          `json:"limit,omitempty"`
	Cursor *string       `json:"cursor,omitempty"`
}

// PurgeIn says which messages lose their text; see [mailbox.PurgeIn].
type PurgeIn struct {
	Owner              string    `json:"owner"`
	Before             time.Time `json:"before"`
	IncludeUnprocessed bool      `json:"includeUnprocessed"`
	DryRun             bool      `json:"dryRun"`
}

// SubscriptionsIn selects subscriptions; see [events.SubscriptionsIn].
type SubscriptionsIn struct {
	Owner        string  `json:"owner"`
	IncludeEnded bool    `json:"includeEnded"`
	Limit        *int    `json:"limit,omitempty"`
	Cursor       *string `json:"cursor,omitempty"`
}

// DeliveriesIn selects deliveries; see [events.DeliveriesIn].
type DeliveriesIn struct {
	Owner  string  `json:"owner"`
	Dead   bool    `json:"dead"`
	Limit  *int    `json:"limit,omitempty"`
	Cursor *string `json:"cursor,omitempty"`
}

// ResendIn names an event.
type ResendIn struct {
	EventID string `json:"eventId"`
}

// ForgetOut counts the subscriptions that were ended.
type ForgetOut struct {
	Subscriptions int `json:"subscriptions"`
}

// CommandsIn selects commands; see [commands.AllCommandsIn].
type CommandsIn struct {
	Owner     string       `json:"owner"`
	ProjectID string       `json:"projectId"`
	State     record.State `json:"state"`
	Limit     *int         `json:"limit,omitempty"`
	Cursor    *string      `json:"cursor,omitempty"`
}

// ShowCommandIn names a command, and the page of its output that follows a
// cursor.
type ShowCommandIn struct {
	CommandID string `json:"commandId"`
	Cursor    *int64 `json:"cursor,omitempty"`
}

// ByCommand names a command.
type ByCommand struct {
	CommandID string `json:"commandId"`
}

// RevokedOut counts the transfers that were ended.
type RevokedOut struct {
	Transfers int `json:"transfers"`
}

// AuditIn asks for the newest entries of the audit log, 1 to 1000.
type AuditIn struct {
	Limit int `json:"limit"`
}

// PasswordOut is a new owner password, shown this once.
type PasswordOut struct {
	OwnerPassword  string `json:"ownerPassword"`
	OwnerTokenFile string `json:"ownerTokenFile"`
}

// The commands.
var (
	// Status describes the running gateway. The result is the gateway's own.
	Status = Command[None, json.RawMessage]{"status", func(ctx context.Context, b *Backend, _ None) (json.RawMessage, error) {
		if b.Status == nil {
			return nil, errors.New("no gateway runs on this state directory")
		}
		s, err := b.Status(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}}

	// Audit reads the newest entries of the audit log, newest first.
	Audit = Command[AuditIn, []audit.Entry]{"audit", func(ctx context.Context, b *Backend, in AuditIn) (entries []audit.Entry, err error) {
		if in.Limit < 1 || in.Limit > 1000 {
			return nil, fault.InvalidArguments.New("The number of audit entries must be from 1 to 1000.")
		}
		err = store.Read(ctx, b.Store, func(r *store.Reader) error {
			entries, err = audit.Last(r, in.Limit)
			return err
		})
		return entries, err
	}}

	// ListClients lists every client, the one last used first.
	ListClients = Command[None, []oauth.ClientInfo]{"clients.list", func(ctx context.Context, b *Backend, _ None) ([]oauth.ClientInfo, error) {
		return b.Clients.List(ctx)
	}}

	// AddClient registers a client for the owner.
	AddClient = Command[oauth.NewClient, oauth.AddedClient]{"clients.add", func(ctx context.Context, b *Backend, in oauth.NewClient) (oauth.AddedClient, error) {
		return b.Clients.Add(ctx, in)
	}}

	// RevokeClient ends a client's tokens and what it made.
	RevokeClient = Command[ByClient, RevokeOut]{"clients.revoke", func(ctx context.Context, b *Backend, in ByClient) (RevokeOut, error) {
		n, err := b.Clients.Revoke(ctx, in.ClientID)
		return RevokeOut{in.ClientID, n}, err
	}}

	// SetPermissions changes what a client may do.
	SetPermissions = Command[PermissionsIn, PermissionsOut]{"clients.permissions", func(ctx context.Context, b *Backend, in PermissionsIn) (PermissionsOut, error) {
		set, err := b.Clients.SetPermissions(ctx, in.ClientID, in.Allow, in.Deny)
		return PermissionsOut{in.ClientID, set}, err
	}}

	// ListPeers lists a page of the peers of one owner or of all.
	ListPeers = Command[PeersIn, mailbox.AllPeersOut]{"peers.list", func(ctx context.Context, b *Backend, in PeersIn) (mailbox.AllPeersOut, error) {
		return b.Mailbox.AllPeers(ctx, mailbox.AllPeersIn(in))
	}}

	// StopPeer stops a peer, as stop_peer does.
	StopPeer = Command[StopPeerIn, mailbox.StopPeerOut]{"peers.stop", stopPeer}

	// ListMessages lists a page of messages without their text, newest first.
	ListMessages = Command[MessagesIn, mailbox.AllMessagesOut]{"messages.list", func(ctx context.Context, b *Backend, in MessagesIn) (mailbox.AllMessagesOut, error) {
		return b.Mailbox.AllMessages(ctx, mailbox.AllMessagesIn(in))
	}}

	// PurgeMessages removes the text of old messages. When it fails midway the
	// result counts what is gone all the same.
	PurgeMessages = Command[PurgeIn, mailbox.PurgeOut]{"messages.purge", func(ctx context.Context, b *Backend, in PurgeIn) (mailbox.PurgeOut, error) {
		out, err := b.Mailbox.Purge(ctx, mailbox.PurgeIn(in))
		if err != nil && out.Purged > 0 && !in.DryRun {
			err = fmt.Errorf("%d messages were purged, then it failed; run it again for the rest: %w", out.Purged, err)
		}
		return out, err
	}}

	// ListSubscriptions lists a page of subscriptions, and the wake-up targets.
	ListSubscriptions = Command[SubscriptionsIn, events.SubscriptionsOut]{"events.subscriptions", func(ctx context.Context, b *Backend, in SubscriptionsIn) (events.SubscriptionsOut, error) {
		return b.Events.Subscriptions(ctx, events.SubscriptionsIn{Owner: in.Owner, IncludeEnded: in.IncludeEnded, Page: events.Page{Limit: in.Limit, Cursor: in.Cursor}})
	}}

	// ListDeliveries lists a page of deliveries, newest first.
	ListDeliveries = Command[DeliveriesIn, events.DeliveriesOut]{"events.list", func(ctx context.Context, b *Backend, in DeliveriesIn) (events.DeliveriesOut, error) {
		return b.Events.Deliveries(ctx, events.DeliveriesIn{Owner: in.Owner, Dead: in.Dead, Page: events.Page{Limit: in.Limit, Cursor: in.Cursor}})
	}}

	// ResendEvent sends an event again that nothing tries any more.
	ResendEvent = Command[ResendIn, events.ResendOut]{"events.resend", func(ctx context.Context, b *Backend, in ResendIn) (events.ResendOut, error) {
		return b.Events.Resend(ctx, in.EventID)
	}}

	// ForgetSecrets ends every subscription, because the key of their secrets is
	// lost.
	ForgetSecrets = Command[None, ForgetOut]{"events.forget-secrets", func(ctx context.Context, b *Backend, _ None) (ForgetOut, error) {
		n, err := events.ForgetSecrets(ctx, b.Store)
		return ForgetOut{n}, err
	}}

	// ListCommands lists a page of the commands of this machine, newest first.
	ListCommands = Command[CommandsIn, commands.AllCommandsOut]{"commands.list", func(ctx context.Context, b *Backend, in CommandsIn) (commands.AllCommandsOut, error) {
		c, err := b.Commands()
		if err != nil {
			return commands.AllCommandsOut{}, err
		}
		return c.AllCommands(ctx, commands.AllCommandsIn(in))
	}}

	// ShowCommand shows a command with a page of its output.
	ShowCommand = Command[ShowCommandIn, commands.ShowCommandOut]{"commands.show", func(ctx context.Context, b *Backend, in ShowCommandIn) (commands.ShowCommandOut, error) {
		c, err := b.Commands()
		if err != nil {
			return commands.ShowCommandOut{}, err
		}
		return c.ShowCommand(ctx, commands.ShowCommandIn{CommandID: in.CommandID, Cursor: in.Cursor})
	}}

	// CancelCommand ends a command, as cancel_direct_command does.
	CancelCommand = Command[ByCommand, commands.CancelDirectCommandOut]{"commands.cancel", cancelCommand}

	// ListTransfers lists a page of transfers, newest first.
	ListTransfers = Command[transfers.AllTransfersIn, transfers.AllTransfersOut]{"transfers.list", func(ctx context.Context, b *Backend, in transfers.AllTransfersIn) (transfers.AllTransfersOut, error) {
		return b.Transfers.AllTransfers(ctx, in)
	}}

	// RevokeTransfers ends transfers and their links.
	RevokeTransfers = Command[transfers.RevokeIn, RevokedOut]{"transfers.revoke", func(ctx context.Context, b *Backend, in transfers.RevokeIn) (RevokedOut, error) {
		n, err := b.Transfers.Revoke(ctx, principal.Owner(in.Owner), in)
		return RevokedOut{n}, err
	}}

	// ResetPassword gives the owner a new password and ends every remembered
	// session of the consent page.
	ResetPassword = Command[None, PasswordOut]{"owner.reset-password", resetPassword}
)

// table is what the socket serves.
var table = []interface {
	label() string
	serve(context.Context, *Backend, io.Reader) (any, error)
}{
	Status, Audit, ListClients, AddClient, RevokeClient, SetPermissions, ListPeers, StopPeer, ListMessages, PurgeMessages,
	ListSubscriptions, ListDeliveries, ResendEvent, ForgetSecrets, ListAgents, AdoptAgent, RevokeAgent, ListHosts, CheckHost, RetryHost, AcceptIdentity,
	ListCommands, ShowCommand, CancelCommand, ListTransfers, RevokeTransfers, ResetPassword, MakeBackup,
	ListDevices, PairDevice, RevokeDevice, ListDeviceCalls,
	BeginDoctor, ConsentDoctor, EndDoctor, InspectDoctor, FindPrograms,
}

func (c Command[In, Out]) label() string { return c.name }

func (c Command[In, Out]) serve(ctx context.Context, b *Backend, body io.Reader) (any, error) {
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, fault.InvalidArguments.New("The arguments are too long or broke off.").Because(err)
	}
	var in In
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, fault.InvalidArguments.New("The arguments are not those of this command.").
			WithHint("The gateway is another version than this command line: restart it.").Because(err)
	}
	return c.run(ctx, b, in)
}

// stopPeer finds the one owner of the peer when none is named.
func stopPeer(ctx context.Context, b *Backend, in StopPeerIn) (mailbox.StopPeerOut, error) {
	if in.Owner == "" {
		owners, err := ownersOf(ctx, b.Mailbox, in.PeerID)
		if err != nil {
			return mailbox.StopPeerOut{}, err
		}
		switch len(owners) {
		case 0:
			return mailbox.StopPeerOut{}, mailbox.UnknownPeer.New("No peer has this id.").WithHint("gateway peers list --all shows every peer.")
		case 1:
			in.Owner = owners[0]
		default:
			return mailbox.StopPeerOut{}, fault.InvalidArguments.Newf("%d owners have a peer of this id.", len(owners)).
				WithHint("Name one with --owner: gateway peers list --all shows them.")
		}
	}
	return b.Mailbox.StopPeer(ctx, principal.Owner(in.Owner), mailbox.StopPeerIn{PeerID: in.PeerID})
}

func ownersOf(ctx context.Context, m *mailbox.Service, peerID string) ([]string, error) {
	limit := 200
	in := mailbox.AllPeersIn{IncludeStopped: true, Limit: &limit}
	var owners []string
	for {
		page, err := m.AllPeers(ctx, in)
		if err != nil {
			return nil, err
		}
		for _, p := range page.Peers {
			if p.PeerID == peerID {
				owners = append(owners, p.Owner)
			}
		}
		if page.NextCursor == "" {
			return owners, nil
		}
		in.Cursor = &page.NextCursor
	}
}

// cancelCommand records what it is about to do: a process knows no transaction.
func cancelCommand(ctx context.Context, b *Backend, in ByCommand) (commands.CancelDirectCommandOut, error) {
	var none commands.CancelDirectCommandOut
	c, err := b.Commands()
	if err != nil {
		return none, err
	}
	shown, err := c.ShowCommand(ctx, commands.ShowCommandIn{CommandID: in.CommandID})
	if err != nil {
		return none, err
	}
	intent, err := audit.Begin(ctx, b.Store, principal.Owner(shown.Owner), "command.cancel", in.CommandID, "host", shown.HostID)
	if err != nil {
		return none, err
	}
	out, err := c.StopCommand(ctx, in.CommandID)
	outcome := audit.OK
	if err != nil {
		outcome = fault.From(err).Code
	}
	if err := errors.Join(err, intent.End(ctx, outcome, "requested", out.CancelRequested)); err != nil {
		return none, err
	}
	return out, nil
}

// resetPassword writes the file first: should the transaction fail, the old
// password is gone all the same, and the command is run again.
func resetPassword(ctx context.Context, b *Backend, _ None) (PasswordOut, error) {
	password, err := owner.GeneratePassword(b.Rand)
	if err != nil {
		return PasswordOut{}, err
	}
	if err := owner.WritePassword(b.OwnerFile, password, b.Rand, true); err != nil {
		return PasswordOut{}, err
	}
	err = store.Exec(ctx, b.Store, func(tx *store.Tx) error {
		if err := owner.EndSessions(tx); err != nil {
			return err
		}
		return audit.Record(tx, principal.Owner(""), "owner.reset-password", "", audit.OK)
	})
	if err != nil {
		return PasswordOut{}, fmt.Errorf("the old password no longer holds, but remembered sessions do; run the command again: %w", err)
	}
	return PasswordOut{OwnerPassword: password, OwnerTokenFile: b.OwnerFile}, nil
}
