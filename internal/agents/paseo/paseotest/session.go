package paseotest

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// backlog is how much may wait for one client before it is cut off.
const backlog = 64 << 20

// session is one websocket after its hello.
type session struct {
	p           *process
	ws          *websocket.Conn
	cancel      context.CancelFunc
	custom      bool // sees providers that are not built in
	selective   bool // gets agent streams only of those it set
	replacement bool

	mu      sync.Mutex
	out     [][]byte
	bytes   int
	wake    chan struct{}
	left    int             // frames until the connection breaks; negative is never
	watched map[string]bool // with selective
	listed  bool            // gets agent_update
}

type hello struct {
	Type            string          `json:"type"`
	ClientID        string          `json:"clientId"`
	ClientType      string          `json:"clientType"`
	ProtocolVersion int             `json:"protocolVersion"`
	AppVersion      string          `json:"appVersion"`
	Capabilities    map[string]bool `json:"capabilities"`
}

func (p *process) serveWebsocket(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host {
			writeJSON(w, http.StatusForbidden, members{"error": "Origin not allowed"})
			return
		}
	}
	var offered []string
	for _, one := range strings.Split(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
		if one = strings.TrimSpace(one); one != "" {
			offered = append(offered, one)
		}
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: offered, InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer ws.CloseNow()
	if !p.enter() {
		return
	}
	defer p.running.Done()
	ws.SetReadLimit(64 << 20)
	p.d.mu.Lock()
	p.d.opened++
	p.d.mu.Unlock()
	if reason := p.wrongPassword(offered); reason != "" {
		_ = ws.Close(4401, reason)
		return
	}
	h, code := p.readHello(ws)
	if code != 0 {
		_ = ws.Close(code, "Invalid hello")
		return
	}
	p.serve(ws, h)
}

func (p *process) wrongPassword(offered []string) string {
	if p.d.o.Password == "" {
		return ""
	}
	for _, one := range offered {
		if given, ok := strings.CutPrefix(one, "paseo.bearer."); ok {
			if given == p.d.o.Password {
				return ""
			}
			return "Incorrect password"
		}
	}
	return "Password required"
}

// readHello reads the first frame; code is not 0 if the client must go.
func (p *process) readHello(ws *websocket.Conn) (h hello, code websocket.StatusCode) {
	late := time.AfterFunc(p.d.o.HelloTimeout, func() { _ = ws.Close(4001, "Hello timeout") })
	_, data, err := ws.Read(p.ctx)
	if !late.Stop() || err != nil {
		return h, 4001
	}
	if json.Unmarshal(data, &h) != nil || h.Type != "hello" || h.ClientID == "" {
		return h, 4002
	}
	switch h.ClientType {
	case "mobile", "browser", "cli", "mcp":
	default:
		return h, 4002
	}
	if p.level >= middle && strings.HasPrefix(h.ClientID, "plugin:") {
		return h, 4002
	}
	if h.ProtocolVersion != 1 {
		return h, 4003
	}
	return h, 0
}

func (p *process) serve(ws *websocket.Conn, h hello) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	s := &session{
		p: p, ws: ws, cancel: cancel, wake: make(chan struct{}, 1), left: -1,
		custom:      showsCustom(h.AppVersion),
		selective:   p.level >= middle && h.Capabilities["selective_agent_timeline"],
		replacement: p.level >= middle && h.Capabilities["timeline_replacement_invalidation"],
	}
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return
	}
	p.sessions[s] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.sessions, s)
		p.mu.Unlock()
	}()
	info := members{
		"status": "server_info", "serverId": p.id, "hostname": "double", "version": p.d.o.Version,
		"capabilities": members{}, "features": p.level.features(),
	}
	if p.level >= newest {
		info["permissions"] = []string{"daemon.read", "workspace.read", "workspace.write", "workspace.manage", "automation.manage"}
		info["protocolVersion"] = 1
	}
	s.push("status", info)
	var inner sync.WaitGroup
	inner.Go(func() { s.write(ctx) })
	s.read(ctx, &inner)
	cancel()
	inner.Wait()
}

