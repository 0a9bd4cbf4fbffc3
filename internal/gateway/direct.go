package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"agentrelay/internal/audit"
	"agentrelay/internal/channel"
	"agentrelay/internal/direct"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/hosts/worker"
	"agentrelay/internal/migrate"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
	"agentrelay/internal/transfers"
)

// workspace is the Direct workspace as the tools use it.
type workspace struct {
	store     *store.Store
	local     *local.Host
	remotes   remotes
	forwards  []*channel.Forward // of remotes, in their order
	hosts     *hosts.Directory
	transfers *transfers.Service
	now       func() time.Time
	log       *slog.Logger
}

// buildDirect opens the workspace, also when its tools are switched off: what a
// crash has left is settled, and the owner's commands work.
func (g *Gateway) buildDirect(ctx context.Context) error {
	c := g.config
	former, err := migrate.FormerOwners(ctx, g.store)
	if err != nil {
		return err
	}
	host, err := local.Open(local.Options{Config: c, FormerOwners: former, Now: g.now, Log: g.log})
	if err != nil {
		return fmt.Errorf("opening the Direct workspace: %w", err)
	}
	far := g.buildRemotes(former)
	g.direct = &workspace{store: g.store, local: host, remotes: far, hosts: hosts.NewDirectory(host, local.Aliases(), far.directory()...), now: g.now, log: g.log}
	share := int64(c.Transfers.SpoolBytes)
	if !c.SharedOwner {
		share /= 2 // so that one client can't take all of it
	}
	g.direct.transfers, err = transfers.New(ctx, transfers.Options{
		Store: g.store, Hosts: g.direct, PublicBaseURL: c.PublicBaseURL, Refuse: refuse,
		Limits: transfers.Limits{
			FileBytes: int64(c.Transfers.MaxFileBytes), SpoolBytes: int64(c.Transfers.SpoolBytes), SpoolPerOwner: share,
			PerOwner: c.Transfers.PerOwner, TicketLife: c.Transfers.Link(),
		},
		Safedial: safedial.Options{AllowLoopback: c.Safedial.AllowLoopback},
		Now:      g.now, Rand: g.rand, Log: g.log,
	})
	return err
}

// close ends waits, downloads and transfers within ctx. Commands go on. It may
// be called twice.
func (w *workspace) close(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.local.Close()
	var err error
	if w.transfers != nil {
		err = w.transfers.Close(ctx)
	}
	return errors.Join(err, w.remotes.close())
}

// Host implements [transfers.Hosts].
func (w *workspace) Host(id string) (transfers.Host, error) {
	h, err := w.hosts.Resolve(&id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), hostBudget)
	defer cancel()
	at, err := h.At(ctx)
	if err != nil {
		return nil, err
	}
	return at.Placements(), nil
}

// hostBudget is how long a call waits for a host that is being connected to.
const hostBudget = 10 * time.Second

// site is a host that a call is for.
type site struct {
	hosts.Workspace
	id string // canonical
}

