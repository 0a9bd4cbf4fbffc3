package registration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"agentrelay/internal/oauth/redirect"
	"agentrelay/internal/oauth/registration"
)

var both = []string{"authorization_code", "refresh_token"}

// Sets that clients are known to send.
var clients = []struct {
	name, body string
	want       registration.Metadata
}{
	{"Cursor", `{"client_name":"Cursor","redirect_uris":["http://localhost:8787/callback","https://www.cursor.com/agents/mcp/oauth/callback","cursor://anysphere.cursor-mcp/oauth/callback"],
		"application_type":"web","grant_types":["authorization_code","refresh_token"],"response_types":["code"],"token_endpoint_auth_method":"none"}`,
		registration.Metadata{ClientName: "Cursor", RedirectURIs: []string{"http://localhost:8787/callback", "https://www.cursor.com/agents/mcp/oauth/callback", "cursor://anysphere.cursor-mcp/oauth/callback"},
			ApplicationType: "native", GrantTypes: both, OfferedAuthMethods: []string{"none"}}},
	{"Claude", `{"client_name":"Claude","redirect_uris":["https://claude.ai/api/mcp/auth_callback"],"grant_types":["authorization_code","refresh_token"],"response_types":["code"],"token_endpoint_auth_method":"none","scope":"claudeai"}`,
		registration.Metadata{ClientName: "Claude", RedirectURIs: []string{"https://claude.ai/api/mcp/auth_callback"}, ApplicationType: "web", GrantTypes: both, Scope: "claudeai", OfferedAuthMethods: []string{"none"}}},
	{"ChatGPT", `{"client_name":"ChatGPT","redirect_uris":["https://chatgpt.com/connector/oauth/abc"],"token_endpoint_auth_method":"client_secret_post","logo_uri":"","jwks_uri":null}`,
		registration.Metadata{ClientName: "ChatGPT", RedirectURIs: []string{"https://chatgpt.com/connector/oauth/abc"}, ApplicationType: "web", GrantTypes: both, OfferedAuthMethods: []string{"client_secret_post"}}},
	{"ChatGPT document", `{"client_id":"https://chatgpt.com/oauth/client.json","client_name":"ChatGPT","redirect_uris":["https://chatgpt.com/connector_platform_oauth_redirect"],
		"token_endpoint_auth_method":"private_key_jwt","token_endpoint_auth_methods_supported":["none","private_key_jwt"],"jwks_uri":"https://chatgpt.com/oauth/jwks.json"}`,
		registration.Metadata{ClientName: "ChatGPT", RedirectURIs: []string{"https://chatgpt.com/connector_platform_oauth_redirect"}, ApplicationType: "web", GrantTypes: both, OfferedAuthMethods: []string{"private_key_jwt", "none", "private_key_jwt"}}},
	{"Grok", `{"redirect_uris":["https://grok.com/connectors-oauth-exchange-code/"],"client_name":"Grok","grant_types":[],"response_types":[]}`,
		registration.Metadata{ClientName: "Grok", RedirectURIs: []string{"https://grok.com/connectors-oauth-exchange-code/"}, ApplicationType: "web", GrantTypes: both}},
	{"VS Code", `{"client_name":"Visual Studio Code","redirect_uris":["http://127.0.0.1:33418/","http://127.0.0.1/","http://localhost/","https://vscode.dev/redirect","https://insiders.vscode.dev/redirect"],
		"grant_types":["authorization_code","refresh_token","urn:ietf:params:oauth:grant-type:device_code"],"response_types":["code"],"token_endpoint_auth_method":"none","application_type":"native"}`,
		registration.Metadata{ClientName: "Visual Studio Code", RedirectURIs: []string{"http://127.0.0.1:33418/", "http://127.0.0.1/", "http://localhost/", "https://vscode.dev/redirect", "https://insiders.vscode.dev/redirect"},
			ApplicationType: "native", GrantTypes: both, OfferedAuthMethods: []string{"none"}}},
	{"code only", `{"redirect_uris":["https://a.test/cb","https://a.test/cb"],"grant_types":["authorization_code","implicit"],"response_types":["code","token"],"client_name":null}`,
		registration.Metadata{RedirectURIs: []string{"https://a.test/cb"}, ApplicationType: "web", GrantTypes: []string{"authorization_code"}}},
}

