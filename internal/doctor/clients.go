package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"agentrelay/internal/client"
	"agentrelay/internal/oauth"
)

// kind is a client that the doctor knows.
type kind struct {
	name, title string
	// cloud says that it calls from its own servers, and only443 that it reaches no
	// other port.
	cloud, only443 bool
	// documents says that it prefers to name itself by the address of a document.
	documents bool
	// redirects are where it may ask to be sent back to; see docs/clients.md.
	redirects []string
	// hosts are by what its registrations are known.
	hosts []string
	// steps are where to click.
	steps string
}

func clients() []kind {
	return []kind{
		{
			name: "chatgpt", title: "ChatGPT", cloud: true, documents: true,
			redirects: []string{"https://chatgpt.com/connector_platform_oauth_redirect", "https://chatgpt.com/connector/oauth/doctor", "https://chat.openai.com/connector_platform_oauth_redirect"},
			hosts:     []string{"chatgpt.com", "chat.openai.com"},
			steps:     "In ChatGPT: Settings > Apps > Advanced settings, Developer mode on; then Create app with %s and OAuth.",
		},
		{
			name: "claude", title: "Claude", cloud: true, only443: true, documents: true,
			redirects: []string{"https://claude.ai/api/mcp/auth_callback", "https://claude.com/api/mcp/auth_callback"},
			hosts:     []string{"claude.ai", "claude.com"},
			steps:     "In Claude: Customize > Connectors > + > Add custom connector with %s, Add, then Connect.",
		},
		{
			name: "grok", title: "Grok", cloud: true,
			redirects: []string{"https://grok.com/connectors-oauth-exchange-code/"},
			hosts:     []string{"grok.com"},
			steps:     "At grok.com/connectors: New Connector > Custom with %s, then sign in.",
		},
		{
			name: "cursor", title: "Cursor",
			redirects: []string{"http://localhost:8787/callback", "https://www.cursor.com/agents/mcp/oauth/callback", "cursor://anysphere.cursor-mcp/oauth/callback"},
			hosts:     []string{"www.cursor.com", "anysphere.cursor-mcp"},
			steps:     "Put {\"mcpServers\": {\"agent-relay\": {\"url\": \"%s\"}}} into ~/.cursor/mcp.json, then Login in Settings > Tools & MCP.",
		},
	}
}

// Clients are the names that [Options.Client] may have.
func Clients() []string {
	var names []string
	for _, k := range clients() {
		names = append(names, k.name)
	}
	return names
}

