// Package gateway is the composition root: it builds the store, the authorization
// server, the domains and the MCP server from the config, joins them, and serves
// them over HTTP until it is told to stop.
//
// It owns the routes, the guards in front of them, the MCP endpoint, the
// definitions of the tools and the frame in which they run. It promises that a
// request is answered only to allowed hosts and origins, that a tool runs only
// for a verified client with the permission it needs and with arguments that
// obey its schema, that every refusal has a code, a next step and an id that
// stands in the log, that no argument, token or message text does, that a closed
// request ends its call, and that a stop lets the running calls finish. It leaves
// what the tools do to the domain packages, and the rules of OAuth to
// internal/oauth.
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"agentrelay/internal/backup"
	"agentrelay/internal/channel"
	"agentrelay/internal/config"
	"agentrelay/internal/devices"
	"agentrelay/internal/events"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/oauth"
	"agentrelay/internal/oauth/cimd"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
	"agentrelay/internal/wake"
)

// Options says what a [Gateway] is built from. Only Config is required.
type Options struct {
	// Config is a checked config; it is not changed. With port 0 a free port is
	// taken, and a publicBaseUrl on loopback gets it.
	Config *config.Config
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Rand makes tokens and ids; nil means crypto/rand. It is used by many
	// goroutines at once.
	Rand io.Reader
	// Log gets one line for each request and for each trouble; nil discards them.
	Log *slog.Logger
	// Version is shown to clients and in the status; "" means "dev".
	Version string
}

// Gateway is a built gateway. It is safe for concurrent use.
type Gateway struct {
	config  *config.Config
	now     func() time.Time
	rand    io.Reader
	log     *slog.Logger
	version string
	started time.Time

	program program
	tickets tickets

	listener  net.Listener
	store     *store.Store
	oauth     authorizationServer
	clients   *oauth.Clients
	mailbox   *mailbox.Service
	agents    *channel.Agents
	events    *events.Service
	direct    *workspace
	dispatch  *dispatching
	devices   *devices.Service
	outbound  *http.Client // of metadata documents
	callbacks *http.Client // of events
	stopping  context.Context
	stop      context.CancelFunc
	beats     beats
	backups   *backup.Schedule
	metrics   *meter
	drain     time.Duration // see drainTimeout
	moreTools []tool.Tool   // of tests
}

// authorizationServer is what the routes need of [oauth.Server].
type authorizationServer interface {
	authenticator
	Authorize(http.ResponseWriter, *http.Request)
	Token(http.ResponseWriter, *http.Request)
	RegisterClient(http.ResponseWriter, *http.Request)
	Revoke(http.ResponseWriter, *http.Request)
	ServerMetadata(http.ResponseWriter, *http.Request)
	ResourceMetadata(http.ResponseWriter, *http.Request)
	ConsentTrial(ctx context.Context, params url.Values) (redirect string, err error)
	EndTrials(ctx context.Context, clientID string) (int, error)
	Sweep(context.Context) error
	Close(context.Context) error
}

// New opens the state directory, takes the port and builds everything; it serves
// nothing yet. The errors of [store.Open] come wrapped, for errors.As. Whoever
// does not call [Gateway.Run] must call [Gateway.Close].
func New(ctx context.Context, o Options) (_ *Gateway, err error) {
	if o.Config == nil {
		return nil, errors.New("gateway: a config is needed")
	}
	c := *o.Config
	g := &Gateway{config: &c, now: o.Now, rand: o.Rand, log: o.Log, version: o.Version, beats: beats{firstBeat, nextBeat}, drain: drainTimeout}
	if g.now == nil {
		g.now = time.Now
	}
	if g.rand == nil {
		g.rand = rand.Reader
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.version == "" {
		g.version = "dev"
	}
	g.started = g.now()
	g.program, g.tickets.now, g.tickets.rand = thisProgram(), g.now, g.rand
	g.stopping, g.stop = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	g.metrics = g.newMeter()
	if err = g.openStore(ctx); err != nil {
		return nil, err
	}
	if err = g.listen(ctx); err != nil {
		return nil, err
	}
	if err = g.build(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

// listen takes the port, before anything is built that prints it.
func (g *Gateway) listen(ctx context.Context) error {
	c := g.config
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port)))
	if err != nil {
		return fmt.Errorf("port %d of 127.0.0.1 can't be used, choose another one with the key port of the config: %w", c.Port, err)
	}
	g.listener = l
	if c.Port != 0 {
		return nil
	}
	c.Port = l.Addr().(*net.TCPAddr).Port
	if u, err := url.Parse(c.PublicBaseURL); err == nil && u.Scheme == "http" && isLoopbackName(u.Hostname()) {
		c.PublicBaseURL = "http://" + net.JoinHostPort(u.Hostname(), strconv.Itoa(c.Port))
	}
	return nil
}

// build makes the parts and joins them.
func (g *Gateway) build(ctx context.Context) error {
	c := g.config
	g.buildDevices()
	if err := g.buildEvents(ctx); err != nil {
		return err
	}
	if err := g.buildDirect(ctx); err != nil {
		return err
	}
	g.buildAgents()
	if err := g.buildDispatch(ctx); err != nil {
		return err
	}
	g.mailbox = mailbox.New(mailbox.Options{
		Store: g.store, Agents: g.agents, LocalHostID: local.ID(), Limits: mailbox.Limits(c.Mailbox.Limits), Wake: wake.New(g.events, g.native()), Now: g.now, Log: g.log,
	})
	g.direct.forwards = g.buildForwards()
	password, err := owner.LoadPassword(c.OwnerTokenFile)
	if err != nil {
		return fmt.Errorf("reading the owner's password: %w", err)
	}
	g.outbound = safedial.New(safedial.Options{AllowLoopback: c.Safedial.AllowLoopback}).Client()
	server, err := oauth.New(oauth.Options{
		Store: g.store, PublicBaseURL: c.PublicBaseURL, SharedOwner: c.SharedOwner, Redirects: c.OAuth.Redirects,
		Password:   password,
		Documents:  cimd.New(cimd.Options{Client: g.outbound, Now: g.now, AllowLoopback: c.Safedial.AllowLoopback}),
		Ended:      []func(*store.Tx, string) error{g.events.EndClient, g.direct.transfers.EndClient},
		Permitted:  []func(*store.Tx, string, principal.Set) error{g.direct.transfers.NarrowClient},
		ClientAddr: clientAddress,
		RequestID:  func(r *http.Request) string { return recordOf(r.Context()).id },
		Now:        g.now, Rand: g.rand, Log: g.log,
	})
	if err != nil {
		return fmt.Errorf("building the authorization server: %w", err)
	}
	clients := server.Clients()
	g.oauth, g.clients = server, &clients
	return nil
}

// closeTimeout bounds the last callbacks and the last write of a gateway that
// closes.
const closeTimeout = 5 * time.Second

// Close ends everything that [New] began. Running calls are not waited for:
// [Gateway.Run] does that. It may be called twice.
func (g *Gateway) Close() error {
	g.stop()
	var errs []error
	if g.listener != nil {
		if err := g.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if g.mailbox != nil {
		g.mailbox.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs = append(errs, g.dispatch.close(ctx), g.direct.close(ctx))
	if g.devices != nil {
		errs = append(errs, g.devices.Close(ctx))
	}
	g.closeEvents(ctx)
	if g.oauth != nil {
		if err := g.oauth.Close(ctx); !errors.Is(err, store.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if g.store != nil {
		errs = append(errs, g.store.Close())
	}
	return errors.Join(errs...)
}
