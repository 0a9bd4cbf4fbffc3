package gateway

import (
	"fmt"
	"io"
	"strings"

	"agentrelay/internal/shellquote"
)

// printSetup says what init made and what to do next. toStart adds how to start
// the gateway.
func (a *app) printSetup(w io.Writer, m made, toStart bool) error {
	_, err := fmt.Fprintf(w, "Agent Relay is set up.\n\n  Config     %s\n  State      %s\n  MCP URL    %s\n\n", m.ConfigPath, m.StateDir, m.MCPURL)
	if err != nil {
		return err
	}
	if err := printPassword(w, m.OwnerPassword, m.passwordFile); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n"+a.nextSteps(m, toStart))
	return err
}

// nextSteps leads from a fresh config to connected clients.
func (a *app) nextSteps(m made, toStart bool) string {
	var b strings.Builder
	url, step := m.MCPURL, 0
	next := func(format string, args ...any) {
		step++
		fmt.Fprintf(&b, "%d. "+format+"\n", append([]any{step}, args...)...)
	}
	b.WriteString("Next:\n\n")
	if toStart {
		next("Start the gateway:\n\n     gateway serve%s\n", a.configFlag())
	}
	public := url
	if m.config.Loopback() {
		public = "https://gateway.example.com/mcp"
		next(`Cursor and other programs on this machine can connect now. ChatGPT, Claude and Grok
   call from the internet and need a public https URL. Let an address of yours lead to
   127.0.0.1:%d (a reverse proxy such as Caddy, or a tunnel such as cloudflared, Tailscale
   Funnel or ngrok), set it in the config, and start the gateway again:

     "publicBaseUrl": "https://gateway.example.com"

   From then on every client uses %s, also those on this machine.
`, m.config.Port, public)
	} else {
		next(`Let your HTTPS proxy or tunnel send %s to 127.0.0.1:%d.
   With Caddy this is the whole Caddyfile:

     %s {
       reverse_proxy 127.0.0.1:%d
     }
`, m.config.PublicBaseURL, m.config.Port, strings.TrimPrefix(m.config.PublicBaseURL, "https://"), m.config.Port)
	}
	next("Connect your clients.\n\n%s", clientSteps(url, public))
	next(`In each client a page of your gateway opens. It shows the name of the client and where
   it takes you back to, asks for the owner password, and lets you choose what this client
   may do. Check that it is the client you just added, then press Allow.
`)
	next(`In two of the clients say: "Register yourself as a peer with register_peer, then look
   for others with list_peers." From then on they can send each other messages.
`)
	fmt.Fprintf(&b, "See what is connected with: gateway clients list%s\n", a.configFlag())
	return b.String()
}

// clientSteps says where to click, as the clients' menus were at the end of 2026.
// here is the URL for programs on this machine, public the one for the others.
func clientSteps(here, public string) string {
	return fmt.Sprintf(`   Cursor   Put this into ~/.cursor/mcp.json, then press Login (or Needs login) beside
            agent-relay in Settings > Tools & MCP:
            {"mcpServers": {"agent-relay": {"url": %[1]q}}}
   ChatGPT  Settings > Apps > Advanced settings: switch Developer mode on. Then
            Settings > Apps > Create app. MCP Server URL %[2]s
            Authentication OAuth, then Create.
   Claude   Customize > Connectors > + > Add custom connector.
            URL %[2]s
            Add, then press Connect beside it.
   Grok     grok.com/connectors > New Connector > Custom.
            URL %[2]s
            Then sign in.
`, here, public)
}

// configFlag is how the following commands find this config.
func (a *app) configFlag() string {
	if a.configPath == "" {
		return ""
	}
	return " --config " + shellquote.Word(a.configPath)
}
