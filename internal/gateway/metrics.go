package gateway

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentrelay/internal/backup"
	"agentrelay/internal/hosts"
	"agentrelay/internal/metrics"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// meter counts what the gateway does. Its labels have values from the program and
// the config alone, never an id, an address or a text.
type meter struct {
	registry     metrics.Registry
	requests     *metrics.Counter
	requestTimes *metrics.Histogram
	calls        *metrics.Counter
	callTimes    *metrics.Histogram
	tools        map[string]bool // by name, of those that clients see
}

// latencies are upper bounds in seconds, up to the longest wait of a tool.
var latencies = []float64{0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 30}

func (g *Gateway) newMeter() *meter {
	m := &meter{tools: map[string]bool{}}
	r := &m.registry
	m.requests = r.Counter("agentrelay_http_requests_total", "HTTP requests that were answered.", "route", "method", "status")
	m.requestTimes = r.Histogram("agentrelay_http_request_seconds", "How long requests took, waiting ones included.", latencies, "route")
	m.calls = r.Counter("agentrelay_tool_calls_total", "Calls of tools, by how they ended: ok, or the code of the refusal.", "tool", "outcome")
	m.callTimes = r.Histogram("agentrelay_tool_call_seconds", "How long calls of tools took, waiting ones included.", latencies, "tool")
	r.Collect(g.collect)
	return m
}

// know makes the names of tools ones that are counted by themselves; it is called
// before requests are.
func (m *meter) know(tools []tool.Tool) {
	for _, t := range tools {
		m.tools[t.Name] = true
	}
}

// request counts a request that is over.
func (m *meter) request(method, route string, status int, rec *record, took time.Duration) {
	if route == "" || route == "/*" {
		route = "other"
	}
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions}, method) {
		method = "other"
	}
	if status == 0 { // nothing was answered: the client was gone
		status = 499
	}
	m.requests.Inc(route, method, strconv.Itoa(status))
	m.requestTimes.Observe(took.Seconds(), route)
	rec.mu.Lock()
	defer rec.mu.Unlock()
	outcome := "ok"
	if len(rec.codes) > 0 {
		outcome = rec.codes[0]
	}
	for _, name := range rec.tools {
		if !m.tools[name] {
			name = "unknown"
		}
		m.calls.Inc(name, outcome)
		m.callTimes.Observe(took.Seconds(), name)
	}
}

// collectTime bounds the reading of numbers from the store.
const collectTime = 5 * time.Second

// collect measures what is not counted.
func (g *Gateway) collect(ctx context.Context, p *metrics.Page) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	p.Gauge("agentrelay_build_info", "1; the labels say what runs.", 1, "version", g.version, "go", runtime.Version(), "os", runtime.GOOS, "arch", runtime.GOARCH)
	p.Gauge("agentrelay_uptime_seconds", "How long the gateway runs.", g.now().Sub(g.started).Seconds())
	s := g.store.Stats()
	p.Total("agentrelay_store_commits_total", "Transactions that were written to disk.", float64(s.Commits))
	p.Total("agentrelay_store_writes_total", "Changes in them; divided by the commits, how many share one.", float64(s.Writes))
	p.Total("agentrelay_store_busy_seconds_total", "How long the writer worked; divided by the commits, how long one takes.", s.Busy.Seconds())
	p.Gauge("agentrelay_store_waiting", "Changes that wait for the writer.", float64(s.Waiting))
	p.Gauge("agentrelay_store_log_bytes", "Size of the write-ahead log.", float64(s.LogBytes))
	g.collectRows(ctx, p)
	g.collectHosts(p)
	if n, err := g.direct.local.Commands.Running(); err == nil {
		p.Gauge("agentrelay_commands_running", "Commands that run on this machine.", float64(n))
	}
	if sets, _, err := backup.List(g.backups.Dir); err == nil && len(sets) > 0 {
		p.Gauge("agentrelay_backup_age_seconds", "Age of the newest backup.", g.now().Sub(sets[0].CreatedAt).Seconds())
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	p.Gauge("agentrelay_heap_bytes", "Memory in use by Go.", float64(memory.HeapAlloc))
	p.Gauge("agentrelay_goroutines", "Goroutines.", float64(runtime.NumGoroutine()))
	if n, ok := residentBytes(); ok {
		p.Gauge("agentrelay_resident_bytes", "Memory that the process holds.", n)
	}
}

// counts are numbers of rows by state. Each is one pass over a table or an index.
var counts = []struct{ name, help, query string }{
	{"agentrelay_deliveries", "Deliveries of events, by state; those of the last months.", `SELECT state, count(*) FROM event_deliveries GROUP BY state`},
	{"agentrelay_transfers", "Transfers of files, by state.", `SELECT state, count(*) FROM transfers GROUP BY state`},
	{"agentrelay_subscriptions", "Active subscriptions, by event.", `SELECT name, count(*) FROM event_subscriptions WHERE ended_at IS NULL GROUP BY name`},
	{"agentrelay_peers", "Peers, by kind; active ones.", `SELECT kind, count(*) FROM mailbox_peers WHERE stopped_at IS NULL GROUP BY kind`},
}

func (g *Gateway) collectRows(ctx context.Context, p *metrics.Page) {
	up := 1.0
	err := store.Read(ctx, g.store, func(r *store.Reader) error {
		for _, c := range counts {
			err := r.Query(func(row store.Scanner) error {
				var label string
				var n float64
				if err := row.Scan(&label, &n); err != nil {
					return err
				}
				p.Gauge(c.name, c.help, n, "is", label)
				return nil
			}, c.query)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		up = 0
		g.log.Warn("numbers could not be read from the store", "error", err)
	}
	p.Gauge("agentrelay_store_up", "1 while the store answers.", up)
}

// collectHosts counts the hosts by state, and names none.
func (g *Gateway) collectHosts(p *metrics.Page) {
	states := map[hosts.State]int{}
	for _, h := range g.direct.hosts.All() {
		states[h.Status().State]++
	}
	for _, state := range []hosts.State{hosts.Up, hosts.Degraded, hosts.Connecting, hosts.Down} {
		p.Gauge("agentrelay_hosts", "Hosts, by state.", float64(states[state]), "state", string(state))
	}
}

// residentBytes is what the process holds, where the system says so.
func residentBytes() (float64, bool) {
	raw, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseFloat(fields[1], 64)
	return pages * float64(os.Getpagesize()), err == nil
}

// serveMetrics answers programs of this machine that come directly. For everybody
// else, and that is whoever comes through a proxy, there is nothing here.
func (g *Gateway) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if !isDirect(r) {
		g.notFound(w, r)
		return
	}
	var b bytes.Buffer
	if err := g.metrics.registry.Write(r.Context(), &b); err != nil {
		refuse(w, r, http.StatusInternalServerError, faultOf(err))
		return
	}
	w.Header().Set("Content-Type", metrics.ContentType)
	_, _ = w.Write(b.Bytes())
}

// isDirect reports whether a request was made on this machine and for it: its peer
// and its Host are loopback, and no proxy has left a word.
func isDirect(r *http.Request) bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" || name == "Via" || name == "X-Real-Ip" {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() {
		return false
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return isLoopbackName(strings.Trim(name, "[]"))
}
