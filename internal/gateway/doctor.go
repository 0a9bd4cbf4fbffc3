package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/direct"
)

const (
	// ticketLife bounds how long a ticket of the owner's doctor works, and
	// maxTickets how many do at once.
	ticketLife = 10 * time.Minute
	maxTickets = 8
	// maxHold is the longest that an answer to a ticket is held open, and leastTick
	// how often at most it says something.
	maxHold   = 5 * time.Minute
	leastTick = 100 * time.Millisecond
)

// tickets are what the owner's doctor looks at its own public address with. It
// posts to the MCP endpoint with doctor=TICKET in the query and is told what of
// its request arrived. Whoever has no ticket, which only the owner's socket gives,
// meets the endpoint as everybody does.
type tickets struct {
	now  func() time.Time
	rand io.Reader

	mu   sync.Mutex
	open []ticket // oldest first
}

type ticket struct {
	hash    [sha256.Size]byte
	proof   string
	expires time.Time
}

func (t *tickets) begin() (admin.DoctorTicket, error) {
	var raw [64]byte
	if _, err := io.ReadFull(t.rand, raw[:]); err != nil {
		return admin.DoctorTicket{}, fmt.Errorf("making a ticket: %w", err)
	}
	out := admin.DoctorTicket{Ticket: hex.EncodeToString(raw[:32]), Proof: hex.EncodeToString(raw[32:]), ExpiresAt: t.now().Add(ticketLife).UTC()}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = append(t.open, ticket{sha256.Sum256([]byte(out.Ticket)), out.Proof, out.ExpiresAt})
	t.open = t.open[max(0, len(t.open)-maxTickets):]
	return out, nil
}

// find returns the proof of a ticket.
func (t *tickets) find(secret string) (proof string, ok bool) {
	hash, now := sha256.Sum256([]byte(secret)), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.open {
		if k.hash == hash && now.Before(k.expires) {
			return k.proof, true
		}
	}
	return "", false
}

func (t *tickets) end(secret string) {
	hash := sha256.Sum256([]byte(secret))
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.open[:0]
	for _, k := range t.open {
		if k.hash != hash {
			kept = append(kept, k)
		}
	}
	t.open = kept
}

// DoctorEcho is what an answer to a ticket says of the request that arrived.
type DoctorEcho struct {
	Proof  string `json:"proof"`
	Method string `json:"method"`
	Host   string `json:"host"`
	// Headers are those of [DoctorHeaders] that arrived.
	Headers map[string]string `json:"headers"`
	// Authorization is the SHA-256 of that header, which may hold a secret of the
	// proxy's.
	Authorization string `json:"authorization"`
	// Address is the client's, by which limits count, and Named whether a proxy
	// has said it.
	Address string `json:"address"`
	Named   bool   `json:"named"`
	Bytes   int    `json:"bytes"` // of the body
	SHA256  string `json:"sha256"`
}

// DoctorHeaders are the headers that have to come through a proxy unchanged.
func DoctorHeaders() []string {
	return []string{"Accept", "Content-Type", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id", "Last-Event-Id"}
}

// answering answers requests that have a ticket, and leaves all others to next.
func (t *tickets) answering(b beats, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, _ := url.ParseQuery(r.URL.RawQuery) // what can't be read is no ticket
		proof, ok := t.find(q.Get("doctor"))
		if !ok || r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		r.Body = recordOf(r.Context()).body
		body, ok := readBody(w, r)
		if !ok {
			return
		}
		if hold := milliseconds(q.Get("hold"), maxHold); hold > 0 {
			every := b.next
			if asked := milliseconds(q.Get("tick"), b.next); asked > 0 {
				every = max(asked, leastTick)
			}
			holdOpen(w, r, hold, every)
			return
		}
		writeJSON(w, http.StatusOK, echo(r, proof, body))
	})
}

// milliseconds reads a duration of a query; 0 is none.
func milliseconds(s string, most time.Duration) time.Duration {
	ms, err := strconv.ParseInt(s, 10, 64)
	if err != nil || ms < 0 {
		return 0
	}
	return min(time.Duration(min(ms, int64(most/time.Millisecond)))*time.Millisecond, most)
}

