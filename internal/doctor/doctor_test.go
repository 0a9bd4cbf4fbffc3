package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/audit"
	"agentrelay/internal/oauth"
)

// healthy is an installation that runs and where nothing is to be said.
func healthy(t *testing.T) *installation {
	t.Helper()
	i := install(t)
	i.backup()
	i.serve()
	return i
}

func TestHealthyInstallation(t *testing.T) {
	i := healthy(t)
	i.o.Client = "grok"
	r := i.run()
	for _, x := range r.Results {
		switch {
		case x.ID == "client.connected": // nobody has, which is said
		case x.Status == Warn || x.Status == Fail:
			t.Errorf("%s %s: %s", x.Status, x.ID, x.Evidence)
		case x.Status == Skip && !slices.Contains([]string{"hosts.ssh", "agents.daemon", "events.subscriptions", "wake.targets", "devices.connected"}, x.ID):
			t.Errorf("%s was skipped: %s", x.ID, x.Evidence)
		}
		if x.Why == "" || x.Evidence == "" {
			t.Errorf("%s says nothing: %+v", x.ID, x)
		}
	}
	if !r.Running || r.Failed != 0 || r.Passed+r.Warned+r.Skipped != len(r.Results) {
		t.Errorf("%d results, counted %+v", len(r.Results), r)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range i.seen {
		if len(secret) > 5 && strings.Contains(string(raw), strings.TrimPrefix(secret, "Bearer ")) {
			t.Errorf("a secret stands in the report: %s", secret)
		}
	}
	i.leavesNothing()
}

// leavesNothing: the doctor's clients are gone, and the audit log says who it was.
func (i *installation) leavesNothing() {
	i.Helper()
	conn, err := admin.DialRunning(i.Context(), i.state())
	if err != nil || conn == nil {
		i.Fatalf("%v, %v", conn, err)
	}
	defer conn.Close()
	left, err := admin.ListClients.Call(i.Context(), conn, admin.None{})
	if err != nil || len(left) != 0 {
		i.Errorf("clients are left: %+v, %v", left, err)
	}
	log, err := admin.Audit.Call(i.Context(), conn, admin.AuditIn{Limit: 100})
	i.must(err)
	said := slices.ContainsFunc(log, func(e audit.Entry) bool { return e.Action == "consent.allow" && e.Detail["doctor"] == true })
	ended := slices.ContainsFunc(log, func(e audit.Entry) bool { return e.Action == "doctor.end" })
	if !said || !ended {
		i.Errorf("the audit log does not say that it was the doctor: %+v", log)
	}
	ticket := i.seen[slices.IndexFunc(i.seen, func(s string) bool { return regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(s) })]
	resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/mcp?doctor=%s", i.port, ticket), "application/json", strings.NewReader("{}"))
	i.must(err)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusUnauthorized {
		i.Errorf("the ticket still works: %d", resp.StatusCode)
	}
}

// TestInterruptedDoctorLeavesNothing: what it made goes away when it is stopped too.
func TestInterruptedDoctorLeavesNothing(t *testing.T) {
	i := healthy(t)
	ctx, cancel := context.WithCancel(t.Context())
	i.write()
	i.o.Hold = time.Minute
	time.AfterFunc(2*time.Second, cancel)
	begun := time.Now()
	Run(ctx, i.o)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	i.leavesNothing()
}

// TestWithoutAGateway: what can be looked at is, and the rest is skipped with a reason.
func TestWithoutAGateway(t *testing.T) {
	i := install(t)
	i.backup()
	i.stored(func(b *admin.Backend) { // which makes its directories, as every command of the owner's would
		_, err := b.Commands()
		i.must(err)
	})
	before := tree(t, i.state())
	r := i.run()
	for _, x := range r.Results {
		if x.Status == Fail && x.ID != "gateway.running" && x.ID != "public.tls" {
			t.Errorf("%s: %s", x.ID, x.Evidence)
		}
	}
	for _, id := range []string{"store.schema", "store.integrity", "owners.foreign", "direct.programs", "direct.projects", "events.deliveries", "backup.newest", "gateway.port", "public.dns"} {
		if _, ok := find(r, id, Pass); !ok {
			t.Errorf("%s was not looked at", id)
		}
	}
	for _, id := range []string{"public.reach", "oauth.roundtrip", "gateway.version"} {
		if x, ok := find(r, id, Skip); !ok || x.Evidence != "No gateway runs." {
			t.Errorf("%s: %+v", id, x)
		}
	}
	if after := tree(t, i.state()); after != before {
		t.Errorf("the doctor changed the state directory:\n%s\n%s", before, after)
	}
	i.serve() // and let go of the lock
}

// TestOlderDatabaseIsNotUpgraded: looking migrates nothing.
func TestOlderDatabaseIsNotUpgraded(t *testing.T) {
	i := install(t)
	i.exec(`DELETE FROM goose_db_version WHERE version_id > 3`)
	r := i.run()
	if x, ok := find(r, "owners.foreign", Skip); !ok || !strings.Contains(x.Evidence, "schema 3") {
		t.Errorf("got %+v", x)
	}
	if x, ok := find(i.run("store.schema"), "store.schema", Warn); !ok || !strings.Contains(x.Evidence, "schema 3") {
		t.Errorf("the database was upgraded: %+v", x)
	}
}

// tree lists the files of a directory, but for those of SQLite's log.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, "-wal") || strings.HasSuffix(path, "-shm") {
			return err
		}
		fmt.Fprintln(&out, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSlowCheckDelaysNobody(t *testing.T) {
	i := install(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	i.o.more = []check{
		{id: "test.hangs", why: "w", budget: 50 * time.Millisecond, run: func(context.Context, *visit) []finding { <-hang; return nil }},
		{id: "test.late", why: "w", budget: 50 * time.Millisecond, late: warn("n", "Slow."), run: func(context.Context, *visit) []finding { <-hang; return nil }},
		{id: "test.panics", why: "w", run: func(context.Context, *visit) []finding { panic("oops") }},
		{id: "test.quick", why: "w", run: func(context.Context, *visit) []finding { return one(pass("Fine.")) }},
	}
	begun := time.Now()
	r := i.run("test.hangs", "test.late", "test.panics", "test.quick")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	for id, want := range map[string]Status{"test.hangs": Fail, "test.late": Warn, "test.panics": Fail, "test.quick": Pass} {
		if _, ok := find(r, id, want); !ok {
			t.Errorf("%s is not %s: %+v", id, want, r.Results)
		}
	}
}

func TestIDsAreStable(t *testing.T) {
	want := []string{
		"config.file", "config.mode", "config.testmode", "state.dir", "state.filesystem", "state.space", "store.schema", "store.wal", "store.integrity",
		"owner.password", "sealing.key", "owners.foreign", "gateway.running", "gateway.version", "gateway.ready", "gateway.port", "clock.steps",
		"public.url", "public.dns", "public.tls", "public.reach", "public.headers", "public.body", "public.stream", "public.discovery", "clock.skew",
		"oauth.roundtrip", "hosts.ssh", "agents.daemon", "devices.link", "devices.connected", "direct.projects", "direct.programs", "direct.path", "commands.killmode", "commands.logind",
		"events.subscriptions", "events.deliveries", "wake.targets", "backup.age", "backup.newest", "service.unit", "service.linger",
		"client.address", "client.challenge", "client.metadata", "client.registration", "client.connected",
	}
	have := IDs()
	for _, id := range want {
		if !slices.Contains(have, id) {
			t.Errorf("%s is gone, but programs read it", id)
		}
	}
	for k, id := range have {
		if !regexp.MustCompile(`^[a-z]+\.[a-z]+$`).MatchString(id) || slices.Contains(have[:k], id) {
			t.Errorf("%q is no id, or there twice", id)
		}
	}
}

// TestEachClientConnects: the checks of each client pass where it can connect, and see
// that it has.
func TestEachClientConnects(t *testing.T) {
	i := healthy(t)
	for _, name := range Clients() {
		i.o.Client = name
		for _, x := range i.run("client.address", "client.challenge", "client.metadata", "client.registration").Results {
			if x.Status != Pass {
				t.Errorf("%s: %+v", name, x)
			}
		}
		k, _ := findClient(name)
		conn, err := admin.DialRunning(t.Context(), i.state())
		i.must(err)
		_, err = admin.AddClient.Call(t.Context(), conn, oauth.NewClient{Name: k.title, RedirectURIs: k.redirects})
		i.must(err)
		conn.Close()
		if x, ok := find(i.run("client.connected"), "client.connected", Warn); !ok || !strings.Contains(x.Evidence, "is not allowed now") {
			t.Errorf("%s: %+v", name, x)
		}
	}
}
