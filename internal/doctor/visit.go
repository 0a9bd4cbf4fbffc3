package doctor

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/config"
	"agentrelay/internal/devices"
	"agentrelay/internal/events"
	"agentrelay/internal/gateway"
	"agentrelay/internal/oauth"
	"agentrelay/internal/store"
)

const (
	// askBudget bounds each question to the running gateway or the store.
	askBudget = 15 * time.Second
	// endBudget bounds the removal of what the doctor made.
	endBudget = 10 * time.Second
)

// visit is one run: what several checks need, each found when it is first asked for.
type visit struct {
	o   Options
	ctx context.Context

	config   *config.Config
	remarks  []config.Remark
	badCfg   error
	stateErr error // why the state directory can't be looked at

	conn    func() dialled
	stored  func() inventory
	status  func() statusOf
	facts   func() factsOf
	ticket  func() ticketOf
	reach   func() reached
	units   func() []Unit
	browser *http.Client // to the public address; follows no redirect
	plain   *http.Client // to the local port

	mu      sync.Mutex
	asked   bool     // for a ticket
	trials  []string // ids of clients to be removed
	release []func() error
}

type dialled struct {
	conn *admin.Conn // to a running gateway; nil when there is none
	err  error       // why it can't be told
}

type statusOf struct {
	gateway.Status
	err error
}

type factsOf struct {
	admin.DoctorFacts
	err error
}

type ticketOf struct {
	admin.DoctorTicket
	err error
}

// inventory is what the database has for the checks.
type inventory struct {
	clients       []oauth.ClientInfo
	owners        map[string]int // how many peers and subscriptions each owner has
	subscriptions []events.SubscriptionInfo
	targets       []events.TargetInfo
	dead          []events.DeliveryInfo
	devices       []devices.Paired
	missing       []string // programs of registered commands
	path          string   // of commands
	err           error
}

func newVisit(ctx context.Context, o Options) *visit {
	v := &visit{o: o, ctx: ctx}
	v.config, v.remarks, v.badCfg = config.Load(o.ConfigPath, o.Getenv)
	if v.badCfg == nil {
		v.stateErr = v.lookAtState()
	}
	transport := &http.Transport{
		DialContext: o.Dial, TLSClientConfig: &tls.Config{RootCAs: o.RootCAs, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second,
	}
	local := &http.Transport{}
	last := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	v.browser, v.plain = &http.Client{Transport: transport, CheckRedirect: last}, &http.Client{Transport: local, CheckRedirect: last}
	v.release = append(v.release, func() error {
		transport.CloseIdleConnections()
		local.CloseIdleConnections()
		return nil
	})
	v.conn = sync.OnceValue(v.dial)
	v.stored = sync.OnceValue(v.read)
	v.status = sync.OnceValue(v.askStatus)
	v.facts = sync.OnceValue(v.askFacts)
	v.ticket = sync.OnceValue(v.askTicket)
	v.reach = sync.OnceValue(func() reached { return v.post(v.ctx, v.browser, v.config.MCPURL()) })
	v.units = sync.OnceValue(func() []Unit {
		ctx, cancel := context.WithTimeout(v.ctx, askBudget)
		defer cancel()
		return o.Units(ctx)
	})
	return v
}

// lookAtState refuses what would be harmed by looking: a database of another user
// gets files of ours beside it, which he can't use.
func (v *visit) lookAtState() error {
	dir := v.config.StateDir
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no state directory yet at %s", dir)
	}
	if err != nil {
		return err
	}
	if uid, ok := userOf(info); ok && uid != os.Geteuid() {
		return fmt.Errorf("the state directory %s belongs to another user", dir)
	}
	if _, err := os.Stat(filepath.Join(dir, store.FileName)); errors.Is(err, fs.ErrNotExist) {
		return errors.New("nothing is stored yet: no gateway has run on this state directory")
	}
	return nil
}

func userOf(info fs.FileInfo) (uid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}

func (v *visit) dial() dialled {
	if v.badCfg != nil {
		return dialled{}
	}
	ctx, cancel := context.WithTimeout(v.ctx, askBudget)
	defer cancel()
	conn, err := admin.DialRunning(ctx, v.config.StateDir)
	if conn != nil {
		v.later(conn.Close)
	}
	return dialled{conn, err}
}

func (v *visit) later(f func() error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.release = append(v.release, f)
}

// running is the way to the running gateway, or nil.
func (v *visit) running() *admin.Conn { return v.conn().conn }

// missing says why a need is not met, or "".
func (v *visit) missing(n need) string {
	if n >= needConfig && v.badCfg != nil {
		return "The config can't be used."
	}
	if n == needState && v.stateErr != nil {
		return sentence(v.stateErr)
	}
	if n == needStored {
		if v.running() == nil && v.stateErr != nil {
			return sentence(v.stateErr)
		}
		if err := v.stored().err; err != nil {
			return "What is stored can't be read: " + sentence(err)
		}
	}
	if n >= needGateway && v.running() == nil {
		return "No gateway runs."
	}
	if n >= needPublic {
		if err := v.ticket().err; err != nil {
			return "The running gateway takes no questions of this doctor: " + sentence(err)
		}
		if f := v.reach().judge(v); f.status != Pass {
			return "The public address does not lead to this gateway; see public.reach."
		}
	}
	return ""
}

