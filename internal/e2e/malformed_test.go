package e2e

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"agentrelay/internal/e2e/rig"
)

// marker stands in everything that is sent wrong: nothing of it may come back or
// get into the log.
const marker = "XmarkerX"

// malformed is one wrong request and the answer it must get.
type malformed struct {
	name   string
	method string // POST if empty
	path   string
	header []string // name, value, ...
	body   string
	status int
	code   string // of the refusal; that of data.code for JSON-RPC
}

var (
	jsonBody = []string{"Content-Type", "application/json"}
	form     = []string{"Content-Type", "application/x-www-form-urlencoded"}
)

func malformedMCP(token string) []malformed {
	auth := func(more ...string) []string {
		return append([]string{"Authorization", "Bearer " + token, "Content-Type", "application/json", "Accept", "application/json, text/event-stream"}, more...)
	}
	const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	return []malformed{
		{"no token", "", "/mcp", jsonBody, `{}`, 401, "unauthorized"},
		{"unknown token", "", "/mcp", []string{"Authorization", "Bearer " + marker}, `{}`, 401, "invalid_token"},
		{"token in the query", "", "/mcp?access_token=" + token, jsonBody, `{}`, 401, "unauthorized"},
		{"GET", "GET", "/mcp", auth(), "", 405, "method_not_allowed"},
		{"DELETE", "DELETE", "/mcp", auth("Mcp-Session-Id", marker), "", 405, "method_not_allowed"},
		{"slash at the end", "", "/mcp/", auth(), `{}`, 404, "not_found"},
		{"evil origin", "", "/mcp", auth("Origin", "https://evil.example"), `{}`, 403, "origin_not_allowed"},
		{"evil host", "", "/mcp", auth("Host", "evil.example"), `{}`, 403, "host_not_allowed"},
		{"not JSON", "", "/mcp", auth(), marker, 400, "parse_error"},
		{"half JSON", "", "/mcp", auth(), `{"jsonrpc":"2.0","id":1,"method":"` + marker, 400, "parse_error"},
		{"no body", "", "/mcp", auth(), "", 400, "parse_error"},
		{"a string", "", "/mcp", auth(), `"` + marker + `"`, 400, "invalid_request_message"},
		{"no method", "", "/mcp", auth(), `{"jsonrpc":"2.0","id":1,"x":"` + marker + `"}`, 400, "invalid_request_message"},
		{"JSON-RPC 1", "", "/mcp", auth(), `{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, "invalid_request_message"},
		{"batch", "", "/mcp", auth("Mcp-Protocol-Version", "2025-11-25"), `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, 400, "invalid_request_message"},
		{"wrong media type", "", "/mcp", append(auth(), "Content-Type", "text/plain"), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 415, "unsupported_media_type"},
		{"only HTML is accepted", "", "/mcp", append(auth(), "Accept", "text/html"), `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 406, "not_acceptable"},
		{"too large", "", "/mcp", auth(), `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 4<<20) + `"}`, 413, "body_too_large"},
		{"unknown version", "", "/mcp", auth("Mcp-Protocol-Version", "2099-01-01", "Mcp-Method", "tools/list"), `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01","io.modelcontextprotocol/clientCapabilities":{}}}}`, 400, "unsupported_protocol_version"},
		{"unknown method", "", "/mcp", auth("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "x/"+marker), `{"jsonrpc":"2.0","id":1,"method":"x/` + marker + `","params":{` + modern + `}}`, 404, "method_not_found"},
		{"header against body", "", "/mcp", auth("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_peers","arguments":{},` + modern + `}}`, 400, "header_mismatch"},
		{"no Mcp-Method", "", "/mcp", auth("Mcp-Protocol-Version", "2026-07-28"), `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + modern + `}}`, 400, "header_mismatch"},
		{"no _meta", "", "/mcp", auth("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"), `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, 400, "invalid_params"},
		{"unknown tool", "", "/mcp", auth("Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "nothing"), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nothing","arguments":{"x":"` + marker + `"},` + modern + `}}`, 400, "invalid_params"},
	}
}