func echo(r *http.Request, proof string, body []byte) DoctorEcho {
	sum := sha256.Sum256(body)
	out := DoctorEcho{
		Proof: proof, Method: r.Method, Host: r.Host, Headers: map[string]string{}, Address: clientAddress(r),
		Named: r.Header.Get("X-Forwarded-For") != "", Bytes: len(body), SHA256: hex.EncodeToString(sum[:]),
	}
	for _, name := range DoctorHeaders() {
		if v := r.Header.Get(name); v != "" {
			out.Headers[name] = v
		}
	}
	auth := sha256.Sum256([]byte(r.Header.Get("Authorization")))
	out.Authorization = hex.EncodeToString(auth[:])
	return out
}

// DoctorTick is one event of an answer that is held open.
type DoctorTick struct {
	Ms   int64 `json:"ms"` // since the stream began
	Done bool  `json:"done,omitempty"`
}

// holdOpen answers with an event stream of the form that calls have, which says
// something now and then and ends by itself.
func holdOpen(w http.ResponseWriter, r *http.Request, hold, every time.Duration) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	rc := http.NewResponseController(w)
	begun := time.Now()
	say := func(done bool) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
		raw, _ := json.Marshal(DoctorTick{time.Since(begun).Milliseconds(), done}) // two plain fields
		_, err := fmt.Fprintf(w, "data: %s\n\n", raw)
		return err == nil && rc.Flush() == nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	end := time.NewTimer(hold)
	defer end.Stop()
	for say(false) {
		select {
		case <-tick.C:
		case <-end.C:
			say(true)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// doctored is the gateway as the owner's doctor asks it.
type doctored struct{ *Gateway }

// Begin implements [admin.Doctor].
func (d doctored) Begin(context.Context) (admin.DoctorTicket, error) { return d.tickets.begin() }

// Consent implements [admin.Doctor].
func (d doctored) Consent(ctx context.Context, params url.Values) (string, error) {
	return d.oauth.ConsentTrial(ctx, params)
}

// End implements [admin.Doctor].
func (d doctored) End(ctx context.Context, in admin.DoctorEndIn) error {
	d.tickets.end(in.Ticket)
	_, err := d.oauth.EndTrials(ctx, in.ClientID)
	return err
}

// Facts implements [admin.Doctor].
func (d doctored) Facts(ctx context.Context) admin.DoctorFacts {
	f := admin.DoctorFacts{PID: os.Getpid(), Program: d.program.path, Replaced: d.program.replaced(), Daemons: d.daemons(), Projects: []admin.ProjectInfo{}}
	found := make([][]admin.ProjectInfo, len(d.direct.hosts.All()))
	var wg sync.WaitGroup
	for i, h := range d.direct.hosts.All() {
		wg.Go(func() { found[i] = d.projects(ctx, h.ID()) })
	}
	wg.Wait()
	for _, list := range found {
		f.Projects = append(f.Projects, list...)
	}
	return f
}

func (d doctored) daemons() []admin.DaemonInfo {
	list := []admin.DaemonInfo{}
	if !d.config.Tools.Agents {
		return list
	}
	for _, id := range d.dispatch.ids {
		s := d.dispatch.clients[id].Status()
		info := admin.DaemonInfo{HostID: id, Up: s.State == paseo.Up, State: string(s.State), Since: s.Since.UTC(), Code: string(s.Code), Reason: s.Reason}
		if s.Info != nil {
			info.Version = s.Info.Version
		}
		list = append(list, info)
	}
	return list
}

// projects are those of one host, none when it can't be asked: that is said of the
// host.
func (d doctored) projects(ctx context.Context, hostID string) (list []admin.ProjectInfo) {
	ctx, cancel := context.WithTimeout(ctx, hostBudget)
	defer cancel()
	at, err := d.direct.at(ctx, &hostID)
	if err != nil {
		return nil
	}
	out, err := at.ListDirectProjects(ctx, direct.ListDirectProjectsIn{})
	if err != nil {
		return nil
	}
	for _, p := range out.Projects {
		list = append(list, admin.ProjectInfo{HostID: hostID, ProjectID: p.ProjectID, Unavailable: p.Unavailable})
	}
	return list
}

// program is the file that this process was started from.
type program struct {
	path string
	info fs.FileInfo // as it was then; nil when it could not be found
}

func thisProgram() program {
	path, err := os.Executable()
	if err != nil {
		return program{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return program{path: path}
	}
	return program{path, info}
}

// replaced reports whether the path leads to another file now.
func (p program) replaced() bool {
	if p.info == nil {
		return false
	}
	now, err := os.Stat(p.path)
	return err != nil || !os.SameFile(p.info, now)
}
