package e2e

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// clientWay is one way in which a client makes itself known, and what it sends
// from then on. docs/clients.md has the same table.
type clientWay struct {
	client string // its name in docs/clients.md

	// One of these says how it registers.
	known    string // the id of a metadata document of which the gateway has a copy
	document string // a metadata document without its client_id, published at the address at
	at       string
	dynamic  string // the body of a registration (RFC 7591)
	added    string // the options of "gateway clients add"

	twice     bool     // it registers two times for one connection, and may use either
	redirects []string // it may use each; of those on loopback the port is its own
	scope     string
	resource  resourceForm
	state     int // characters, 32 when 0
}

// resourceForm is how a client spells the resource (RFC 8707).
type resourceForm string

const (
	published resourceForm = "as published"
	slash     resourceForm = "with a final slash"
	absent    resourceForm = "none"
)

const (
	bothGrants = `"grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]`
	withDevice = `"grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"], "response_types": ["code"]`
	someID     = "Ab12_cd-34EF"                // an id that a client has in its addresses
	allScopes  = "local-agents offline_access" // of clients that add offline_access when the server's metadata has it
	ourScope   = "local-agents"
)

// clientTable is every client that this gateway is made for, with what it was
// seen to send or says that it sends.
var clientTable = []clientWay{
	{client: "ChatGPT", known: "https://chatgpt.com/oauth/client.json",
		redirects: []string{"https://chatgpt.com/connector_platform_oauth_redirect"}, scope: allScopes, resource: published},
	{client: "ChatGPT", at: "https://chatgpt.com/oauth/{id}/client.json", document: `{"client_name": "ChatGPT", "client_uri": "https://chatgpt.com/",
		"redirect_uris": ["https://chatgpt.com/connector/oauth/Ab12_cd-34EF"], ` + bothGrants + `, "token_endpoint_auth_method": "private_key_jwt",
		"token_endpoint_auth_methods_supported": ["none", "private_key_jwt"], "token_endpoint_auth_signing_alg": "RS256", "jwks_uri": "https://chatgpt.com/oauth/jwks.json"}`,
		redirects: []string{"https://chatgpt.com/connector/oauth/Ab12_cd-34EF"}, scope: allScopes, resource: published},
	{client: "ChatGPT", dynamic: `{"client_name": "ChatGPT", "redirect_uris": ["https://chatgpt.com/connector/oauth/Ab12_cd-34EF"], ` + bothGrants + `,
		"token_endpoint_auth_method": "client_secret_post"}`,
		redirects: []string{"https://chatgpt.com/connector/oauth/Ab12_cd-34EF"}, scope: allScopes, resource: published},
	{client: "ChatGPT", added: "--redirect https://chatgpt.com/connector/oauth/Ab12_cd-34EF",
		redirects: []string{"https://chatgpt.com/connector/oauth/Ab12_cd-34EF"}, scope: ourScope, resource: published},
	{client: "ChatGPT", added: "--secret --redirect https://chat.openai.com/connector/oauth/Ab12_cd-34EF",
		redirects: []string{"https://chat.openai.com/connector/oauth/Ab12_cd-34EF"}, scope: ourScope, resource: published},

	{client: "Codex", known: "https://chatgpt.com/oauth/codex/client.json",
		redirects: []string{"http://127.0.0.1:37819/callback", "http://localhost:37820/callback"}, scope: ourScope, resource: published},
	{client: "Codex", at: "https://chatgpt.com/oauth/codex/{id}/client.json", document: `{"client_name": "Codex", "application_type": "native",
		"redirect_uris": ["http://127.0.0.1/callback/Ab12_cd-34EF", "http://localhost/callback/Ab12_cd-34EF"], ` + bothGrants + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://127.0.0.1:37819/callback/Ab12_cd-34EF"}, scope: ourScope, resource: published},
	{client: "Codex", dynamic: `{"client_name": "Codex", "application_type": "native", "redirect_uris": ["http://127.0.0.1:37819/callback/Ab12_cd-34EF"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://127.0.0.1:37819/callback/Ab12_cd-34EF"}, scope: allScopes, resource: published},
	{client: "Codex", added: "--redirect http://127.0.0.1/callback",
		redirects: []string{"http://127.0.0.1:5555/callback"}, scope: ourScope, resource: published},

	{client: "Claude", known: "https://claude.ai/oauth/mcp-oauth-client-metadata",
		redirects: []string{"https://claude.ai/api/mcp/auth_callback", "https://claude.com/api/mcp/auth_callback"}, scope: allScopes, resource: published},
	{client: "Claude", at: "https://claude.ai/oauth/mcp-oauth-client-metadata", document: `{"client_name": "Claude", "client_uri": "https://claude.ai",
		"redirect_uris": ["https://claude.ai/api/mcp/auth_callback"], "response_types": ["code"], "token_endpoint_auth_method": "none",
		"grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:jwt-bearer"]}`,
		redirects: []string{"https://claude.ai/api/mcp/auth_callback"}, scope: allScopes, resource: published},
	{client: "Claude", twice: true, dynamic: `{"client_name": "Claude", "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "client_secret_post"}`,
		redirects: []string{"https://claude.ai/api/mcp/auth_callback"}, scope: allScopes, resource: published},
	{client: "Claude", dynamic: `{"client_name": "Claude", "redirect_uris": ["https://claude.ai/api/mcp/auth_callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none", "scope": "claudeai"}`,
		redirects: []string{"https://claude.ai/api/mcp/auth_callback"}, scope: "claudeai", resource: published},
	{client: "Claude", added: "--secret --redirect https://claude.ai/api/mcp/auth_callback",
		redirects: []string{"https://claude.ai/api/mcp/auth_callback"}, scope: allScopes, resource: published},

	{client: "Claude Code", known: "https://claude.ai/oauth/claude-code-client-metadata",
		redirects: []string{"http://localhost:3118/callback", "http://127.0.0.1:62184/callback"}, scope: allScopes, resource: published},
	{client: "Claude Code", dynamic: `{"client_name": "Claude Code (relay)", "application_type": "native", "redirect_uris": ["http://localhost:3118/callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://localhost:3118/callback"}, scope: allScopes, resource: published},

	{client: "Cursor", dynamic: `{"client_name": "Cursor", "application_type": "web", "redirect_uris": ["http://localhost:8787/callback",
		"https://www.cursor.com/agents/mcp/oauth/callback", "cursor://anysphere.cursor-mcp/oauth/callback"], ` + bothGrants + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://localhost:8787/callback", "https://www.cursor.com/agents/mcp/oauth/callback", "cursor://anysphere.cursor-mcp/oauth/callback"},
		scope:     ourScope, resource: published},
	{client: "Cursor", dynamic: `{"client_name": "Cursor", "redirect_uris": ["cursor://anysphere.cursor-mcp/oauth/callback"], ` + bothGrants + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"cursor://anysphere.cursor-mcp/oauth/callback"}, resource: published},
	{client: "Cursor", added: "--redirect cursor://anysphere.cursor-mcp/oauth/callback --redirect http://localhost:8787/callback",
		redirects: []string{"cursor://anysphere.cursor-mcp/oauth/callback", "http://localhost:8787/callback"}, scope: ourScope, resource: published},

	{client: "Grok", dynamic: `{"client_name": "Grok", "redirect_uris": ["https://grok.com/connectors-oauth-exchange-code/"], ` + bothGrants + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"https://grok.com/connectors-oauth-exchange-code/"}, scope: ourScope, resource: published},
	{client: "Grok", added: "--redirect https://grok.com/connectors-oauth-exchange-code/",
		redirects: []string{"https://grok.com/connectors-oauth-exchange-code/"}, resource: published},

	{client: "Grok Bot", dynamic: `{"client_name": "Cursor", "redirect_uris": ["http://localhost:8787/callback",
		"https://www.cursor.com/agents/mcp/oauth/callback", "cursor://anysphere.cursor-mcp/oauth/callback"], ` + bothGrants + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"https://www.cursor.com/agents/mcp/oauth/callback"}, resource: published},

	{client: "VS Code", known: "https://vscode.dev/oauth/client-metadata.json",
		redirects: []string{"http://127.0.0.1:33418/", "http://127.0.0.1:49152/", "https://vscode.dev/redirect"}, scope: ourScope, resource: published},
	{client: "VS Code", at: "https://vscode.dev/oauth/client-metadata.json", document: `{"client_name": "Visual Studio Code", "client_uri": "https://vscode.dev/product",
		"application_type": "native", "redirect_uris": ["http://127.0.0.1:33418/", "https://vscode.dev/redirect"], ` + withDevice + `, "token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://127.0.0.1:49152/", "https://vscode.dev/redirect"}, scope: ourScope, resource: published},
	{client: "VS Code", dynamic: `{"client_name": "Visual Studio Code", "client_uri": "https://code.visualstudio.com", "application_type": "native", "scope": "local-agents",
		"redirect_uris": ["https://insiders.vscode.dev/redirect", "https://vscode.dev/redirect", "http://127.0.0.1/", "http://127.0.0.1:33418/"], ` + withDevice + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://127.0.0.1:33418/", "http://127.0.0.1:49152/", "https://vscode.dev/redirect", "https://insiders.vscode.dev/redirect"},
		scope:     ourScope, resource: published},

	{client: "Gemini", added: "--secret --redirect https://oauth-redirect.googleusercontent.com/r/Ab12_cd-34EF",
		redirects: []string{"https://oauth-redirect.googleusercontent.com/r/Ab12_cd-34EF"}, scope: ourScope, resource: absent, state: 1272},

	{client: "Perplexity", dynamic: `{"client_name": "Perplexity", "redirect_uris": ["https://www.perplexity.ai/rest/connections/oauth_callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"https://www.perplexity.ai/rest/connections/oauth_callback"}, scope: ourScope, resource: absent},

	{client: "Mistral", dynamic: `{"client_name": "mistral-mcp-client", "redirect_uris": ["https://callback.mistral.ai/v1/integrations_auth/oauth2_callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"https://callback.mistral.ai/v1/integrations_auth/oauth2_callback"}, scope: ourScope, resource: slash},
	{client: "Mistral", added: "--secret --redirect https://callback.mistral.ai/v1/integrations_auth/oauth2_callback",
		redirects: []string{"https://callback.mistral.ai/v1/integrations_auth/oauth2_callback"}, resource: absent},

	{client: "opencode", at: "https://opencode.ai/oauth/opencode/client.json", document: `{"client_name": "opencode", "client_uri": "https://opencode.ai", "application_type": "native",
		"redirect_uris": ["http://127.0.0.1/callback", "http://localhost/callback", "http://127.0.0.1/mcp/oauth/callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none", "token_endpoint_auth_methods_supported": ["none"]}`,
		redirects: []string{"http://127.0.0.1:19876/mcp/oauth/callback"}, scope: allScopes, resource: published},
	{client: "opencode", dynamic: `{"client_name": "OpenCode", "client_uri": "https://opencode.ai", "redirect_uris": ["http://127.0.0.1:19876/mcp/oauth/callback"], ` + bothGrants + `,
		"token_endpoint_auth_method": "none"}`,
		redirects: []string{"http://127.0.0.1:19876/mcp/oauth/callback"}, resource: published},
}

// registration is the column of docs/clients.md that says how a client registers.
func (w clientWay) registration() string {
	switch {
	case w.known != "":
		return "document `" + w.known + "`, the gateway's copy"
	case w.document != "":
		return "document `" + w.at + "`, its text served on loopback"
	case strings.Contains(w.added, "--secret"):
		return "added by you, with a secret"
	case w.added != "":
		return "added by you"
	case w.twice:
		return "itself, twice"
	}
	return "itself"
}

var loopbackPort = regexp.MustCompile(`^(http://[^/:]+):\d+`)

// row is the way in docs/clients.md.
func (w clientWay) row() string {
	var redirects []string
	for _, uri := range w.redirects {
		uri = "`" + strings.ReplaceAll(loopbackPort.ReplaceAllString(uri, "$1:{port}"), someID, "{id}") + "`"
		if !slices.Contains(redirects, uri) {
			redirects = append(redirects, uri)
		}
	}
	auth, scope := "`none`", "none"
	if strings.Contains(w.added, "--secret") {
		auth = "`client_secret_post`"
	}
	if w.scope != "" {
		scope = "`" + w.scope + "`"
	}
	return "| " + strings.Join([]string{w.client, w.registration(), strings.Join(redirects, "<br>"), auth, scope, string(w.resource)}, " | ") + " |"
}

// docs/clients.md is the table, with the day of the test and a section for each
// client.
func TestClientsPageIsTheTable(t *testing.T) {
	raw, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, sections, want, clients []string
	for _, line := range strings.Split(string(raw), "\n") {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			sections = append(sections, name)
		}
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| Client |") {
			rows = append(rows, line)
		}
	}
	for _, w := range clientTable {
		want = append(want, w.row())
		if !slices.Contains(clients, w.client) {
			clients = append(clients, w.client)
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table of docs/clients.md is not that of the test, which is\n%s", strings.Join(want, "\n"))
	}
	if i := slices.Index(sections, clients[0]); i < 0 || !slices.Equal(sections[i:min(len(sections), i+len(clients))], clients) {
		t.Errorf("docs/clients.md has sections for %q, want one for each of %q", sections, clients)
	}
	if !regexp.MustCompile(`(?m)^Last tested: 20\d\d-\d\d-\d\d`).Match(raw) {
		t.Error("docs/clients.md does not say on which day it was tested")
	}
}
