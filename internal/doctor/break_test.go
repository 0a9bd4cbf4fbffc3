package doctor

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/gateway"
	"agentrelay/internal/store"
)

// broken is a way to break an installation, and what the doctor must say.
type broken struct {
	id     string
	how    string
	break_ func(i *installation)
	client string
	want   Status
	advice string // in Next
}

// serving breaks the proxy of a gateway that runs.
func serving(front func(http.Handler) http.Handler) func(*installation) {
	return func(i *installation) {
		i.front = front
		i.serve()
	}
}

func units(change func(*Unit)) func(*installation) {
	return func(i *installation) {
		u := i.unit()
		change(&u)
		i.o.Units = func(context.Context) []Unit { return []Unit{u} }
	}
}

// subscription is a row of a subscription, with its receiver and an end in some hours.
func subscription(fails string, hours, life int) []string {
	now := time.Now()
	end := now.Add(time.Duration(hours) * time.Hour)
	return []string{
		fmt.Sprintf(`INSERT INTO event_receivers (id, address, failures, failed_since, last_error) VALUES (1, 'https://receiver.example/very-secret-path', 9, %s, 'http_500')`, fails),
		fmt.Sprintf(`INSERT INTO event_subscriptions (id, owner, receiver, name, arguments, client_id, secret, created_at, refreshed_at, expires_at)
			VALUES ('sub_1', 'local-owner:shared', 1, 'peer.message', '{"peerId":"dot"}', 'client-1', x'', %[1]d, %[1]d, %[2]d)`, end.Add(-time.Duration(life)*time.Hour).UnixMilli(), end.UnixMilli()),
	}
}

// paired is a device that is not there.
const paired = `INSERT INTO devices (name, token_hash, paired_at) VALUES ('laptop', x'00', 1700000000000)`

// target configures a wake-up target with this credential.
func target(i *installation, mode os.FileMode, content string) {
	file := filepath.Join(i.dir, "credential.json")
	i.must(os.WriteFile(file, []byte(content), 0o600))
	i.must(os.Chmod(file, mode))
	i.peer("local-owner:shared", "bot")
	i.set("peerWakeTargets", []object{{"owner": "local-owner:shared", "peerId": "bot", "generation": 1, "routineId": "r", "credentialFile": file}})
	i.serve()
}

