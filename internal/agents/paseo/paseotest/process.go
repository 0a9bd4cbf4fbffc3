package paseotest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// process is the memory of one run of the daemon: what a restart forgets.
type process struct {
	d       *Daemon
	level   level
	id      string
	pid     int
	since   time.Time
	listen  string
	server  *http.Server
	running sync.WaitGroup
	ctx     context.Context // ends with the process
	cancel  context.CancelFunc

	mu          sync.Mutex
	dead        bool
	agents      map[string]*agent
	workspaces  map[string]workspace
	sessions    map[*session]struct{}
	mcpSessions map[string]bool
}

// newProcess reads the records. None of the agents is loaded.
func (d *Daemon) newProcess() (*process, error) {
	id, err := d.store.serverID()
	if err != nil {
		return nil, err
	}
	records, err := load[record](d.store, "agents")
	if err != nil {
		return nil, err
	}
	places, err := load[workspace](d.store, "workspaces")
	if err != nil {
		return nil, err
	}
	p := &process{
		d: d, level: d.level, id: id, pid: d.pid, since: d.since,
		agents: map[string]*agent{}, workspaces: map[string]workspace{},
		sessions: map[*session]struct{}{}, mcpSessions: map[string]bool{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, r := range records {
		p.agents[r.ID] = newAgent(r)
	}
	for _, w := range places {
		p.workspaces[w.ID] = w
	}
	return p, nil
}

// halt ends the process; it doesn't wait for its goroutines.
func (p *process) halt(graceful bool) {
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return
	}
	if graceful {
		for _, a := range p.agents {
			p.closeDown(a)
		}
	}
	p.dead = true
	sessions := make([]*session, 0, len(p.sessions))
	for s := range p.sessions {
		sessions = append(sessions, s)
	}
	p.mu.Unlock()
	for _, s := range sessions {
		if graceful {
			s.part()
		} else {
			s.breakOff()
		}
	}
	p.cancel()
	_ = p.server.Close()
}

// enter counts a connection as running, unless the process has ended.
func (p *process) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.running.Add(1)
	}
	return !p.dead
}

// closeDown records a loaded agent as closed; its permissions are gone.
func (p *process) closeDown(a *agent) {
	if !a.loaded {
		return
	}
	if a.turn != nil {
		a.rec.Attention, a.rec.AttentionAt, a.rec.LastError = "", "", ""
	}
	a.rec.Status = "closed"
	p.save(a)
}

// save writes an agent's record; a dead process writes nothing.
func (p *process) save(a *agent) {
	if !p.dead {
		p.d.store.put("agents", a.rec.ID, a.rec)
	}
}

func (p *process) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", p.serveWebsocket)
	mux.HandleFunc("/mcp/agents", p.serveMCP)
	mux.HandleFunc("GET /api/health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, members{"status": "ok", "timestamp": stamp()})
	})
	mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, members{"status": "server_info", "serverId": p.id, "hostname": "double", "version": p.d.o.Version, "listen": p.listen})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hostAllowed(r.Host) {
			writeJSON(w, http.StatusForbidden, members{"error": "Invalid Host header"})
			return
		}
		if p.d.o.Password != "" && r.URL.Path != "/ws" && r.URL.Path != "/api/health" && r.Header.Get("Authorization") != "Bearer "+p.d.o.Password {
			writeJSON(w, http.StatusUnauthorized, members{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// hostAllowed passes localhost and any address.
func hostAllowed(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// members is a JSON object.
type members map[string]any

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func stamp() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

// orNull is nil for "", as the daemon writes what isn't there.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
