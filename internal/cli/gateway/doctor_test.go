package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/doctor"
)

// front is a proxy for gateway.example.com in front of this home's gateway, and the
// doctor's options to reach it.
func (h *home) front(change func(http.Handler) http.Handler) doctor.Options {
	h.t.Helper()
	var c struct{ Port int }
	raw, err := os.ReadFile(h.configPath())
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	transport := &http.Transport{}
	forward := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", c.Port)})
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		ModifyResponse: func(r *http.Response) error { // the proxy has the clock of the test
			r.Header.Set("Date", now.Format(http.TimeFormat))
			return nil
		},
	}
	s := httptest.NewTLSServer(change(forward))
	h.t.Cleanup(func() {
		s.Close()
		transport.CloseIdleConnections()
	})
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	lingers := true
	return doctor.Options{
		Hold: 2 * time.Second, RootCAs: roots, Resolver: oneAddress{}, FreeBytes: func(string) (uint64, error) { return 50e9, nil },
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		},
		Units: func(context.Context) []doctor.Unit {
			return []doctor.Unit{{
				Manager: "systemd", Path: filepath.Join(h.dir, ".config/systemd/user/agent-relay.service"), Text: "KillMode=process", Shipped: "KillMode=process",
				Program: "/bin/sh", Enabled: true, Running: true, Lingers: &lingers, KillMode: "process", Version: thisBuild().Version,
			}}
		},
		LogindKills: func(context.Context) (bool, bool) { return false, true },
	}
}

type oneAddress struct{}

func (oneAddress) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
}

// diagnose is "gateway doctor" with options that an owner does not have.
func (h *home) diagnose(o doctor.Options, explain bool) (text string, code int) {
	h.t.Helper()
	var out bytes.Buffer
	a := &app{Env: h.env(&out, &out)}
	units, kills := o.Units, o.LogindKills
	if err := a.doctorOptions(&o); err != nil {
		h.t.Fatal(err)
	}
	o.Units, o.LogindKills = units, kills
	r := doctor.Run(h.t.Context(), o)
	for i := range r.Results { // before lines are broken
		r.Results[i].Evidence = strings.ReplaceAll(r.Results[i].Evidence, h.dir, "/home/you")
		r.Results[i].Next = strings.ReplaceAll(r.Results[i].Next, h.dir, "/home/you")
	}
	if err := a.printReport(r, explain); err != nil {
		h.t.Fatal(err)
	}
	if err := verdict(h.t.Context(), r); err != nil {
		code = a.report(a.doctorCommand(), err)
	}
	return out.String(), code
}

// masked hides what is another each time.
func masked(s string) string {
	for _, m := range [][2]string{
		{`(port|:) ?\d{4,5}\b`, "${1} 6768"}, {`surface \w+`, "surface X"}, {`[Ss]chema \d+`, "schema N"}, {`\d+(\.\d+)? [kM]B\b|\d+ bytes`, "N kB"},
		{`until \d{4}.*`, "until 2027-01-01 00:00 UTC."},
		{`\d{8}T\d{6}\.\d{3}Z`, "20261105T120000.000Z"}, {`\b\d+ tools`, "N tools"}, {`up to [\d.]+s`, "up to Ns"}, {`after [\d.]+m?s`, "after Ns"},
	} {
		s = regexp.MustCompile(m[0]).ReplaceAllString(s, m[1])
	}
	return s
}

// project gives the config a project with a registered command.
func (h *home) project(program string) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "project")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	raw, err := os.ReadFile(h.configPath())
	if err != nil {
		h.t.Fatal(err)
	}
	c := map[string]any{}
	if err := json.Unmarshal(raw, &c); err != nil {
		h.t.Fatal(err)
	}
	c["allowedRoots"] = []string{h.dir}
	c["commands"] = map[string]any{"path": "/usr/bin:/bin"}
	c["direct"] = map[string]any{"projects": []any{map[string]any{"id": "p", "path": dir, "commandMode": "registered", "commands": []any{map[string]any{"name": "build", "argv": []string{program}}}}}}
	if raw, err = json.Marshal(c); err == nil {
		err = os.WriteFile(h.configPath(), raw, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func TestDoctorOfAHealthyInstallation(t *testing.T) {
	h := newHome(t)
	h.init("--public-url", "https://gateway.example.com")
	h.project("ls")
	h.ok("backup")
	h.serve()
	o := h.front(func(next http.Handler) http.Handler { return next })
	text, code := h.diagnose(o, false)
	if code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	h.golden("doctor-healthy", masked(text))
	text, _ = h.diagnose(o, true)
	if n := strings.Count(text, "Why: "); n != strings.Count(text, "\nPASS")+strings.Count(text, "\nSKIP")+1 {
		t.Errorf("--explain gives %d reasons:\n%s", n, text)
	}
}

func TestDoctorOfABrokenInstallation(t *testing.T) {
	h := newHome(t)
	h.init("--public-url", "https://gateway.example.com")
	h.project("no-such-program")
	h.serve()
	o := h.front(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Mcp-Method")
			switch {
			case r.URL.Path == "/token", r.ContentLength > 1<<20:
				http.Error(w, "blocked", http.StatusRequestEntityTooLarge)
				return
			case r.URL.Query().Get("hold") != "":
				ctx, cancel := context.WithTimeout(r.Context(), 200*time.Millisecond)
				defer cancel()
				r = r.WithContext(ctx)
			}
			next.ServeHTTP(w, r)
		})
	})
	o.Client = "claude"
	unit := o.Units(t.Context())[0]
	unit.KillMode, unit.Text, *unit.Lingers = "control-group", "KillMode=control-group", false
	o.Units = func(context.Context) []doctor.Unit { return []doctor.Unit{unit} }
	o.FreeBytes = func(string) (uint64, error) { return 5e6, nil }
	if err := os.Remove(filepath.Join(h.dir, "project")); err != nil {
		t.Fatal(err)
	}
	text, code := h.diagnose(o, false)
	if code != ExitUnhealthy {
		t.Errorf("exit code %d", code)
	}
	h.golden("doctor-broken", masked(text))
}