func TestClientsRegister(t *testing.T) {
	for _, c := range clients {
		got, err := registration.Parse([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		c.want.ResponseTypes, c.want.TokenEndpointAuthMethod = []string{"code"}, "none"
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// The answer says what replaced the client's values.
func TestAnswerSaysWhatWasRegistered(t *testing.T) {
	m, err := registration.Parse([]byte(`{"redirect_uris":["https://a.test/cb"],"token_endpoint_auth_method":"client_secret_basic","grant_types":["authorization_code","password"],"contacts":["x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(m)
	want := `{"redirect_uris":["https://a.test/cb"],"grant_types":["authorization_code"],"response_types":["code"],"token_endpoint_auth_method":"none","application_type":"web"}`
	if string(got) != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestRefusals(t *testing.T) {
	uris := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf("https://a.test/%d", i)
		}
		raw, _ := json.Marshal(list)
		return string(raw)
	}
	with := func(member string) string { return `{"redirect_uris":["https://a.test/cb"],` + member + `}` }
	long := strings.Repeat("x", 64<<10)
	for _, c := range []struct{ name, body, code, member string }{
		{"empty", ``, "invalid_client_metadata", "JSON object"},
		{"null", `null`, "invalid_client_metadata", "JSON object"},
		{"list", `[]`, "invalid_client_metadata", "JSON object"},
		{"string", `"x"`, "invalid_client_metadata", "JSON object"},
		{"cut off", `{"redirect_uris":["https://a.test/cb"]`, "invalid_client_metadata", "JSON object"},
		{"two", `{"redirect_uris":["https://a.test/cb"]}{}`, "invalid_client_metadata", "JSON object"},
		{"not UTF-8", "{\"redirect_uris\":[\"https://a.test/cb\"],\"client_name\":\"\xff\"}", "invalid_client_metadata", "UTF-8"},
		{"huge", with(`"x":"` + long + `"`), "invalid_client_metadata", "65536 bytes"},
		{"deep", strings.Repeat("[", 60000), "invalid_client_metadata", "JSON object"},
		{"long name", with(`"client_name":"` + strings.Repeat("é", 201) + `"`), "invalid_client_metadata", "client_name"},
		{"very long name", with(`"client_name":"` + long[:60000] + `"`), "invalid_client_metadata", "client_name"},
		{"name is a number", with(`"client_name":7`), "invalid_client_metadata", "client_name"},
		{"name is an object", with(`"client_name":{"en":"x"}`), "invalid_client_metadata", "client_name"},
		{"no code grant", with(`"grant_types":["refresh_token"]`), "invalid_client_metadata", "grant_types"},
		{"client credentials", with(`"grant_types":["client_credentials"]`), "invalid_client_metadata", "grant_types"},
		{"grants are a string", with(`"grant_types":"authorization_code"`), "invalid_client_metadata", "grant_types"},
		{"many grants", with(`"grant_types":` + uris(33)), "invalid_client_metadata", "grant_types"},
		{"long grant", with(`"grant_types":["authorization_code","` + long[:201] + `"]`), "invalid_client_metadata", "grant_types"},
		{"implicit", with(`"response_types":["token"]`), "invalid_client_metadata", "response_types"},
		{"auth method is a list", with(`"token_endpoint_auth_method":["none"]`), "invalid_client_metadata", "token_endpoint_auth_method"},
		{"auth methods are a string", with(`"token_endpoint_auth_methods_supported":"none"`), "invalid_client_metadata", "token_endpoint_auth_methods_supported"},
		{"scope is a list", with(`"scope":["a"]`), "invalid_client_metadata", "scope"},
		{"bad scope", with(`"scope":"a  b"`), "invalid_client_metadata", "scope"},
		{"scope with a quote", with(`"scope":"a\"b"`), "invalid_client_metadata", "scope"},
		{"long scope", with(`"scope":"` + long[:1001] + `"`), "invalid_client_metadata", "scope"},
		{"no redirects", `{}`, "invalid_redirect_uri", "redirect_uris"},
		{"null redirects", `{"redirect_uris":null}`, "invalid_redirect_uri", "redirect_uris"},
		{"empty redirects", `{"redirect_uris":[]}`, "invalid_redirect_uri", "redirect_uris"},
		{"one string", `{"redirect_uris":"https://a.test/cb"}`, "invalid_redirect_uri", "redirect_uris"},
		{"a number", `{"redirect_uris":[7]}`, "invalid_redirect_uri", "redirect_uris"},
		{"33 redirects", `{"redirect_uris":` + uris(33) + `}`, "invalid_redirect_uri", "1 to 32"},
		{"1000 redirects", `{"redirect_uris":` + uris(1000) + `}`, "invalid_redirect_uri", "1 to 32"},
		{"javascript", `{"redirect_uris":["https://a.test/cb","javascript:alert(1)"]}`, "invalid_redirect_uri", "redirect_uris[1]"},
		{"plain http", `{"redirect_uris":["http://a.test/cb"]}`, "invalid_redirect_uri", "redirect_uris[0]"},
		{"long redirect", `{"redirect_uris":["https://a.test/` + long[:3000] + `"]}`, "invalid_redirect_uri", "redirect_uris[0]"},
	} {
		_, err := registration.Parse([]byte(c.body))
		var refused *registration.Error
		if !errors.As(err, &refused) || refused.Code != c.code || !strings.Contains(refused.Description, c.member) {
			t.Errorf("%s: %v, want %s about %s", c.name, err, c.code, c.member)
			continue
		}
		checkDescription(t, refused.Description)
	}
	if _, err := registration.Parse([]byte(`{"redirect_uris":` + uris(32) + `,"client_name":"` + strings.Repeat(`😀`, 200) + `"}`)); err != nil {
		t.Errorf("the limits themselves are refused: %v", err)
	}
}

// checkDescription applies RFC 6749's rule for error_description.
func checkDescription(t *testing.T, d string) {
	t.Helper()
	if len(d) > 250 || strings.ContainsFunc(d, func(r rune) bool { return r < 0x20 || r > 0x7e || r == '"' || r == '\\' }) {
		t.Errorf("description %q", d)
	}
}

func TestNamesAreCleaned(t *testing.T) {
	for given, want := range map[string]string{
		"  Claude \n\t Code ":         "Claude Code",
		"Cl\u200baude\u202e\u2066":    "Claude",
		"a\u0000b\u001b[31m":          "ab[31m",
		"\u2028x\u00a0y\u3000":        "x y",
		"Ünïcødé 日本語 😀":               "Ünïcødé 日本語 😀",
		"<b>&\"'":                     "<b>&\"'",
		"\ufeff\u00ad\u061c\u200f":    "",
		strings.Repeat("\u200b", 300): "",
	} {
		body, _ := json.Marshal(map[string]any{"redirect_uris": []string{"https://a.test/"}, "client_name": given})
		m, err := registration.Parse(body)
		if err != nil || m.ClientName != want {
			t.Errorf("%q became %q, %v", given, m.ClientName, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range clients {
		f.Add([]byte(c.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := registration.Parse(body)
		if err != nil {
			var refused *registration.Error
			if !errors.As(err, &refused) {
				t.Fatalf("%T", err)
			}
			checkDescription(t, refused.Description)
			return
		}
		if n := len(m.RedirectURIs); n < 1 || n > 32 || len(m.GrantTypes) < 1 || m.TokenEndpointAuthMethod != "none" || len(m.Scope) > 1000 {
			t.Fatalf("%+v", m)
		}
		for _, uri := range m.RedirectURIs {
			if redirect.Registrable(uri) != nil {
				t.Fatalf("%q was registered", uri)
			}
		}
		if utf8.RuneCountInString(m.ClientName) > 200 || strings.ContainsFunc(m.ClientName, func(r rune) bool { return unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) }) {
			t.Fatalf("name %q", m.ClientName)
		}
		again, _ := json.Marshal(m)
		m2, err := registration.Parse(again)
		m.OfferedAuthMethods, m2.OfferedAuthMethods = nil, nil
		if err != nil || !cmp.Equal(m, m2) {
			t.Fatalf("registering the answer gives another: %v %s", err, cmp.Diff(m, m2))
		}
	})
}
