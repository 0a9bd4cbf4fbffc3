package agents

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a service over doubles of daemons, one for each host.
type rig struct {
	t      testing.TB
	root   string // allowed
	dir    string // of the store
	who    principal.Principal
	hosts  []string
	daemon map[string]*paseotest.Daemon
	subs   *subscriptions
	o      Options // changed by tests before [rig.start]
	alter  func(Daemon) Daemon

	store   *store.Store
	s       *Service
	clients map[string]*paseo.Client
	stop    func()
}

const here = "local"

func newRig(t testing.TB, version string, hosts ...string) *rig {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []string{here}
	}
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, root: root, dir: filepath.Join(t.TempDir(), "state"), hosts: hosts, daemon: map[string]*paseotest.Daemon{},
		who: principal.Principal{Owner: principal.SharedOwner, ClientID: "client-a", Permissions: principal.Full()}, subs: &subscriptions{},
	}
	for _, id := range hosts {
		r.daemon[id] = paseotest.Start(t, paseotest.Options{Version: version})
	}
	t.Cleanup(func() { r.halt() })
	return r
}

// started is a rig that runs.
func started(t *testing.T, version string) *rig {
	t.Helper()
	r := newRig(t, version)
	r.start()
	return r
}

// HostIDs implements [Daemons].
func (r *rig) HostIDs() []string { return r.hosts }

// Daemon implements [Daemons].
func (r *rig) Daemon(id string) (Daemon, error) {
	if c := r.clients[id]; c != nil && r.alter != nil {
		return r.alter(c), nil
	} else if c != nil {
		return c, nil
	}
	return nil, fault.UnknownHost.New("no such host")
}

// start opens the store and begins, as a process does.
func (r *rig) start() {
	r.t.Helper()
	var err error
	if r.store, err = store.Open(r.t.Context(), store.Options{Dir: r.dir, Now: r.o.Now}); err != nil {
		r.t.Fatal(err)
	}
	run, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.clients = map[string]*paseo.Client{}
	for _, id := range r.hosts {
		c := paseo.New(paseo.Options{
			HostID: id, Dial: r.daemon[id].Dial, BackoffMin: 5 * time.Millisecond, BackoffMax: 30 * time.Millisecond, ConnectWait: 300 * time.Millisecond,
			CallTimeout: 2 * time.Second,
		})
		r.clients[id] = c
		wg.Go(func() { c.Run(run) })
	}
	o := r.o
	o.Store, o.Daemons, o.Events = r.store, r, r.subs
	if o.Roots == nil {
		o.Roots = NewLocalRoots([]string{r.root})
	}
	if r.s, err = New(o); err != nil {
		r.t.Fatal(err)
	}
	for _, id := range r.hosts {
		if r.daemon[id].Running() {
			eventually(r.t, "a connection", func() bool { _, ok := r.clients[id].Info(); return ok })
		}
	}
	if err := r.s.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.stop = func() {
		ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		err := r.s.Close(ctx)
		cancel()
		wg.Wait()
		if err = errors.Join(err, r.store.Close()); err != nil {
			r.t.Error(err)
		}
	}
}

