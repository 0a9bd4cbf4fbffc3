package cimd

import "agentrelay/internal/oauth/registration"

// pinned returns a copy of a well-known document. Some vendors answer a machine
// in a data centre with a challenge page for browsers, and their clients could
// then not be told from unknown ones. Only ids are here whose redirect URIs lead
// to the vendor itself or to the machine of the browser.
func pinned(id string) (registration.Metadata, bool) {
	switch id {
	case "https://claude.ai/oauth/mcp-oauth-client-metadata":
		return web("Claude", "https://claude.ai/api/mcp/auth_callback", "https://claude.com/api/mcp/auth_callback"), true
	case "https://claude.ai/oauth/claude-code-client-metadata":
		return native("Claude Code", "http://localhost/callback", "http://127.0.0.1/callback"), true
	case "https://chatgpt.com/oauth/client.json":
		return web("ChatGPT", "https://chatgpt.com/connector_platform_oauth_redirect"), true
	case "https://chatgpt.com/oauth/codex/client.json":
		return native("Codex", "http://localhost/callback", "http://127.0.0.1/callback"), true
	case "https://vscode.dev/oauth/client-metadata.json":
		return native("Visual Studio Code", "http://127.0.0.1:33418/", "http://127.0.0.1/", "http://localhost/",
			"https://vscode.dev/redirect", "https://insiders.vscode.dev/redirect"), true
	}
	return registration.Metadata{}, false
}

func web(name string, redirectURIs ...string) registration.Metadata {
	return registration.Metadata{
		ClientName: name, RedirectURIs: redirectURIs, ApplicationType: registration.Web,
		GrantTypes:              []string{registration.AuthorizationCode, registration.RefreshToken},
		ResponseTypes:           []string{registration.Code},
		TokenEndpointAuthMethod: registration.AuthNone,
	}
}

func native(name string, redirectURIs ...string) registration.Metadata {
	m := web(name, redirectURIs...)
	m.ApplicationType = registration.Native
	return m
}