func malformedOAuth(clientID string) []malformed {
	type pairs = map[string]string
	values := func(p pairs) string {
		v := url.Values{}
		for name, value := range p {
			v.Set(name, value)
		}
		return v.Encode()
	}
	code := func(change pairs) string {
		p := pairs{"grant_type": "authorization_code", "client_id": clientID, "code": marker, "redirect_uri": "http://127.0.0.1/callback", "code_verifier": strings.Repeat("v", 43)}
		for name, value := range change {
			p[name] = value
		}
		return values(p)
	}
	return []malformed{
		{"metadata of nothing", "GET", "/.well-known/nothing", nil, "", 404, "not_found"},
		{"OpenID", "GET", "/.well-known/openid-configuration", nil, "", 404, "not_found"},
		{"GET of the token endpoint", "GET", "/token", nil, "", 405, "invalid_request"},
		{"no form", "", "/token", jsonBody, `{"x":"` + marker + `"}`, 401, "invalid_client"},
		{"empty form", "", "/token", form, "", 401, "invalid_client"},
		{"no grant type", "", "/token", form, values(pairs{"client_id": clientID}), 400, "invalid_request"},
		{"unknown grant type", "", "/token", form, code(pairs{"grant_type": marker}), 400, "unsupported_grant_type"},
		{"password grant", "", "/token", form, code(pairs{"grant_type": "password", "password": marker}), 400, "unsupported_grant_type"},
		{"unknown client", "", "/token", form, code(pairs{"client_id": marker}), 401, "invalid_client"},
		{"unknown code", "", "/token", form, code(nil), 400, "invalid_grant"},
		{"wrong resource", "", "/token", form, code(pairs{"resource": "https://" + marker + ".example/"}), 400, "invalid_target"},
		{"unknown refresh token", "", "/token", form, values(pairs{"grant_type": "refresh_token", "client_id": clientID, "refresh_token": marker}), 400, "invalid_grant"},
		{"a parameter twice", "", "/token", form, code(nil) + "&code=" + marker, 400, "invalid_request"},
		{"a large form", "", "/token", form, code(pairs{"x": strings.Repeat(marker, 10000)}), 413, "invalid_request"},
		{"registration that is no JSON", "", "/register", jsonBody, marker, 400, "invalid_client_metadata"},
		{"registration without redirects", "", "/register", jsonBody, `{"client_name":"` + marker + `"}`, 400, "invalid_redirect_uri"},
		{"registration with a bad redirect", "", "/register", jsonBody, `{"client_name":"x","redirect_uris":["javascript:` + marker + `"]}`, 400, "invalid_redirect_uri"},
		{"registration with a fragment", "", "/register", jsonBody, `{"client_name":"x","redirect_uris":["https://a.example/cb#` + marker + `"]}`, 400, "invalid_redirect_uri"},
		{"registration of another kind", "", "/register", form, "client_name=" + marker, 400, "invalid_client_metadata"},
		{"revocation of nothing", "", "/revoke", form, values(pairs{"client_id": clientID}), 400, "invalid_request"},
		{"revocation by an unknown client", "", "/revoke", form, values(pairs{"client_id": marker, "token": marker}), 401, "invalid_client"},
		{"GET of the registration", "GET", "/register", nil, "", 405, "invalid_request"},
	}
}

// send makes the request and returns the answer's status, its content type and
// its body.
func (m malformed) send(t *testing.T, base string) (int, string, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), cmp.Or(m.method, http.MethodPost), base+m.path, strings.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(m.header); i += 2 {
		req.Header.Set(m.header[i], m.header[i+1])
	}
	req.Host = cmp.Or(req.Header.Get("Host"), req.URL.Host)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), string(body)
}

// refusalIn finds the code, the hint and the id in any of the three forms of a
// refusal: that of HTTP, of OAuth, and of JSON-RPC.
func refusalIn(body string) (r refusal, ok bool) {
	var http struct{ Error refusal }
	var oauth struct{ Error, Hint, ID string }
	var rpc struct {
		JSONRPC string
		Error   struct{ Data refusal }
	}
	switch {
	case json.Unmarshal([]byte(body), &rpc) == nil && rpc.JSONRPC == "2.0":
		return rpc.Error.Data, true
	case json.Unmarshal([]byte(body), &http) == nil:
		return http.Error, true
	case json.Unmarshal([]byte(body), &oauth) == nil:
		return refusal{Code: oauth.Error, Hint: oauth.Hint, ID: oauth.ID}, true
	}
	return r, false
}

var lastUsed = regexp.MustCompile(`"lastUsedAt": "[^"]*",`)

// Each malformed request gets its status and a refusal in JSON; nothing is
// stored, nothing of it is quoted, and the gateway goes on.
func TestMalformedRequests(t *testing.T) {
	home := rig.NewHome(t, binary)
	gateway := home.Serve()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := home.Authorize("Client")
	base := strings.TrimSuffix(home.MCPURL, "/mcp")
	stored := func() string {
		clients := lastUsed.ReplaceAllString(home.OK("clients", "list", "--json"), "") // it did use its token
		return clients + home.OK("peers", "list", "--json") + home.OK("messages", "list", "--json")
	}
	before := stored()
	ids := map[string]string{}
	for _, m := range append(malformedMCP(c.Token.AccessToken), malformedOAuth(c.ID)...) {
		status, kind, body := m.send(t, base)
		r, ok := refusalIn(body)
		if status != m.status || !ok || m.code != "" && r.Code != m.code {
			t.Errorf("%s: status %d, %s; want %d, %s", m.name, status, body, m.status, m.code)
			continue
		}
		if !strings.HasPrefix(kind, "application/json") || r.Code == "" || r.Hint == "" || r.ID == "" {
			t.Errorf("%s: the refusal (%s) lacks something: %s", m.name, kind, body)
		}
		if strings.Contains(body, marker) {
			t.Errorf("%s: the answer quotes the request: %s", m.name, body)
		}
		ids[m.name] = r.ID
	}
	if after := stored(); after != before {
		t.Errorf("something was stored:\n%s\nbefore:\n%s", after, before)
	}
	session, err := c.Connect(t.Context(), "after", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := session.Call(t.Context(), "list_peers", object{}, nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}

	if code := gateway.Stop(); code != 0 { // now the log is complete
		t.Errorf("the gateway ended with %d", code)
	}
	for name, id := range ids {
		if !strings.Contains(gateway.Output(), `"id":"`+id+`"`) {
			t.Errorf("%s: no log line has the id %q", name, id)
		}
	}
	for line := range strings.Lines(gateway.Output()) {
		if strings.Contains(line, marker) {
			t.Errorf("the log quotes a request: %s", line)
		}
	}
}