// halt ends the process.
func (r *rig) halt() {
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

// again is a new process on the same state.
func (r *rig) again() {
	r.t.Helper()
	r.halt()
	r.o.crash = nil
	r.start()
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// workspace makes a workspace in the root.
func (r *rig) workspace(hostID string) string {
	r.t.Helper()
	if info, _ := r.clients[hostID].Info(); !info.Workspaces() {
		return r.root
	}
	w, err := r.s.CreateWorkspace(r.t.Context(), r.who, CreateWorkspaceIn{OnHost: OnHost{hostID}, Isolation: "local", Path: r.root})
	if err != nil {
		r.t.Fatal(err)
	}
	return w.WorkspaceID
}

func (r *rig) createIn(requestID, prompt string) CreateAgentIn {
	return CreateAgentIn{
		OnHost: OnHost{here}, RequestID: requestID, WorkspaceID: r.workspace(here), Title: "A test", Provider: "fake/echo", InitialPrompt: prompt,
	}
}

// create dispatches an agent and returns its id.
func (r *rig) create(requestID, prompt string) string {
	r.t.Helper()
	receipt, err := r.s.CreateAgent(r.t.Context(), r.who, r.createIn(requestID, prompt))
	if err != nil || receipt.State != Submitted || receipt.AgentID == "" {
		r.t.Fatalf("create: %+v, %v", receipt, err)
	}
	return receipt.AgentID
}

func (r *rig) sendIn(requestID, agentID, prompt string) SendAgentPromptIn {
	return SendAgentPromptIn{OnHost: OnHost{here}, RequestID: requestID, AgentID: agentID, Prompt: prompt}
}

// send prompts an agent.
func (r *rig) send(requestID, agentID, prompt string) {
	r.t.Helper()
	receipt, err := r.s.SendAgentPrompt(r.t.Context(), r.who, r.sendIn(requestID, agentID, prompt))
	if err != nil || receipt.State != Submitted {
		r.t.Fatalf("send: %+v, %v", receipt, err)
	}
}

// wait waits for the end of a dispatch.
func (r *rig) wait(requestID, agentID string) Result {
	r.t.Helper()
	ms := MaxWaitMs
	out, err := r.s.WaitForAgentResult(r.t.Context(), r.who, WaitForAgentResultIn{OnHost: OnHost{here}, RequestID: requestID, AgentID: agentID, TimeoutMs: &ms})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) result(requestID string) Result {
	r.t.Helper()
	out, err := r.s.GetRequestResult(r.t.Context(), r.who, GetRequestResultIn{OnHost: OnHost{here}, RequestID: requestID, WaitMs: 5000})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) receipt(requestID string) Receipt {
	r.t.Helper()
	out, err := r.s.GetDispatchRequest(r.t.Context(), r.who, RequestIn{OnHost{here}, requestID})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// ran counts how often a provider was given a prompt of a dispatch.
func (r *rig) ran(requestID string) (n int) {
	r.t.Helper()
	for _, d := range r.daemon {
		prompts, err := d.Prompts()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range prompts {
			if strings.HasPrefix(p.Text, marker(requestID)+"\n") {
				n++
			}
		}
	}
	return n
}

func text(s *string) string {
	if s == nil {
		return "<none>"
	}
	return *s
}

func kindOf(err error) string {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Code
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// running waits until the daemon shows an agent as running.
func (r *rig) running(agentID string) {
	r.t.Helper()
	eventually(r.t, "a run", func() bool {
		a, err := r.clients[here].FetchAgent(r.t.Context(), agentID)
		return err == nil && a.Status == paseo.AgentRunning
	})
}

// subscriptions are the events of tests.
type subscriptions struct {
	mu     sync.Mutex
	routes []Route
	told   []Attention
}

// PublishAttention implements [Events].
func (s *subscriptions) PublishAttention(tx *store.Tx, a Attention) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.routes, func(r Route) bool {
		return r.HostID == a.HostID && r.WorkspaceID == a.WorkspaceID && r.RouteID == a.RouteID
	}) {
		return false, nil
	}
	tx.AfterCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, a)
	})
	return true, nil
}

// Routes implements [Events].
func (s *subscriptions) Routes(store.Querier, string) ([]Route, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.routes), nil
}

func (s *subscriptions) subscribe(workspaceID, routeID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = append(s.routes, Route{SubscriptionID: "sub_" + routeID, HostID: here, WorkspaceID: workspaceID, RouteID: routeID, ExpiresAt: time.Now().Add(time.Hour)})
}

func (s *subscriptions) lapse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes = nil
}

// tells waits until exactly these kinds were told of a dispatch.
func (r *rig) tells(requestID string, want ...string) {
	r.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && len(r.subs.kinds(requestID)) < len(want); {
		time.Sleep(5 * time.Millisecond)
	}
	if kinds := r.subs.kinds(requestID); !slices.Equal(kinds, want) {
		r.t.Errorf("told %v of %s, want %v", kinds, requestID, want)
	}
}

// kinds lists what was told of a dispatch, in order.
func (s *subscriptions) kinds(requestID string) (kinds []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.told {
		if a.RequestID == requestID {
			kinds = append(kinds, a.Kind)
		}
	}
	return kinds
}

// versions runs a test against each double.
func versions(t *testing.T, test func(t *testing.T, version string)) {
	for _, v := range paseotest.Versions() {
		t.Run(v, func(t *testing.T) { test(t, v) })
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func makeDir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func contextOf() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
