package config

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// home is an environment with only HOME.
func home(name string) string {
	if name == "HOME" {
		return "/home/you"
	}
	return ""
}

func TestDefaults(t *testing.T) {
	c, err := Default(home)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.PublicBaseURL, "http://127.0.0.1:6768"; got != want || !c.Loopback() {
		t.Errorf("publicBaseUrl is %q, loopback %v; want %q", got, c.Loopback(), want)
	}
	if got, want := c.MCPURL(), "http://127.0.0.1:6768/mcp"; got != want {
		t.Errorf("the MCP address is %q, want %q", got, want)
	}
	if got, want := c.StateDir, "/home/you/.local/state/agent-relay"; got != want {
		t.Errorf("stateDir is %q, want %q", got, want)
	}
	if got, want := c.OwnerTokenFile, "/home/you/.local/state/agent-relay/owner.json"; got != want {
		t.Errorf("ownerTokenFile is %q, want %q", got, want)
	}
	if c.SharedOwner {
		t.Error("sharedOwner is on without being asked for")
	}
	if c.Mailbox.Limits != (Limits{60, 600}) || c.Audit.KeepDays != 365 {
		t.Errorf("limits %v, keepDays %d", c.Mailbox.Limits, c.Audit.KeepDays)
	}
	if len(c.Proxies()) != 2 || !c.Proxies()[0].Addr().IsLoopback() || !c.Proxies()[1].Addr().IsLoopback() {
		t.Errorf("the trusted proxies are %v, want loopback", c.Proxies())
	}
}

func TestEventTimes(t *testing.T) {
	c, _, err := Parse("c.json", []byte(`{"events": {"defaultTtl": "12h", "minTtl": "30s", "maxTtl": "45d"}}`), home)
	if err != nil {
		t.Fatal(err)
	}
	if standard, least, most := c.Events.TTL(); standard != 12*time.Hour || least != 30*time.Second || most != 45*24*time.Hour {
		t.Errorf("the times are %s, %s and %s", standard, least, most)
	}
	if c, err = Default(home); err != nil {
		t.Fatal(err)
	}
	if standard, _, _ := c.Events.TTL(); standard != 30*24*time.Hour {
		t.Errorf("a subscription lives %s", standard)
	}
}