func (v *visit) askStatus() (s statusOf) {
	ctx, cancel := context.WithTimeout(v.ctx, askBudget)
	defer cancel()
	raw, err := admin.Status.Call(ctx, v.running(), admin.None{})
	if err == nil {
		err = json.Unmarshal(raw, &s.Status)
	}
	s.err = err
	return s
}

func (v *visit) askFacts() (f factsOf) {
	ctx, cancel := context.WithTimeout(v.ctx, askBudget)
	defer cancel()
	f.DoctorFacts, f.err = admin.InspectDoctor.Call(ctx, v.running(), admin.None{})
	return f
}

func (v *visit) askTicket() (t ticketOf) {
	v.mu.Lock()
	v.asked = true
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(v.ctx, askBudget)
	defer cancel()
	t.DoctorTicket, t.err = admin.BeginDoctor.Call(ctx, v.running(), admin.None{})
	return t
}

// read takes stock of what is stored: from the running gateway, else under the lock,
// which is let go of at once so that a gateway can start.
func (v *visit) read() (out inventory) {
	ctx, cancel := context.WithTimeout(v.ctx, askBudget)
	defer cancel()
	conn := v.running()
	if conn == nil {
		schema, err := store.SchemaOf(ctx, v.config.StateDir)
		if err != nil {
			return inventory{err: err}
		}
		if schema != store.Schema() { // opening would migrate it
			return inventory{err: fmt.Errorf("the database has schema %d and this program knows %d", schema, store.Schema())}
		}
		conn, err = admin.Dial(ctx, v.config.StateDir, func(ctx context.Context) (*admin.Backend, func() error, error) {
			return admin.Open(ctx, v.config, v.o.Now, rand.Reader, slog.New(slog.DiscardHandler))
		})
		if err != nil {
			return inventory{err: err}
		}
		defer conn.Close()
	}
	out.owners = map[string]int{}
	out.err = errors.Join(out.readClients(ctx, conn), out.readPeers(ctx, conn), out.readEvents(ctx, conn), out.readDevices(ctx, conn), out.readPrograms(ctx, conn, v.config))
	return out
}

func (out *inventory) readClients(ctx context.Context, conn *admin.Conn) (err error) {
	out.clients, err = admin.ListClients.Call(ctx, conn, admin.None{})
	return err
}

func (out *inventory) readPeers(ctx context.Context, conn *admin.Conn) error {
	limit := 200
	in := admin.PeersIn{IncludeStopped: true, Limit: &limit}
	for {
		page, err := admin.ListPeers.Call(ctx, conn, in)
		if err != nil {
			return err
		}
		for _, p := range page.Peers {
			out.owners[p.Owner]++
		}
		if page.NextCursor == "" {
			return nil
		}
		in.Cursor = &page.NextCursor
	}
}

func (out *inventory) readEvents(ctx context.Context, conn *admin.Conn) error {
	limit := 200
	in := admin.SubscriptionsIn{IncludeEnded: true, Limit: &limit}
	for {
		page, err := admin.ListSubscriptions.Call(ctx, conn, in)
		if err != nil {
			return err
		}
		out.subscriptions = append(out.subscriptions, page.Subscriptions...)
		if in.Cursor == nil {
			out.targets = page.Targets
		}
		if page.NextCursor == "" {
			break
		}
		in.Cursor = &page.NextCursor
	}
	for _, s := range out.subscriptions {
		if s.State == "active" {
			out.owners[s.Owner]++
		}
	}
	dead, err := admin.ListDeliveries.Call(ctx, conn, admin.DeliveriesIn{Dead: true, Limit: &limit})
	out.dead = dead.Deliveries
	return err
}

func (out *inventory) readDevices(ctx context.Context, conn *admin.Conn) error {
	all, err := admin.ListDevices.Call(ctx, conn, admin.None{})
	out.devices = all.Devices
	return err
}

func (out *inventory) readPrograms(ctx context.Context, conn *admin.Conn, c *config.Config) error {
	found, err := admin.FindPrograms.Call(ctx, conn, admin.FindProgramsIn{Names: programs(c)})
	out.missing, out.path = found.Missing, found.Path
	return err
}

// close removes what the doctor made and lets go of everything.
func (v *visit) close() {
	v.mu.Lock()
	asked, trials := v.asked, append([]string{}, v.trials...)
	v.mu.Unlock()
	if asked {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), endBudget)
		defer cancel()
		for _, id := range append(trials, "") { // what is not removed now, the next doctor removes
			_, _ = admin.EndDoctor.Call(ctx, v.running(), admin.DoctorEndIn{Ticket: v.ticket().Ticket, ClientID: id})
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.release {
		_ = f()
	}
}

// trial notes a client of the doctor's, to be removed in the end.
func (v *visit) trial(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.trials = append(v.trials, id)
}
