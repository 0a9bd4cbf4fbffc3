// Package channel is how agents on a machine reach the gateway: HTTP over a unix
// socket, one for each host, for those who have a capability.
//
// It owns the table of agents (who dispatched or adopted which, and the hashes of
// their capabilities), the issue and end of capabilities, the socket of the local
// host, its forwarding to SSH hosts, and the routes. It promises that an agent
// acts only as itself: with its owner's mailbox, in the name of peers that are
// bound to it, on mail of their present generation; that a capability of another
// host or of a revoked agent opens nothing; that it takes no live socket away from
// another process; and that a request leaves one line in the log, without text or
// keys.
//
// It leaves the mailbox and its refusals to package mailbox, whose tools it serves
// as they are, messages to the chat that dispatched an agent to [Dispatches], and
// connections to hosts to package hosts/ssh.
package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"agentrelay/internal/fault"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

const (
	// MaxBody is what a request may have.
	MaxBody = 64 << 10
	// maxDrained is what is read of a longer one, so that its sender reads why it
	// was refused.
	maxDrained = 1 << 20

	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	writeTimeout  = 10 * time.Second
	idleTimeout   = 30 * time.Second
	// stopTimeout is how long running calls may take to finish after a stop.
	stopTimeout = 5 * time.Second
	maxHeader   = 8 << 10
	// maxConns bounds the connections of one host.
	maxConns = 512
)

// Dispatches takes messages to the chat that dispatched an agent.
type Dispatches interface {
	// Message stores a message and answers what becomes JSON. The messageId is the
	// caller key.
	Message(ctx context.Context, from Caller, in MessageIn) (any, error)
}

// Caller is an agent that has proved who it is.
type Caller struct {
	HostID, AgentID, Owner string
}

// Principal is the agent as the mailbox sees it: with no permission but mailbox.
func (c Caller) Principal() principal.Principal {
	return principal.Principal{
		Owner: c.Owner, ClientID: "agent:" + c.HostID + "/" + c.AgentID, ClientName: c.AgentID,
		Permissions: principal.Set{principal.Mailbox},
	}
}

// ServerOptions says what a [Server] serves. Store, HostID and Mailbox are
// required.
type ServerOptions struct {
	Store *store.Store
	// HostID is the canonical id of the host whose agents come here.
	HostID string
	// Mailbox does the tools of peers.
	Mailbox *mailbox.Service
	// Tools are the definitions of the mailbox's tools, whose schemas hold here
	// too. What they call is not used: an agent gets mail of its present generation
	// alone. A tool that is missing is not served.
	Tools []tool.Tool
	// Dispatches may be nil: then messages to chats are refused.
	Dispatches Dispatches
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Rand makes the ids of requests; nil means crypto/rand.
	Rand io.Reader
	// Log gets one line for each request; nil discards them.
	Log *slog.Logger
}

// Server answers the agents of one host. It is safe for concurrent use.
type Server struct {
	o        ServerOptions
	tools    map[string]tool.Tool
	instance string // tells this process from another one that serves the same host
	limits   limits
}

// NewServer returns a server; it serves nothing yet.
func NewServer(o ServerOptions) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, tools: map[string]tool.Tool{}, limits: limits{now: o.Now}}
	calls := native(o.Mailbox)
	for _, t := range o.Tools {
		if call, served := calls[t.Name]; served {
			t.Call = call
			s.tools[t.Name] = t
		}
	}
	s.tools[messageRoute] = s.messageTool()
	s.instance = newID(o.Rand)
	return s
}

// newID is an id for a log line.
func newID(random io.Reader) string {
	raw := make([]byte, 5)
	if _, err := io.ReadFull(random, raw); err != nil {
		return "noid"
	}
	return fmt.Sprintf("%x", raw)
}

// Serve answers on l until ctx ends or l fails, then lets running calls finish
// for at most 5 seconds. It closes l. Several listeners may be served at once.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if h.Shutdown(grace) != nil {
			h.Close()
		}
	})
	err := h.Serve(netutil.LimitListener(l, maxConns))
	if stop() {
		h.Close() // what still runs has lost its connection
		return fmt.Errorf("serving agents: %w", err)
	}
	<-stopped
	return nil
}

// Handler answers POST /v1/<tool>, POST /v1/message, GET /v1/self and, for
// anybody, GET /v1/health.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for name, t := range s.tools {
		mux.HandleFunc("POST /v1/"+name, s.observed(name, func(w http.ResponseWriter, r *http.Request, rec *record) (any, error) {
			return s.call(w, r, rec, t)
		}))
	}
	mux.HandleFunc("GET /v1/self", s.observed("self", s.self))
	mux.HandleFunc("GET /v1/health", s.observed("health", func(http.ResponseWriter, *http.Request, *record) (any, error) {
		return health{HostID: s.o.HostID, Instance: s.instance}, nil
	}))
	mux.HandleFunc("/", s.observed("unknown", func(http.ResponseWriter, *http.Request, *record) (any, error) {
		return nil, unknownRoute.New("The channel has no such route.")
	}))
	return mux
}