func TestDefaultPlaces(t *testing.T) {
	for _, tt := range []struct {
		name          string
		env           map[string]string
		config, state string
	}{
		{"home", map[string]string{"HOME": "/h"}, "/h/.config/agent-relay/config.json", "/h/.local/state/agent-relay"},
		{"xdg", map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/agent-relay/config.json", "/s/agent-relay"},
		{"a relative xdg directory is ignored", map[string]string{"HOME": "/h", "XDG_CONFIG_HOME": "c", "XDG_STATE_HOME": "s"}, "/h/.config/agent-relay/config.json", "/h/.local/state/agent-relay"},
		{"xdg without home", map[string]string{"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/agent-relay/config.json", "/s/agent-relay"},
		{"nothing", nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			getenv := func(name string) string { return tt.env[name] }
			for _, got := range []struct {
				path func(func(string) string) (string, error)
				want string
			}{{DefaultPath, tt.config}, {DefaultStateDir, tt.state}} {
				path, err := got.path(getenv)
				if path != got.want || (err != nil) != (got.want == "") {
					t.Errorf("got %q, %v; want %q", path, err, got.want)
				}
			}
		})
	}
}

func TestPublicBaseURL(t *testing.T) {
	for _, tt := range []struct{ in, want, problem string }{
		{"https://gateway.example.com", "https://gateway.example.com", ""},
		{"https://gateway.example.com/", "https://gateway.example.com", ""},
		{"https://GateWay.example.com:443/", "https://gateway.example.com", ""},
		{"https://gateway.example.com:8443", "https://gateway.example.com:8443", ""},
		{"https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443", ""},
		{"http://127.0.0.1:6768", "http://127.0.0.1:6768", ""},
		{"http://localhost:6768/", "http://localhost:6768", ""},
		{"https://gateway.example.com/mcp", "", `write "https://gateway.example.com"`},
		{"https://gateway.example.com/mcp/", "", `write "https://gateway.example.com"`},
		{"https://gateway.example.com/relay", "", "must not have a path"},
		{"https://gateway.example.com/?", "", "without user, query or fragment"},
		{"https://gateway.example.com/#", "", "without user, query or fragment"},
		{"https://me@gateway.example.com", "", "without user, query or fragment"},
		{"http://gateway.example.com", "", "must be https"},
		{"http://127.0.0.1", "", "http://127.0.0.1:6768"},
		{"http://127.0.0.1:9", "", "http://127.0.0.1:6768"},
		{"http://[::1]:6768", "", "must be https"},
		{"gateway.example.com", "", "must be an https origin"},
		{"ftp://gateway.example.com", "", "must be an https origin"},
		{"https://", "", "must be an https origin"},
		{"", "", "must be an https origin"},
		{"https://gateway.example.com:0", "", "port"},
		{"https://gateway.example.com:", "", "colon"},
		{"https://gäteway.example.com", "", "xn--"},
		{"https://gate way.example.com", "", "https"},
	} {
		t.Run(tt.in, func(t *testing.T) {
			raw, _ := json.Marshal(map[string]any{"publicBaseUrl": tt.in})
			c, _, err := Parse("c.json", raw, home)
			if tt.problem == "" {
				if err != nil || c.PublicBaseURL != tt.want {
					t.Fatalf("got %+v, %v; want %q", c, err, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("got %v, want a problem with %q", err, tt.problem)
			}
		})
	}
}

// The seed's own example, with projects, a webhook target and a node command.
const seed = `{
  "publicBaseUrl": "https://gateway.example.com",
  "port": 6768,
  "sharedOwner": true,
  "upstreamUrl": "http://127.0.0.1:6767/mcp/agents",
  "stateDir": "/Users/you/.local/share/local-agents-mcp",
  "ownerTokenFile": "/Users/you/.local/share/local-agents-mcp/owner.json",
  "paseoCommand": "/Applications/Paseo.app/Contents/Resources/bin/paseo",
  "allowedRoots": ["/Users/you/Projects"],
  "hosts": [
    {
      "id": "wsl",
      "name": "WSL",
      "transport": "ssh",
      "target": "ssh://linux-host",
      "allowedRoots": ["/home/you/project"],
      "remoteStateDir": "/home/you/.local-agents-mcp-bridge/gateway",
      "nodeCommand": "node"
    },
    {
      "id": "box",
      "name": "Box",
      "transport": "ssh",
      "target": "ssh://me@box.example.com:22/?daemonPort=6767",
      "allowedRoots": ["/srv"],
      "remoteStateDir": "/srv/state",
      "nodeCommand": "/usr/bin/node",
      "direct": { "projects": [{ "id": "srv", "path": "/srv/app" }] }
    }
  ],
  "direct": {
    "projects": [
      {
        "id": "example",
        "name": "Example project",
        "path": "$HOME/Projects/example",
        "read": true,
        "write": false,
        "commandMode": "registered",
        "commands": [{ "name": "test", "argv": ["npm", "test"] }]
      }
    ]
  },
  "peerWakeTargets": [
    {
      "owner": "local-owner:shared",
      "peerId": "grok-bot",
      "generation": 1,
      "routineId": "mcp-mailbox",
      "credentialFile": "~/.local/share/local-agents-mcp/grok-wake/privateSecret.json"
    }
  ]
}`

func TestSeedConfig(t *testing.T) {
	if err := validate(t, []byte(seed)); err != nil {
		t.Errorf("against the schema: %v", err)
	}
	c, warnings, err := Parse("c.json", []byte(seed), home)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, w := range warnings {
		keys = append(keys, w.Key)
		if w.Line == 0 || w.Text == "" {
			t.Errorf("the warning %+v has no line or no text", w)
		}
	}
	want := []string{"paseoCommand", "hosts[].nodeCommand", "direct.projects[0].path"}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if got, want := c.Direct.Projects[0].Path, "/home/you/Projects/example"; got != want {
		t.Errorf("the project's path is %q, want %q", got, want)
	}
	if got, want := c.PeerWakeTargets[0].CredentialFile, "/home/you/.local/share/local-agents-mcp/grok-wake/privateSecret.json"; got != want {
		t.Errorf("the credential file is %q, want %q", got, want)
	}
	if got := c.PeerWakeTargets[0].Scheme; got != "bearer" {
		t.Errorf("the scheme of a target that names none is %q", got)
	}
	if p := c.Hosts[1].Direct.Projects[0]; !p.Read || p.Write || p.CommandMode != "disabled" || p.Name != "srv" {
		t.Errorf("the defaults of a project are %+v", p)
	}
}

// Every form of a target, and the longest directory, as the schema has them too.
func TestHosts(t *testing.T) {
	for _, target := range []string{"ssh://box", "ssh://my_box", "ssh://me@box:22/", "ssh://[2001:db8::1]:22?daemonPort=7000", "ssh://box?daemonSocket=/run/paseo.sock"} {
		raw, _ := json.Marshal(map[string]any{"hosts": []any{map[string]any{"id": "box", "name": "Box", "transport": "ssh", "target": target, "allowedRoots": []string{"/srv"}, "remoteStateDir": "/" + strings.Repeat("a", 78), "nodeCommand": "node"}}})
		c, _, err := Parse("c.json", raw, home)
		if err != nil || c.Hosts[0].Target != target {
			t.Errorf("%s: %v", target, err)
		}
		if err := validate(t, raw); err != nil {
			t.Errorf("%s against the schema: %v", target, err)
		}
	}
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"empty", ``, []string{"line 1: is not complete JSON: it ends too early"}},
		{"cut off", "{\n\"port\": 1,", []string{"line 2: is not complete JSON: it ends too early"}},
		{"comment", "{\n  // no\n}", []string{"line 2: is not JSON: invalid character '/'"}},
		{"two values", "{}\n{}", []string{"line 2: has something behind the last }: remove it"}},
		{"list", `[]`, []string{"line 1: must be one JSON object: { ... }"}},
		{"deep", strings.Repeat("[", 40), []string{"line 1: is not JSON: it is nested too deeply"}},
		{"unknown", "{\n\"prot\": 1,\n\"sharedowner\": true,\n\"zzzzzzzzz\": 0\n}", []string{
			`line 2: prot: is not a key of this file: did you mean "port"?`,
			`line 3: sharedowner: is not a key of this file: did you mean "sharedOwner"?`,
			`line 4: zzzzzzzzz: is not a key of this file: remove it (the keys here are $schema, publicBaseUrl, port,`,
		}},
		{"unknown inside", "{\"mailbox\": {\n\"limits\": {\"perPair\": 3}}}", []string{
			`line 2: mailbox.limits.perPair: is not a key of this file: remove it (the keys here are pairPerHour, ownerPerHour)`}},
		{"twice", "{\"port\": 1000,\n\"port\": 1001}", []string{"line 2: port: appears a second time: keep one"}},
		{"types", "{\n\"port\": \"6768\",\n\"sharedOwner\": 1,\n\"stateDir\": [],\n\"allowedRoots\": \"/x\",\n\"log\": null,\n\"audit\": 3, \"trustedProxies\": [1.5]}", []string{
			"line 2: port: must be a whole number",
			"line 3: sharedOwner: must be true or false",
			"line 4: stateDir: must be a string in double quotes",
			"line 5: allowedRoots: must be a list: [ ... ]",
			"line 6: log: must not be null: remove the key to get its default",
			"line 7: audit: must be an object: { ... }",
			"line 7: trustedProxies[0]: must be a string in double quotes",
		}},
		{"numbers", "{\n\"port\": 0,\n\"audit\": {\"keepDays\": 0},\n\"mailbox\": {\"limits\": {\"pairPerHour\": -1, \"ownerPerHour\": 1e3}}}", []string{
			"line 2: port: must be from 1 to 65535",
			"line 3: audit.keepDays: must be from 1 to 36500",
			"line 4: mailbox.limits.ownerPerHour: must be a whole number",
			"line 4: mailbox.limits.pairPerHour: must be from 0 to 1000000",
		}},
		{"paths", "{\n\"stateDir\": \"state\",\n\"ownerTokenFile\": \"~you/x\",\n\"allowedRoots\": [\"$XDG_DATA_HOME/x\", \"\"]}", []string{
			"line 2: stateDir: must be an absolute path (a leading ~ or $HOME is expanded, nothing else)",
			"line 3: ownerTokenFile: must be an absolute path",
			"line 4: allowedRoots[0]: must be an absolute path",
			"line 4: allowedRoots[1]: must not be empty",
		}},
		{"the root as state", `{"stateDir": "/"}`, []string{"line 1: stateDir: must not be the root directory"}},
		{"a state too deep for a socket", `{"stateDir": "/` + strings.Repeat("d", 93) + `"}`, []string{"would have a path of 105 bytes, and a socket's path has at most 103"}},
		{"log", `{"log": {"level": "loud", "format": "xml"}}`, []string{
			"log.level: must be one of debug, info, warn, error", "log.format: must be one of text, json"}},
		{"proxies", `{"trustedProxies": ["proxy", "10.0.0.1/8", "10.0.0.0/8", "10.0.0.0/8", "fe80::1%eth0"]}`, []string{
			"trustedProxies[0]: must be an address", `trustedProxies[1]: has bits set behind the /8: write "10.0.0.0/8"`,
			"trustedProxies[3]: is there twice", "trustedProxies[4]: must be an address"}},
		{"origins and hosts", `{"allowedOrigins": ["https://a.example.com/", "*", "https://A.example.com", "https://b.example.com:8443"], "allowedHosts": ["https://a", "a:1", "ok.example.com", "::1"]}`, []string{
			"allowedOrigins[0]: must be an origin", "allowedOrigins[1]: must be an origin",
			`allowedOrigins[2]: must be in lower case, as browsers send it: write "https://a.example.com"`,
			"allowedHosts[0]: must be a host name", "allowedHosts[1]: must be a host name"}},
		{"redirects", `{"oauth": {"redirects": ["cursor://x.y/cb", "https://ok.example.com/cb", "https://ok.example.com/o/{id}",
			"http://a.example.com/cb", "javascript:alert(1)", "https://a.example.com/{id}/cb", "https://*.example.com/cb", "https://a.example.com/cb#f", "/cb"]}}`, []string{
			"line 2: oauth.redirects[3]: ", "use https", "oauth.redirects[4]: ", "oauth.redirects[5]: ", "oauth.redirects[6]: ", "oauth.redirects[7]: ", "oauth.redirects[8]: "}},
		{"upstream", `{"upstreamUrl": "http://me:secret@127.0.0.1:6767"}`, []string{"upstreamUrl: must be the address of the daemon without user and password"}},
		{"hosts", `{"hosts": [{"id": "mac", "name": " ", "transport": "telnet", "target": "ssh://me:pw@h", "allowedRoots": [], "remoteStateDir": "~/x"}, {"id": "Up"}]}`, []string{
			"hosts[0].id: must not be mac", "hosts[0].name: must have 1 to 80", `hosts[0].transport: must be "ssh"`, "hosts[0].target: must not contain a password",
			"hosts[0].allowedRoots: must have 1 to 128", "hosts[0].remoteStateDir: must be an absolute path on that machine",
			"hosts[1].name: is missing", "hosts[1].transport: is missing", "hosts[1].target: is missing", "hosts[1].allowedRoots: is missing", "hosts[1].remoteStateDir: is missing",
			"hosts[1].id: must be 1 to 32 lower-case"}},
		{"ssh hosts", `{"hosts": [
			{"id": "local", "name": "a", "transport": "ssh", "target": "ssh://[::1", "allowedRoots": ["~/x", "/a/../b"], "remoteStateDir": "/"},
			{"id": "a", "name": "a", "transport": "ssh", "target": "ssh://a?daemonPort=0", "allowedRoots": ["/"], "remoteStateDir": "/a b"},
			{"id": "b", "name": "b", "transport": "ssh", "target": "ssh://b?daemonSocket=b", "allowedRoots": ["/"], "remoteStateDir": "/a/./b"},
			{"id": "b", "name": "c", "transport": "ssh", "target": "ssh://c?x=1", "allowedRoots": ["/"], "remoteStateDir": "/` + strings.Repeat("a", 79) + `"}]}`, []string{
			"line 2: hosts[0].id: must not be local", "hosts[0].target: must be ssh://", "hosts[0].allowedRoots[0]: must be an absolute path", "hosts[0].allowedRoots[1]: must be an absolute path",
			"hosts[0].remoteStateDir: must be an absolute path", "line 3: hosts[1].target: has a daemonPort", "hosts[1].remoteStateDir: must be an absolute path",
			"hosts[2].target: has a daemonSocket", "hosts[2].remoteStateDir: must be an absolute path", "hosts[3].id: is there twice", "hosts[3].target: has a key",
			"hosts[3].remoteStateDir: is too long: a socket in it would have a path of 104 bytes, and one has at most 103. Choose a directory of at most 79 bytes"}},
		{"projects", `{"direct": {"projects": [{"id": "a", "path": "/a", "commandMode": "all"}, {"id": "a", "path": "a", "commands": [{"name": "-", "argv": []}, {"name": "t", "argv": ["-x"]}]}]}}`, []string{
			"direct.projects[1].path: must be an absolute path", "direct.projects[0].commandMode: must be one of disabled, registered, full", "direct.projects[1].id: is there twice",
			"direct.projects[1].commands[0].name: must be", "direct.projects[1].commands[0].argv: must have 1 to 64", "direct.projects[1].commands[1].argv: must begin with the program"}},
		{"commands", `{"commands": {"path": "/bin:bin", "passEnvironment": ["A B"], "runningPerOwner": 0, "runningPerHost": 0, "outputBytes": 1, "storedBytes": 1, "keepDays": 0}}`, []string{
			"commands.path: must be absolute", "commands.passEnvironment[0]: must be the name", "commands.runningPerOwner: must be from", "commands.runningPerHost: must be from",
			"commands.outputBytes: must be from", "commands.storedBytes: must be from", "commands.keepDays: must be from"}},
		{"transfers", `{"transfers": {"maxFileBytes": 0, "spoolBytes": 9, "perOwner": 0, "linkLife": "8d"}}`, []string{
			"transfers.maxFileBytes: must be from", "transfers.perOwner: must be from", "transfers.linkLife: must be at most 7d"}},
		{"a small spool", `{"transfers": {"spoolBytes": 9}}`, []string{"transfers.spoolBytes: must not be smaller than transfers.maxFileBytes"}},
		{"wake targets", `{"peerWakeTargets": [{"owner": "me", "peerId": "", "generation": 0, "routineId": " ", "credentialFile": "Bearer hunter2"}, {"owner": "local-owner:x", "peerId": "p", "generation": 1, "routineId": "r", "credentialFile": "env:1", "scheme": "basic"}]}`, []string{
			"peerWakeTargets[0].owner: must be", "peerWakeTargets[0].peerId: must be", "peerWakeTargets[0].generation: must be", "peerWakeTargets[0].routineId: must be",
			"peerWakeTargets[0].credentialFile: must be the absolute path", "peerWakeTargets[1].credentialFile: must name an environment variable", "peerWakeTargets[1].scheme: must be one of"}},
		{"events", `{"events": {"defaultTtl": "1 day", "minTtl": "0s", "maxTtl": "1w", "maxSubscriptions": 0, "challengesPerMinute": 0, "keepDays": 0, "errorCodes": "draft"}}`, []string{
			"events.defaultTtl: must be a number and", "events.minTtl: must be a number and", "events.maxTtl: must be a number and", "events.maxSubscriptions: must be from",
			"events.challengesPerMinute: must be from", "events.keepDays: must be from", "events.errorCodes: must be one of sketch, sep"}},
		{"a default outside", `{"events": {"maxTtl": "7d"}}`, []string{"events.defaultTtl: must lie between events.minTtl, which is 1m, and events.maxTtl, which is 7d"}},
		{"crossed bounds", `{"events": {"minTtl": "2h", "maxTtl": "90m"}}`, []string{"events.maxTtl: must not be shorter than events.minTtl"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := Parse("c.json", []byte(tt.in), home)
			var invalid *InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an InvalidError", err)
			}
			if n := keys(tt.want); len(invalid.Problems) != n {
				t.Errorf("got %d problems, want %d: %v", len(invalid.Problems), n, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in %v", want, err)
				}
			}
			for _, secret := range []string{"hunter2", "me:secret", "me:pw"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the problem repeats %q: %v", secret, err)
				}
			}
		})
	}
}

