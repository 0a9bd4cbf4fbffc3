package paseotest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
)

// serveMCP is the MCP endpoint: with sessions before 0.5, without since. It has
// the tools that a client of the websocket may still need.
func (p *process) serveMCP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		writeJSON(w, http.StatusMethodNotAllowed, members{"error": members{"code": -32000, "message": "Method not allowed"}})
		return
	}
	accept := r.Header.Get("Accept")
	if !strings.Contains(accept, "application/json") || !strings.Contains(accept, "text/event-stream") {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.d.o.BodyLimit))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, "<html><body>PayloadTooLargeError</body></html>")
		return
	}
	var q struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"params"`
	}
	if err != nil || json.Unmarshal(body, &q) != nil {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "<html><body>SyntaxError</body></html>")
		return
	}
	if p.level == old && !p.inSession(w, r, q.Method) {
		writeJSON(w, http.StatusBadRequest, members{"jsonrpc": "2.0", "id": nil, "error": members{"code": -32000, "message": "Bad Request: Initialization request expected"}})
		return
	}
	switch q.Method {
	case "notifications/initialized":
		w.WriteHeader(http.StatusAccepted)
	case "initialize":
		p.reply(w, q.ID, "result", members{"protocolVersion": "2025-06-18", "capabilities": members{"tools": members{"listChanged": true}}, "serverInfo": members{"name": "agent-mcp", "version": "2.0.0"}})
	case "tools/call":
		p.callTool(w, q.ID, q.Params.Name, q.Params.Arguments)
	default:
		p.reply(w, q.ID, "error", members{"code": -32601, "message": "Method not found"})
	}
}

// inSession opens a session for initialize and checks it for all else.
func (p *process) inSession(w http.ResponseWriter, r *http.Request, method string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if method == "initialize" {
		id := newID("mcp_")
		p.mcpSessions[id] = true
		w.Header().Set("Mcp-Session-Id", id)
		return true
	}
	return p.mcpSessions[r.Header.Get("Mcp-Session-Id")]
}

func (p *process) reply(w http.ResponseWriter, id json.RawMessage, key string, v any) {
	data, err := json.Marshal(members{"jsonrpc": "2.0", "id": id, key: v})
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "event: message\ndata: "+string(data)+"\n\n")
}

func (p *process) callTool(w http.ResponseWriter, id json.RawMessage, name string, arguments json.RawMessage) {
	p.d.mu.Lock()
	p.d.asked["mcp:"+name]++
	p.d.mu.Unlock()
	result, failed, missing := p.tool(name, arguments)
	if missing {
		failed = "MCP error -32602: Tool " + name + " not found"
		if p.level == old {
			p.reply(w, id, "error", members{"code": -32602, "message": failed})
			return
		}
	}
	if failed != "" {
		p.reply(w, id, "result", members{"isError": true, "content": []members{{"type": "text", "text": failed}}})
		return
	}
	content := []members{} // before 0.5
	if p.level >= middle {
		text, _ := json.MarshalIndent(result, "", "  ")
		content = append(content, members{"type": "text", "text": string(text)})
	}
	p.reply(w, id, "result", members{"content": content, "structuredContent": result})
}

// tool runs a tool.
func (p *process) tool(name string, arguments json.RawMessage) (result members, failed string, missing bool) {
	var q struct {
		AgentID  string `json:"agentId"`
		Provider string `json:"provider"`
		CWD      string `json:"cwd"`
	}
	_ = json.Unmarshal(arguments, &q)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case name == "get_agent_activity":
		a := p.agents[q.AgentID]
		if a == nil {
			return nil, "Agent not found: " + q.AgentID, false
		}
		p.load(a)
		return members{"agentId": a.rec.ID, "updateCount": len(a.rows), "currentModeId": orNull(a.rec.ModeID), "content": activity(a)}, "", false
	case name == "kill_agent":
		a := p.agents[q.AgentID]
		if a == nil {
			return nil, "Agent " + q.AgentID + " not found", false
		}
		p.unload(a)
		p.changedAgent(a)
		return members{"success": true}, "", false
	case name == "list_profiles" && p.level >= middle:
		return members{"profiles": []members{{"id": "quick", "label": "Quick", "provider": "fake", "model": "echo"}}}, "", false
	case name == "inspect_provider" && p.level >= middle:
		one, known := findProvider(q.Provider)
		if !known {
			return nil, "Unknown provider '" + q.Provider + "'. Configured providers: claude, fake, fake-replay", false
		}
		if q.CWD == "" {
			return nil, "cwd is required", false
		}
		entry := snapshotEntry(one)
		entry["selectedModel"], entry["features"] = "echo", []members{}
		return entry, "", false
	}
	return nil, "", true
}

func activity(a *agent) string {
	var out strings.Builder
	for _, e := range project(a.rows) {
		text, _ := e.item["text"].(string)
		switch e.item["type"] {
		case "user_message":
			out.WriteString("[User] " + text + "\n")
		case "assistant_message":
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}
