package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/doctor"
)

// oneName knows every name under one address of the internet.
type oneName struct{}

func (oneName) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
}

// TestDoctorThroughProxies has the doctor look through the proxies that owners have, with
// the files that they get, and through one whose settings are those of its maker.
func TestDoctorThroughProxies(t *testing.T) {
	hold := doctor.Hold
	if testing.Short() {
		hold = 3 * time.Second
	}
	for _, p := range []struct {
		name  string
		start func(*testing.T, *fronted) *http.Client
		fails []string // the checks that must
	}{
		{"caddy", startCaddy, nil},
		{"nginx", startNginx, nil},
		{"nginx with nothing but proxy_pass", startPlainNginx, []string{"public.headers", "public.headers", "public.body"}},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f := startFronted(t)
			through := p.start(t, f).Transport.(*http.Transport)
			r := doctor.Run(t.Context(), doctor.Options{
				ConfigPath: frontedConfig(t, f), Getenv: os.Getenv, Client: "claude", Hold: hold, Version: "dev",
				Dial: through.DialContext, RootCAs: through.TLSClientConfig.RootCAs, Resolver: oneName{},
			})
			var failed []string
			for _, x := range r.Results {
				// The test's certificate is short, and its proxies lead to another port.
				if x.Status == doctor.Fail || x.Status == doctor.Warn && strings.HasPrefix(x.ID, "public.") && x.ID != "public.tls" {
					failed = append(failed, x.ID)
					t.Logf("%s %s: %s Next: %s", x.Status, x.ID, x.Evidence, x.Next)
				}
			}
			if !slices.Equal(failed, p.fails) {
				t.Errorf("failed: %v, want %v", failed, p.fails)
			}
			i := slices.IndexFunc(r.Results, func(x doctor.Result) bool { return x.ID == "oauth.roundtrip" })
			if p.fails == nil && r.Results[i].Status != doctor.Pass {
				t.Errorf("%+v", r.Results[i])
			}
		})
	}
}

// frontedConfig writes the config of a gateway that runs behind a proxy.
func frontedConfig(t *testing.T, f *fronted) string {
	t.Helper()
	home := filepath.Dir(f.project)
	port := strings.TrimSuffix(strings.TrimPrefix(f.direct, "http://127.0.0.1:"), "/mcp")
	raw, err := json.Marshal(object{
		"publicBaseUrl": "https://" + proxyHost, "sharedOwner": true, "stateDir": filepath.Join(home, "state"), "allowedRoots": []string{home},
		"port": json.Number(port), "direct": object{"projects": []object{{"id": "p", "path": f.project}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, home, "config.json", string(raw))
	return filepath.Join(home, "config.json")
}

// startPlainNginx is nginx with the settings that most pages on the web show.
func startPlainNginx(t *testing.T, f *fronted) *http.Client {
	t.Helper()
	dir := t.TempDir()
	port := unusedPort(t)
	ca := certificate(t, dir)
	user := ""
	if os.Getuid() == 0 {
		user = "user root;\n"
	}
	temp := ""
	for _, what := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += fmt.Sprintf("  %s_temp_path %s/%s;\n", what, dir, what)
	}
	write(t, dir, "nginx.conf", fmt.Sprintf(`%sdaemon off;
pid %[2]s/pid;
error_log stderr;
events {}
http {
  access_log off;
%[3]s  server {
    listen 127.0.0.1:%[4]d ssl;
    ssl_certificate %[2]s/fullchain.pem;
    ssl_certificate_key %[2]s/privkey.pem;
    location / { proxy_pass http://127.0.0.1:%[5]d; }
  }
}
`, user, dir, temp, port, f.port))
	program(t, dir, "nginx", "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
	return through(t, port, ca)
}