// keys counts the expectations that begin a problem; the others are a part of
// the one before.
func keys(want []string) int {
	n := 0
	for _, w := range want {
		if strings.Contains(w, ": ") {
			n++
		}
	}
	return max(n, 1)
}

func TestLoopbackModeIsWarnedOf(t *testing.T) {
	_, warnings, err := Parse("c.json", []byte(`{"safedial": {"allowLoopback": true}, "paseoCommand": "/usr/bin/paseo"}`), home)
	if err != nil || len(warnings) != 2 || warnings[0].Key != "paseoCommand" || warnings[1].Key != "safedial.allowLoopback" {
		t.Errorf("got %v, %v", warnings, err)
	}
}

func TestWithoutHome(t *testing.T) {
	nowhere := func(string) string { return "" }
	if _, _, err := Parse("c.json", []byte(`{}`), nowhere); err == nil || !strings.Contains(err.Error(), "HOME is not set") {
		t.Errorf("got %v", err)
	}
	if _, _, err := Parse("c.json", []byte(`{"stateDir": "~/x"}`), nowhere); err == nil || !strings.Contains(err.Error(), "HOME is not set") {
		t.Errorf("got %v", err)
	}
	if _, _, err := Parse("c.json", []byte(`{"stateDir": "/x"}`), nowhere); err != nil {
		t.Errorf("an absolute stateDir needs no HOME: %v", err)
	}
}