func findClient(name string) (kind, bool) {
	i := slices.IndexFunc(clients(), func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return clients()[i], true
}

func clientChecks(k kind) []check {
	return []check{
		{id: "client.address", needs: needConfig, why: "Clients that live on the internet can't reach an address of this machine, and one of them reaches only port 443.", run: k.checkAddress},
		{id: "client.challenge", needs: needPublic, why: "A client begins with a call without a token. It has to be told where to log in, and some stop when the answer calls that an error.", run: k.checkChallenge},
		{id: "client.metadata", needs: needPublic, why: "What a client needs of the login it reads in a document: how it may register, and which name its tokens are for.", run: k.checkMetadata},
		{id: "client.registration", needs: needPublic, budget: 30 * time.Second, why: "A client registers addresses that it comes back to, and is refused one that the gateway does not know.", run: k.checkRegistration},
		{id: "client.connected", needs: needStored, why: "Whether it has ever logged in, and still may.", run: k.checkConnected},
	}
}

func (k kind) checkAddress(_ context.Context, v *visit) []finding {
	port := v.publicURL().Port()
	switch {
	case k.cloud && v.config.Loopback():
		return one(fail("Put an HTTPS proxy or tunnel in front (packaging/proxy has files for four), set publicBaseUrl to its address and restart the gateway.", "%s calls from the internet and can't reach %s.", k.title, v.config.PublicBaseURL))
	case k.only443 && port != "" && port != "443":
		return one(fail("Serve the gateway on port 443, and leave the port out of publicBaseUrl.", "%s reaches only port 443, publicBaseUrl has %s.", k.title, port))
	}
	return one(pass("%s can use %s.", k.title, v.config.MCPURL()))
}

func (k kind) checkChallenge(ctx context.Context, v *visit) []finding {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.config.MCPURL(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if err != nil {
		return one(fail("See public.reach.", "%s", sentence(err)))
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.browser.Do(req)
	if err != nil {
		return one(fail("See public.reach.", "%s", sentence(err)))
	}
	resp.Body.Close()
	const next = "Let the proxy hand on answers with status 401 as they are, WWW-Authenticate too."
	said := resp.Header.Get("WWW-Authenticate")
	switch {
	case resp.StatusCode != http.StatusUnauthorized:
		return one(fail(next, "A call without a token is answered with status %d, want 401.", resp.StatusCode))
	case !strings.Contains(said, `resource_metadata="`+v.config.PublicBaseURL+`/.well-known/oauth-protected-resource/mcp"`):
		return one(fail(next, "The answer to a call without a token does not say where to log in."))
	case strings.Contains(said, "error="):
		return one(fail(next, "The answer to a call without a token carries an error, at which Grok stops."))
	}
	return one(pass("A call without a token is told where to log in."))
}

// document is what clients read of the authorization server (RFC 8414).
type document struct {
	Issuer       string   `json:"issuer"`
	Registration string   `json:"registration_endpoint"`
	PKCE         []string `json:"code_challenge_methods_supported"`
	Methods      []string `json:"token_endpoint_auth_methods_supported"`
	Documents    bool     `json:"client_id_metadata_document_supported"`
	SaysIssuer   bool     `json:"authorization_response_iss_parameter_supported"`
}

func (k kind) checkMetadata(ctx context.Context, v *visit) []finding {
	const next = "Switch off whatever changes or caches /.well-known/ in the proxy, and see public.discovery."
	var d document
	var resource struct {
		Resource string `json:"resource"`
	}
	for path, into := range map[string]any{"/.well-known/oauth-authorization-server": &d, "/.well-known/oauth-protected-resource": &resource} {
		raw, err := get(ctx, v.browser, v.config.PublicBaseURL+path)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			return one(fail(next, "%s can't be read: %s", path, sentence(err)))
		}
	}
	var missing []string
	for what, there := range map[string]bool{
		"the issuer " + v.config.PublicBaseURL: d.Issuer == v.config.PublicBaseURL, "registration": d.Registration != "",
		"PKCE with S256": slices.Contains(d.PKCE, "S256"), "clients without a secret": slices.Contains(d.Methods, "none"),
		"clients named by a document": d.Documents || !k.documents, "iss on redirects": d.SaysIssuer,
		"the resource " + v.config.MCPURL(): resource.Resource == v.config.MCPURL(),
	} {
		if !there {
			missing = append(missing, what)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return one(fail(next, "The documents do not offer %s, which %s needs.", strings.Join(missing, ", "), k.title))
	}
	return one(pass("The documents offer what %s needs.", k.title))
}

// checkRegistration registers as this client does, under the doctor's name, and opens
// the consent page for each of its addresses.
func (k kind) checkRegistration(ctx context.Context, v *visit) []finding {
	server, err := client.Discover(ctx, v.browser, v.config.MCPURL())
	if err != nil {
		return one(fail(advice("discovery"), "%s", sentence(err)))
	}
	id, err := k.register(ctx, v, server.Meta.RegistrationEndpoint)
	if err != nil {
		return one(fail(advice("registration"), "%s", sentence(err)))
	}
	v.trial(id)
	for _, uri := range k.redirects {
		if err := v.seeConsentPage(ctx, server.Authorize(id, "", uri).URL); err != nil {
			return one(fail(advice("consent page"), "With the address %s there is no consent page: %s", uri, sentence(err)))
		}
	}
	return one(pass("It can register, and be sent back to %s.", strings.Join(k.redirects, ", ")))
}

func (k kind) register(ctx context.Context, v *visit, endpoint string) (id string, err error) {
	body, err := json.Marshal(map[string]any{
		"client_name": oauth.TrialName, "redirect_uris": k.redirects, "grant_types": []string{"authorization_code", "refresh_token"},
		"response_types": []string{"code"}, "token_endpoint_auth_method": "none", "scope": oauth.ScopeAgents,
	})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.browser.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var out struct {
		ID string `json:"client_id"`
	}
	err = json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(&out)
	if resp.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("a registration is answered with status %d", resp.StatusCode)
	}
	if err != nil || out.ID == "" {
		return "", errors.New("the answer to a registration has no client_id")
	}
	return out.ID, nil
}

func (k kind) checkConnected(_ context.Context, v *visit) []finding {
	steps := fmt.Sprintf(k.steps, v.config.MCPURL())
	var known *oauth.ClientInfo
	for _, c := range v.stored().clients {
		if c.Name == oauth.TrialName || !slices.ContainsFunc(c.RedirectHosts, func(h string) bool { return slices.Contains(k.hosts, h) }) {
			continue
		}
		if known == nil || c.ActiveGrants > 0 && known.ActiveGrants == 0 {
			known = &c
		}
	}
	switch {
	case known == nil:
		return one(warn(steps, "No client of %s has come here yet.", k.title))
	case known.ActiveGrants == 0:
		return one(warn(steps+" If it is there already, press Connect or Sign in there.", "%s has registered as %s, but is not allowed now.", k.title, known.ID))
	case known.LastUsedAt == nil:
		return one(pass("%s is allowed and has not called yet.", known.ID))
	}
	return one(pass("%s is allowed (%s), and last called %s ago.", known.ID, known.Permissions, span(v.o.Now().Sub(*known.LastUsedAt))))
}