// health is what anybody who reaches the socket may know.
type health struct {
	HostID   string `json:"hostId"`
	Instance string `json:"instance"`
}

// self is what an agent is told about itself.
type self struct {
	HostID  string `json:"hostId"`
	AgentID string `json:"agentId"`
	// PeerID is the peer in whose name the agent acts when it names none: the
	// active one, else the one that was stopped last. "" before it registers.
	PeerID string              `json:"peerId,omitempty"`
	Peers  []mailbox.AgentPeer `json:"peers"`
}

func (s *Server) self(w http.ResponseWriter, r *http.Request, rec *record) (any, error) {
	who, done, err := s.admit(r, rec)
	if err != nil {
		return nil, err
	}
	defer done()
	me := self{HostID: who.HostID, AgentID: who.AgentID}
	err = store.Read(r.Context(), s.o.Store, func(q *store.Reader) error {
		me.Peers, err = mailbox.Lookup{}.OfAgent(q, who.Owner, who.HostID, who.AgentID)
		return err
	})
	if len(me.Peers) > 0 {
		me.PeerID = me.Peers[0].PeerID
	}
	return me, err
}

// call does one tool for an agent.
func (s *Server) call(w http.ResponseWriter, r *http.Request, rec *record, t tool.Tool) (any, error) {
	who, done, err := s.admit(r, rec)
	if err != nil {
		return nil, err
	}
	defer done()
	raw, err := readBody(w, r)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	out, err := s.do(r.Context(), who, &t, raw)
	if err == nil && t.ReadOnly && time.Since(began) > time.Second {
		_, err = s.authenticate(r) // it waited, and may have been revoked meanwhile
	}
	if err != nil {
		if e := faultOf(err); !slices.Contains([]string{fault.Internal.Code, fault.Unavailable.Code}, e.Code) {
			if err := s.recordRefusal(r.Context(), who, t.Name, e, rec.id); err != nil {
				return nil, err
			}
		}
		return nil, err
	}
	return out, nil
}

func (s *Server) do(ctx context.Context, who Caller, t *tool.Tool, raw json.RawMessage) (any, error) {
	p := who.Principal()
	if !t.Allows(p.Permissions) {
		return nil, fault.NotPermitted.Newf("Agents may not call %s.", t.Name)
	}
	arguments, err := t.Check(routes[t.Name].complete(who, raw))
	if err != nil {
		return nil, err
	}
	if err := restrict(who, t.Name, arguments); err != nil {
		return nil, err
	}
	return t.Call(withCaller(ctx, who), p, arguments)
}

// readBody reads a request's body.
func readBody(w http.ResponseWriter, r *http.Request) (json.RawMessage, error) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // only a recorder can't
	defer rc.SetReadDeadline(time.Time{})
	raw, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	if err == nil && len(raw) > MaxBody {
		_, _ = io.CopyN(io.Discard, r.Body, maxDrained) // it is refused in any case
		return nil, tooLarge.Newf("The request has more than %d bytes.", MaxBody)
	}
	if err != nil {
		return nil, unreadable.New("The request did not arrive whole.").Because(err)
	}
	return raw, nil
}

// faultOf is the refusal of any error. Trouble of our store, and a call that ended
// before it was done, decided nothing: they can be repeated.
func faultOf(err error) *fault.Error {
	var e *fault.Error
	switch {
	case errors.As(err, &e):
		return e
	case store.IsTrouble(err):
		return fault.Unavailable.New("The gateway's store did not answer.").Because(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.Unavailable.New("The call ended before it was finished.").Because(err)
	}
	return fault.From(err)
}

// status is the HTTP status of a refusal of the channel; those of tools
// have 422.
func status(e *fault.Error) int {
	for _, c := range []struct {
		kind   fault.Kind
		status int
	}{
		{noCapability, http.StatusUnauthorized}, {badCapability, http.StatusForbidden}, {mailbox.NotOwnPeer, http.StatusForbidden},
		{unknownRoute, http.StatusNotFound}, {tooLarge, http.StatusRequestEntityTooLarge}, {unreadable, http.StatusRequestTimeout},
		{tooFast, http.StatusTooManyRequests}, {fault.Internal, http.StatusInternalServerError}, {fault.Unavailable, http.StatusServiceUnavailable},
	} {
		if e.Code == c.kind.Code {
			return c.status
		}
	}
	return http.StatusUnprocessableEntity
}

// bearer is the credential of a request, "" for none.
func bearer(r *http.Request) string {
	scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return key
}