func TestLoadFiles(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Load(filepath.Join(dir, "none.json"), home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	var invalid *InvalidError
	if _, _, err := Load(dir, home); err == nil || errors.As(err, &invalid) {
		t.Errorf("a directory: %v", err)
	}
	big := filepath.Join(dir, "big.json")
	if err := os.WriteFile(big, []byte(strings.Repeat(" ", maxFile+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(big, home); !errors.As(err, &invalid) {
		t.Errorf("a large file: %v", err)
	}
	bom := filepath.Join(dir, "bom.json")
	if err := os.WriteFile(bom, []byte("\ufeff{\"port\": 7000}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, _, err := Load(bom, home); err != nil || c.Port != 7000 || c.PublicBaseURL != "http://127.0.0.1:7000" {
		t.Errorf("a byte order mark: %+v, %v", c, err)
	}
}

// What is accepted must load again from its effective form, unchanged: that is
// what "config check" prints and an owner may paste.
func FuzzParse(f *testing.F) {
	for _, s := range []string{seed, `{}`, ``, `{"port": 1e3}`, `{"hosts": [{}]}`, "{\"a\u001b\": [[{}]]}", `{"trustedProxies": ["::ffff:1.2.3.4", "1.2.3.4/32"]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, _, err := Parse("c.json", raw, home)
		if err != nil {
			var invalid *InvalidError
			if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
				t.Fatalf("%v is not a list of problems", err)
			}
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }) {
				t.Fatalf("control characters in %q", err)
			}
			return
		}
		again, _, err := Parse("c.json", c.JSON(), home)
		if err != nil {
			t.Fatalf("the effective config is refused: %v\n%s", err, c.JSON())
		}
		if diff := cmp.Diff(string(c.JSON()), string(again.JSON())); diff != "" {
			t.Fatalf("the effective config changes:\n%s", diff)
		}
	})
}