// at finds the host that a call is for.
func (w *workspace) at(ctx context.Context, hostID *string) (site, error) {
	h, err := w.hosts.Resolve(hostID)
	if err != nil {
		return site{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, hostBudget)
	defer cancel()
	there, err := h.At(ctx)
	return site{there, h.ID()}, err
}

// method is what a host does for a tool.
type method[In, Out any] func(site, context.Context, principal.Principal, In) (Out, error)

// alike is a method that does the same for every caller.
func alike[In, Out any](do func(hosts.Workspace, context.Context, In) (Out, error)) method[In, Out] {
	return func(at site, ctx context.Context, _ principal.Principal, in In) (Out, error) { return do(at, ctx, in) }
}

// owned is a method that does its own for each owner.
func owned[In, Out any](do func(hosts.Workspace, context.Context, principal.Principal, In) (Out, error)) method[In, Out] {
	return func(at site, ctx context.Context, who principal.Principal, in In) (Out, error) {
		return do(at, ctx, who, in)
	}
}

// hostOf is the hostId of arguments that passed a schema.
func hostOf(arguments json.RawMessage) (*string, error) {
	var at struct {
		HostID *string `json:"hostId"`
	}
	if err := json.Unmarshal(arguments, &at); err != nil {
		return nil, fmt.Errorf("arguments that passed the schema do not decode: %w", err)
	}
	return at.HostID, nil
}

// onHost is [tool.Calls] for a tool that works on the host that the caller names.
func onHost[In, Out any](w *workspace, do method[In, Out]) tool.Call {
	return func(ctx context.Context, who principal.Principal, arguments json.RawMessage) (any, error) {
		hostID, err := hostOf(arguments)
		if err != nil {
			return nil, err
		}
		at, err := w.at(ctx, hostID)
		if err != nil {
			return nil, err
		}
		return tool.Calls(func(ctx context.Context, who principal.Principal, in In) (Out, error) {
			return do(at, ctx, who, in)
		})(ctx, who, arguments)
	}
}

// deed is an entry of the audit log to be.
type deed struct {
	action, subject, projectID string
}

func (d deed) detail(ctx context.Context, hostID string, more ...any) []any {
	detail := []any{"host", hostID, "id", recordOf(ctx).id}
	if d.projectID != "" {
		detail = append(detail, "project", d.projectID)
	}
	return append(detail, more...)
}

// recordedRead is a method that shows what is in files. That it did is on record
// before it is answered.
func recordedRead[In, Out any](w *workspace, do method[In, Out], what func(In) deed) method[In, Out] {
	return func(at site, ctx context.Context, who principal.Principal, in In) (out Out, err error) {
		var none Out
		if out, err = do(at, ctx, who, in); err != nil {
			return none, err
		}
		d := what(in)
		err = store.Exec(ctx, w.store, func(tx *store.Tx) error {
			return audit.Record(tx, who, d.action, d.subject, audit.OK, d.detail(ctx, at.id)...)
		})
		if err != nil {
			return none, fmt.Errorf("recording what was read: %w", err)
		}
		return out, nil
	}
}

// recordedChange is a method that changes what no transaction of the store can
// hold. That it is about to is on record before it does, and how it ended before
// it is answered; what became of one whose host was lost, as soon as that is known.
func recordedChange[In, Out any](w *workspace, do method[In, Out], what func(In) deed, result func(Out) []any) method[In, Out] {
	return func(at site, ctx context.Context, who principal.Principal, in In) (out Out, err error) {
		var none Out
		d := what(in)
		intent, err := audit.Begin(ctx, w.store, who, d.action, d.subject, d.detail(ctx, at.id)...)
		if err != nil {
			return none, err
		}
		record := func(out any, err error) error {
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
			defer cancel()
			if err != nil {
				return errors.Join(err, intent.End(end, faultOf(err).Code))
			}
			var detail []any
			if known, ok := out.(Out); ok {
				detail = result(known)
			}
			return intent.End(end, audit.OK, detail...)
		}
		answered := make(chan struct{})
		defer close(answered)
		out, err = do(at, worker.WithSettled(ctx, func(out any, err error) {
			<-answered // what is known later is recorded later
			if failed := record(out, err); failed != nil && err == nil {
				w.log.Error("how a change ended could not be recorded", "host", at.id, "action", d.action, "error", failed)
			}
		}), who, in)
		if err := record(out, err); err != nil {
			return none, err
		}
		return out, nil
	}
}

// download serves a file to whoever has its link.
func (g *Gateway) download(w http.ResponseWriter, r *http.Request) {
	// A long download outlives the time that a request's body has to arrive.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	g.direct.transfers.Download(w, r)
}

// statusBudget is how long the status waits for the projects' directories, which
// can lie on a file system that does not answer.
const statusBudget = 2 * time.Second

// measureDirect counts the projects and warns of those that can't be used.
func (g *Gateway) measureDirect(ctx context.Context, s *Status) {
	listed := make(chan direct.ListDirectProjectsOut, 1)
	go func() {
		out, err := g.direct.local.ListDirectProjects(ctx, direct.ListDirectProjectsIn{})
		if err == nil {
			listed <- out
		}
	}()
	s.Projects.Total = len(g.config.Direct.Projects)
	select {
	case <-time.After(statusBudget):
		s.Warnings = append(s.Warnings, Warning{"projects_slow", "The directories of the Direct projects do not answer: one may lie on a disk or a mount that hangs."})
	case <-ctx.Done():
	case out := <-listed:
		for _, p := range out.Projects {
			if p.Unavailable != "" {
				s.Projects.Unavailable++
				s.Warnings = append(s.Warnings, Warning{"project_unavailable", fmt.Sprintf("The project %q can't be used: %s", p.ProjectID, p.Unavailable)})
			}
		}
	}
}