// read takes requests until the connection ends. A client that has pinged must
// then not be silent for longer than the lease.
func (s *session) read(ctx context.Context, inner *sync.WaitGroup) {
	leased := false
	for {
		bounded, cancel := ctx, context.CancelFunc(func() {})
		if leased {
			bounded, cancel = context.WithTimeout(ctx, s.p.d.o.Lease)
		}
		_, data, err := s.ws.Read(bounded)
		cancel()
		if err != nil {
			return
		}
		var envelope struct {
			Type    string          `json:"type"`
			Message json.RawMessage `json:"message"`
		}
		if json.Unmarshal(data, &envelope) != nil {
			_ = s.ws.Close(4002, "Invalid message")
			return
		}
		switch envelope.Type {
		case "ping":
			leased = true
			s.send([]byte(`{"type":"pong"}`))
		case "session":
			s.request(ctx, envelope.Message, inner)
		}
	}
}

// request answers one request; what may take long doesn't hold up the next.
func (s *session) request(ctx context.Context, raw json.RawMessage, inner *sync.WaitGroup) {
	var head struct {
		Type      string `json:"type"`
		RequestID string `json:"requestId"`
	}
	_ = json.Unmarshal(raw, &head)
	s.p.d.mu.Lock()
	s.p.d.asked[head.Type]++
	s.p.d.mu.Unlock()
	r := &request{ctx: ctx, s: s, p: s.p, kind: head.Type, id: head.RequestID, raw: raw}
	if head.Type == "wait_for_finish_request" || s.p.d.struck(head.Type) {
		inner.Go(r.serve)
		return
	}
	r.serve()
}

// push queues a session message.
func (s *session) push(kind string, payload members) { s.send(encode(kind, payload)) }

func encode(kind string, payload members) []byte {
	data, err := json.Marshal(members{"type": "session", "message": members{"type": kind, "payload": payload}})
	if err != nil {
		return nil
	}
	return data
}

func (s *session) send(data []byte) {
	s.mu.Lock()
	s.out = append(s.out, data)
	s.bytes += len(data)
	full := s.bytes > backlog
	s.mu.Unlock()
	if full {
		s.breakOff()
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) write(ctx context.Context) {
	for {
		s.mu.Lock()
		out := s.out
		s.out, s.bytes = nil, 0
		s.mu.Unlock()
		for _, data := range out {
			if s.spent() || s.ws.Write(ctx, websocket.MessageText, data) != nil {
				s.breakOff()
				return
			}
		}
		if len(out) > 0 {
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

// spent counts a frame and reports whether it is one too many.
func (s *session) spent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left < 0 {
		return false
	}
	s.left--
	return s.left < 0
}

func (s *session) cutAfter(frames int) {
	s.mu.Lock()
	s.left = frames
	s.mu.Unlock()
}

// breakOff ends the connection without a word.
func (s *session) breakOff() {
	s.cancel()
	go func() { _ = s.ws.CloseNow() }() // it may wait for a writer, and callers hold locks
}

// part ends the connection with a close frame that has no code.
func (s *session) part() {
	_ = s.ws.Close(websocket.StatusNoStatusRcvd, "")
	s.cancel()
}

// watches reports whether the session gets this agent's stream.
func (s *session) watches(agentID string) bool {
	if !s.selective {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watched[agentID]
}

// broadcast sends a message to the sessions that want it. Callers hold p.mu, so
// that everybody sees the same order.
func (p *process) broadcast(kind string, payload members, wants func(*session) bool) {
	if p.dead {
		return
	}
	var data []byte
	for s := range maps.Keys(p.sessions) {
		if !wants(s) {
			continue
		}
		if data == nil {
			data = encode(kind, payload)
		}
		s.send(data)
	}
}