func TestDoctorCommand(t *testing.T) {
	h := newHome(t)
	h.init()
	r := h.run("doctor", "--json")
	report := decode[doctor.Report](t, r.stdout)
	failed := slices.IndexFunc(report.Results, func(x doctor.Result) bool { return x.Status == doctor.Fail })
	if r.code != ExitUnhealthy || failed < 0 || report.Results[failed].ID != "gateway.running" || report.Failed != 1 || !strings.Contains(r.stderr, `"1 check failed"`) {
		t.Errorf("nothing runs: %d %s %s", r.code, r.stdout, r.stderr)
	}
	for _, x := range report.Results {
		if x.ID == "" || x.Evidence == "" || x.Why == "" {
			t.Errorf("incomplete: %+v", x)
		}
	}
	if r := h.run("doctor", "--client", "mosaic"); r.code != ExitUsage || !strings.Contains(r.stderr, "chatgpt, claude, grok, cursor") {
		t.Errorf("an unknown client: %+v", r)
	}
	h.serve()
	if r := h.run("doctor", "--client", "cursor"); r.code != ExitOK || !strings.Contains(r.stdout, "PASS  oauth.roundtrip") || !strings.Contains(r.stdout, "PASS  client.registration") {
		t.Errorf("with a gateway: %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if out := h.ok("clients", "list"); !strings.Contains(out, "No client is known yet") {
		t.Errorf("the doctor left a client:\n%s", out)
	}
	if r := h.run("doctor", "--config", filepath.Join(h.dir, "none.json")); r.code != ExitUnhealthy || !strings.Contains(r.stdout, "gateway init") {
		t.Errorf("without a config: %+v", r)
	}
}

// TestInstalledUnits has programs in the place of systemd's.
func TestInstalledUnits(t *testing.T) {
	h := newHome(t)
	h.init()
	bin := filepath.Join(h.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "my gateway")
	for name, script := range map[string]string{
		"my gateway": `echo '{
  "version": "v9"
}'`,
		"systemctl": `case "$*" in
*KillMode*) echo control-group ;;
*) printf 'ActiveState=active\nSubState=running\nUnitFileState=enabled\nExecMainPID=1\n' ;;
esac`,
		"loginctl": `echo no`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	a := &app{Env: h.env(&bytes.Buffer{}, &bytes.Buffer{})}
	s := service{home: h.dir, user: "you", program: program, config: h.configPath()}
	if u, ok := a.installedUnit(t.Context(), systemdManager{}, "systemd", s); ok {
		t.Fatalf("none is installed: %+v", u)
	}
	path := systemdManager{}.path(s)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	text := systemdManager{}.text(s)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	u, ok := a.installedUnit(t.Context(), systemdManager{}, "systemd", s)
	if !ok {
		t.Fatal("the unit is not seen")
	}
	if u.Program != program || u.Shipped != text || !u.Enabled || !u.Running || u.KillMode != "control-group" || u.Lingers == nil || *u.Lingers || u.Version != "v9" || u.Trouble != "" {
		t.Errorf("got %+v", u)
	}
}

func TestSystemdWordsUndoSystemdWord(t *testing.T) {
	for _, word := range []string{"/usr/bin/gateway", "/with a space/x", `/with "quotes" and \`, "/100%/$HOME", "/tab\tor;semicolon"} {
		if got := systemdWords(systemdWord(word) + " serve"); len(got) != 2 || got[0] != word {
			t.Errorf("%q became %q", word, got)
		}
	}
}