var waysToBreak = []broken{
	{"config.file", "an unknown key", func(i *installation) { i.set("prot", 1) }, "", Fail, "gateway config check"},
	{"config.file", "no file", func(i *installation) { i.config = nil }, "", Fail, "gateway init"},
	{"config.file", "a key that does nothing", func(i *installation) { i.set("paseoCommand", "/bin/paseo") }, "", Warn, "gateway config check"},
	{"config.mode", "others can write it", func(i *installation) { i.write(); i.must(os.Chmod(i.o.ConfigPath, 0o666)) }, "", Fail, "chmod go-w"},
	{"config.testmode", "it is on", func(i *installation) { i.set("safedial", object{"allowLoopback": true}) }, "", Warn, "Remove safedial.allowLoopback"},
	{"state.dir", "others can enter", func(i *installation) { i.must(os.Chmod(i.state(), 0o755)) }, "", Fail, "chmod 700"},
	{"state.dir", "it is gone", func(i *installation) { i.must(os.RemoveAll(i.state())) }, "", Fail, "gateway serve"},
	{"state.filesystem", "nfs", func(i *installation) { i.o.NetworkFS = func(string) (string, error) { return "nfs", nil } }, "", Fail, "Move stateDir to a local disk"},
	{"state.filesystem", "nfs that is allowed", func(i *installation) {
		i.o.NetworkFS = func(string) (string, error) { return "nfs", nil }
		i.set("store", object{"allowNetworkFilesystem": true})
	}, "", Warn, "Move stateDir to a local disk"},
	{"state.space", "full", func(i *installation) { i.o.FreeBytes = func(string) (uint64, error) { return 1 << 20, nil } }, "", Fail, "Make room"},
	{"state.space", "nearly full", func(i *installation) { i.o.FreeBytes = func(string) (uint64, error) { return 200 << 20, nil } }, "", Warn, "Make room"},
	{"store.schema", "newer", func(i *installation) {
		i.exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)`)
	}, "", Fail, "Use the program that wrote it"},
	{"store.schema", "older", func(i *installation) { i.exec(`DELETE FROM goose_db_version WHERE version_id > 3`) }, "", Warn, "The next start upgrades it"},
	{"store.wal", "huge", func(i *installation) {
		i.exec()
		i.must(os.WriteFile(filepath.Join(i.state(), store.FileName+"-wal"), nil, 0o600))
		i.must(os.Truncate(filepath.Join(i.state(), store.FileName+"-wal"), hugeWAL+1))
	}, "", Fail, "End whatever else has the database open"},
	{"store.integrity", "damaged pages", damage, "", Fail, "gateway backup verify"},
	{"owner.password", "others can read it", func(i *installation) { i.must(os.Chmod(filepath.Join(i.state(), "owner.json"), 0o644)) }, "", Fail, "gateway owner reset-password"},
	{"owner.password", "gone", func(i *installation) { i.must(os.Remove(filepath.Join(i.state(), "owner.json"))) }, "", Fail, "gateway owner reset-password"},
	{"sealing.key", "gone", func(i *installation) {
		i.exec()
		i.must(os.Remove(filepath.Join(i.state(), "sealing.key")))
	}, "", Fail, "gateway restore"},
	{"sealing.key", "damaged", func(i *installation) {
		i.exec()
		i.must(os.WriteFile(filepath.Join(i.state(), "sealing.key"), []byte("x"), 0o600))
	}, "", Fail, "Correct its mode"},
	{"owners.foreign", "single clients' peers", func(i *installation) { i.peer("local-owner:c1", "dot") }, "", Warn, "gateway migrate shared-owner"},
	{"owners.foreign", "the shared owner's peers", func(i *installation) {
		i.peer("local-owner:shared", "dot")
		i.set("sharedOwner", false)
	}, "", Warn, "Set sharedOwner to true"},
	{"gateway.running", "nothing runs", func(i *installation) { i.exec() }, "", Fail, "gateway service install"},
	{"gateway.running", "the lock is held", func(i *installation) {
		i.exec()
		release, err := store.Lock(i.state())
		i.must(err)
		i.Cleanup(release)
	}, "", Fail, "If it is starting or stopping"},
	{"gateway.version", "this program is another", func(i *installation) { i.serve(); i.o.Version = "v2" }, "", Warn, "gateway service restart"},
	{"gateway.version", "the service is another", func(i *installation) { i.serve(); units(func(u *Unit) { u.Version = "v0" })(i) }, "", Warn, "gateway service install"},
	{"gateway.version", "it knows no doctor", func(i *installation) { i.pretend(gateway.Status{Version: "v0", Ready: true}) }, "", Warn, "gateway service restart"},
	{"gateway.ready", "its store does not answer", func(i *installation) {
		i.pretend(gateway.Status{Reason: "the disk is full"})
	}, "", Fail, "gateway service logs"},
	{"gateway.port", "another program has it", func(i *installation) {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", i.port))
		i.must(err)
		i.Cleanup(func() { l.Close() })
	}, "", Fail, "lsof -i"},
	{"gateway.port", "the config names another", func(i *installation) {
		i.serve()
		i.set("port", freePort(i.T))
		i.write()
	}, "", Fail, "restart it"},
	{"clock.steps", "the clock was set", func(i *installation) {
		i.serve()
		i.o.Now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	}, "", Warn, "timedatectl set-ntp true"},
	{"public.url", "a loopback address", func(i *installation) { i.set("publicBaseUrl", fmt.Sprintf("http://127.0.0.1:%d", i.port)) }, "", Warn, "HTTPS proxy"},
	{"public.url", "another port", func(i *installation) { i.set("publicBaseUrl", "https://"+publicName+":8443") }, "", Warn, "port 443"},
	{"public.dns", "no such name", func(i *installation) { i.o.Resolver = resolver{} }, "", Fail, "Make an A or AAAA record"},
	{"public.dns", "a private address", func(i *installation) { i.o.Resolver = resolver{netip.MustParseAddr("192.168.1.7")} }, "", Warn, "public address"},
	{"public.tls", "ended", func(i *installation) {
		i.issue(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
		i.proxy()
	}, "", Fail, "Renew it"},
	{"public.tls", "ends soon", func(i *installation) {
		i.issue(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(5 * 24 * time.Hour) })
		i.proxy()
	}, "", Warn, "does not renew it"},
	{"public.tls", "another name", func(i *installation) {
		i.issue(func(c *x509.Certificate) { c.DNSNames = []string{"other.example.com"} })
		i.proxy()
	}, "", Fail, "Give the proxy a certificate for this name"},
	{"public.tls", "an authority of one's own", func(i *installation) { i.proxy(); i.o.RootCAs = x509.NewCertPool() }, "", Fail, "fullchain.pem"},
	{"public.tls", "nothing listens", func(i *installation) { i.o.Dial = nobody }, "", Fail, "Start the proxy"},
	{"public.reach", "nothing listens", func(i *installation) { i.serve(); i.o.Dial = nobody }, "", Fail, "Start the proxy"},
	{"public.reach", "a redirect", serving(onPath("/mcp", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://www."+publicName+"/mcp", http.StatusMovedPermanently)
	})), "", Fail, "Set publicBaseUrl to the address"},
	{"public.reach", "a challenge page", serving(onPath("", answerWith(http.StatusForbidden))), "", Fail, "Switch off challenges"},
	{"public.reach", "a bad gateway", serving(onPath("", answerWith(http.StatusBadGateway))), "", Fail, "hand requests to 127.0.0.1"},
	{"public.reach", "another program", serving(onPath("", http.NotFound)), "", Fail, "hand every path"},
	{"public.reach", "another gateway", serving(before(func(r *http.Request) { r.URL.RawQuery = "" })), "", Fail, "which program the proxy hands requests to"},
	{"public.reach", "another Host", serving(before(func(r *http.Request) { r.Host = "backend.internal" })), "", Fail, "allowedHosts"},
	{"public.headers", "dropped", serving(before(func(r *http.Request) { r.Header.Del("Mcp-Method") })), "", Fail, "hand on all headers"},
	{"public.headers", "no token", serving(before(func(r *http.Request) { r.Header.Set("Authorization", "Basic eDp5") })), "", Fail, "hand on all headers"},
	{"public.headers", "nobody is named", serving(before(func(r *http.Request) { r.Header.Set("X-No-Name", "1") })), "", Warn, "X-Forwarded-For"},
	{"public.headers", "the Host is lost", serving(before(func(r *http.Request) { r.Host = "localhost" })), "", Warn, "proxy_set_header Host"},
	{"public.body", "a limit of 1 MB", serving(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > 1<<20 {
				answerWith(http.StatusRequestEntityTooLarge)(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}), "", Fail, "client_max_body_size"},
	{"public.stream", "buffered", serving(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.WriteHeader(rec.Code)
			w.Write(rec.Body.Bytes())
		})
	}), "", Fail, "proxy_buffering off"},
	{"public.stream", "cut", serving(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}), "", Fail, "proxy_read_timeout"},
	{"public.discovery", "changed", serving(rewriting("/.well-known/oauth-authorization-server", func(_ http.Header, b []byte) []byte { return append(b, '\n') })), "", Fail, "changes or caches"},
	{"public.discovery", "not handed on", serving(onPath("/.well-known/oauth-protected-resource", http.NotFound)), "", Fail, "/.well-known/ too"},
	{"clock.skew", "ten minutes", serving(rewriting("/mcp", func(h http.Header, b []byte) []byte {
		h.Set("Date", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat))
		return b
	})), "", Fail, "timedatectl set-ntp true"},
	{"oauth.roundtrip", "no registration", serving(onPath("/register", answerWith(http.StatusForbidden))), "", Fail, "POST /register"},
	{"oauth.roundtrip", "a page in front of the consent page", serving(onPath("/authorize", answerWith(http.StatusOK))), "", Fail, "put no page of its own in front"},
	{"oauth.roundtrip", "no tokens", serving(onPath("/token", answerWith(http.StatusForbidden))), "", Fail, "POST /token"},
	{"oauth.roundtrip", "another issuer", serving(rewriting("/.well-known/oauth-authorization-server", func(_ http.Header, b []byte) []byte {
		return bytes.ReplaceAll(b, []byte("/authorize"), []byte(":8443/authorize"))
	})), "", Fail, "See public.discovery"},
	{"hosts.ssh", "nothing listens", func(i *installation) {
		i.set("hosts", []object{{"id": "box", "name": "Box", "transport": "ssh", "target": "ssh://nobody@127.0.0.1:1", "allowedRoots": []string{"/srv"}, "remoteStateDir": "/srv/relay"}})
	}, "", Fail, "sshd runs there"},
	{"agents.daemon", "nothing listens", func(i *installation) { i.set("upstreamUrl", "http://127.0.0.1:1"); i.serve() }, "", Warn, "Start Paseo"},
	{"devices.link", "no websockets", func(i *installation) {
		i.exec(paired)
		i.front = before(func(r *http.Request) { r.Header.Del("Upgrade") })
		i.serve()
	}, "", Fail, "proxy_http_version 1.1"},
	{"devices.connected", "away", func(i *installation) { i.exec(paired); i.serve() }, "", Warn, "device status"},
	{"direct.projects", "no directory", func(i *installation) { i.must(os.Remove(filepath.Join(i.dir, "project"))) }, "", Fail, "Make the directory"},
	{"direct.projects", "outside of the roots", func(i *installation) { i.set("allowedRoots", []string{"/srv"}); i.serve() }, "", Fail, "allowedRoots"},
	{"direct.programs", "not installed", func(i *installation) { withProgram(i, "no-such-program") }, "", Fail, "Install it"},
	{"direct.programs", "not in the project", func(i *installation) { withProgram(i, "./build.sh") }, "", Fail, "Install it"},
	{"direct.path", "no directory", func(i *installation) { i.set("commands", object{"path": "/nowhere:/usr/bin"}); i.exec() }, "", Warn, "Correct commands.path"},
	{"commands.killmode", "control-group", units(func(u *Unit) { u.KillMode = "control-group" }), "", Fail, "gateway service install"},
	{"commands.logind", "it kills", func(i *installation) {
		units(func(u *Unit) { *u.Lingers = false })(i)
		i.o.LogindKills = func(context.Context) (bool, bool) { return true, true }
	}, "", Warn, "enable-linger"},
	{"events.subscriptions", "failing", func(i *installation) {
		i.exec(subscription(fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()), 500, 700)...)
	}, "", Warn, "gateway events resend"},
	{"events.subscriptions", "ending", func(i *installation) { i.exec(subscription("NULL", 24, 720)...) }, "", Warn, "subscribe again"},
	{"events.subscriptions", "ended", func(i *installation) { i.exec(subscription("NULL", -24, 720)...) }, "", Warn, "subscribe again"},
	{"events.deliveries", "one failed", func(i *installation) {
		now := time.Now().UnixMilli()
		i.exec(append(subscription("NULL", 500, 700),
			fmt.Sprintf(`INSERT INTO events (id, event_id, owner, name, subject, peer_id, body, created_at) VALUES (1, 'evt_1', 'local-owner:shared', 'peer.message', 'm', 'dot', x'', %d)`, now),
			fmt.Sprintf(`INSERT INTO event_deliveries (event, receiver, subscription, state, reason, next_at) VALUES (1, 1, 'sub_1', 'failed', 'http_500', %d)`, now))...)
	}, "", Warn, "gateway events list --dead"},
	{"wake.targets", "others can read the credential", func(i *installation) {
		target(i, 0o644, `{"url":"https://r.example/secret-routine","token":"secret-token"}`)
	}, "", Fail, "mode 0600"},
	{"wake.targets", "nothing listens", func(i *installation) {
		i.set("safedial", object{"allowLoopback": true})
		target(i, 0o600, `{"url":"https://127.0.0.1:1/secret-routine","token":"secret-token"}`)
	}, "", Fail, "this machine reaches the internet"},
	{"wake.targets", "another generation", func(i *installation) {
		i.set("peerWakeTargets", []object{{"owner": "local-owner:shared", "peerId": "bot", "generation": 2, "routineId": "r", "credentialFile": filepath.Join(i.dir, "none")}})
		i.serve()
	}, "", Warn, "register_peer"},
	{"backup.age", "none", func(i *installation) { i.exec() }, "", Warn, "gateway backup"},
	{"backup.age", "old", func(i *installation) {
		i.backup()
		i.o.Now = func() time.Time { return time.Now().Add(5 * 24 * time.Hour) }
	}, "", Warn, "gateway backup"},
	{"backup.age", "it fails", func(i *installation) {
		i.pretend(gateway.Status{Ready: true, Warnings: []gateway.Warning{{Name: "backup_failed", Text: "The last backup failed: no space"}}})
	}, "", Fail, "gateway backup"},
	{"backup.newest", "damaged", func(i *installation) {
		i.must(os.WriteFile(filepath.Join(i.backup(), store.FileName), []byte("x"), 0o600))
	}, "", Fail, "Make a new one"},
	{"service.unit", "none", func(i *installation) { i.o.Units = func(context.Context) []Unit { return nil } }, "", Warn, "gateway service install"},
	{"service.unit", "its program is gone", units(func(u *Unit) { u.Program = "/nowhere/gateway" }), "", Fail, "gateway service install"},
	{"service.unit", "not enabled", units(func(u *Unit) { u.Enabled = false }), "", Warn, "gateway service install"},
	{"service.unit", "of an older version", units(func(u *Unit) { u.Text = "[Service]\nExecStart=/bin/sh serve\n" }), "", Warn, "systemctl edit"},
	{"service.unit", "not running", units(func(u *Unit) { u.Running = false }), "", Warn, "gateway service logs"},
	{"service.unit", "two of them", func(i *installation) { i.o.Units = func(context.Context) []Unit { return []Unit{i.unit(), i.unit()} } }, "", Warn, "Keep one"},
	{"service.linger", "no", units(func(u *Unit) { *u.Lingers = false }), "", Warn, "loginctl enable-linger"},
	{"client.address", "a loopback address", func(i *installation) { i.set("publicBaseUrl", fmt.Sprintf("http://127.0.0.1:%d", i.port)) }, "chatgpt", Fail, "HTTPS proxy"},
	{"client.address", "another port", func(i *installation) { i.set("publicBaseUrl", "https://"+publicName+":8443") }, "claude", Fail, "port 443"},
	{"client.challenge", "no WWW-Authenticate", serving(rewriting("/mcp", func(h http.Header, b []byte) []byte { h.Del("WWW-Authenticate"); return b })), "grok", Fail, "status 401"},
	{"client.challenge", "an error in it", serving(rewriting("/mcp", func(h http.Header, b []byte) []byte {
		h.Set("WWW-Authenticate", h.Get("WWW-Authenticate")+`, error="invalid_token"`)
		return b
	})), "grok", Fail, "status 401"},
	{"client.metadata", "no documents as ids", serving(rewriting("/.well-known/oauth-authorization-server", func(_ http.Header, b []byte) []byte {
		return bytes.ReplaceAll(b, []byte("client_id_metadata_document_supported"), []byte("x"))
	})), "chatgpt", Fail, "public.discovery"},
	{"client.registration", "refused by the proxy", serving(onPath("/register", answerWith(http.StatusForbidden))), "cursor", Fail, "POST /register"},
	{"client.connected", "never", func(i *installation) { i.exec() }, "chatgpt", Warn, "Create app"},
}

func nobody(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("connection refused")
}

func withProgram(i *installation, program string) {
	i.set("direct", object{"projects": []object{{"id": "p", "path": filepath.Join(i.dir, "project"), "commandMode": "registered", "commands": []object{{"name": "run", "argv": []string{program}}}}}})
	i.exec()
}

// damage spoils all pages of the database but the first.
func damage(i *installation) {
	i.exec()
	path := filepath.Join(i.state(), store.FileName)
	raw, err := os.ReadFile(path)
	i.must(err)
	for k := 4200; k < len(raw); k++ {
		raw[k] ^= 0xa5
	}
	i.must(os.WriteFile(path, raw, 0o600))
}

// TestEachCheckFindsWhatItIsFor breaks an installation in each way, has the check look,
// and reads its advice.
func TestEachCheckFindsWhatItIsFor(t *testing.T) {
	for _, b := range waysToBreak {
		t.Run(b.id+"/"+strings.ReplaceAll(b.how, " ", "_"), func(t *testing.T) {
			t.Parallel()
			i := install(t)
			b.break_(i)
			i.o.Client = b.client
			r := i.run(b.id)
			got, ok := find(r, b.id, b.want)
			if !ok {
				t.Fatalf("want %s, got %+v", b.want, r.Results)
			}
			if !strings.Contains(got.Next, b.advice) {
				t.Errorf("the advice is %q, want something with %q", got.Next, b.advice)
			}
			if got.Evidence == "" || got.Why == "" || !strings.HasSuffix(got.Evidence, ".") {
				t.Errorf("evidence %q, why %q", got.Evidence, got.Why)
			}
			for _, secret := range append(i.seen, "very-secret-path", "secret-routine", "secret-token", "correct horse") {
				if len(secret) > 5 && strings.Contains(fmt.Sprintf("%+v", r.Results), secret) {
					t.Errorf("%q stands in %+v", secret, r.Results)
				}
			}
		})
	}
}

func TestEveryCheckIsBroken(t *testing.T) {
	var have []string
	for _, b := range waysToBreak {
		have = append(have, b.id)
		if !slices.Contains(IDs(), b.id) {
			t.Errorf("%s is no check", b.id)
		}
	}
	for _, id := range IDs() {
		if !slices.Contains(have, id) {
			t.Errorf("nothing breaks %s", id)
		}
	}
}
