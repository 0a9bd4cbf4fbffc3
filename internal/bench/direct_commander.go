package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// nowhere is an address at which nobody listens.
const nowhere = "http://127.0.0.1:1"

// commander is Desktop Commander as desktop programs run it: a child process
// that is called over standard input and output.
type commander struct{ session *mcp.ClientSession }

// startCommander starts it with a home directory of its own. It reports usage
// and fetches flags when it can, so it is told not to, and whatever it still
// tries leads nowhere.
func startCommander(ctx context.Context, b *bench) (*commander, error) {
	dir, err := os.MkdirTemp(b.dir, "commander")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, ".claude-server-commander")
	if err := os.Mkdir(config, 0o700); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(map[string]any{
		"telemetryEnabled": false, "pendingWelcomeOnboarding": false, "welcomeOnboardingEligible": false,
		"allowedDirectories": []string{}, "blockedCommands": []string{}, "defaultShell": "/bin/sh",
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(config, "config.json"), raw, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(node(b.modules), filepath.Join(b.commander, "@wonderwhy-er", "desktop-commander", "dist", "index.js"), "--no-onboarding")
	cmd.Dir = dir
	cmd.Env = []string{
		"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "DC_FLAG_URL=" + nowhere,
		"HTTP_PROXY=" + nowhere, "HTTPS_PROXY=" + nowhere, "http_proxy=" + nowhere, "https_proxy=" + nowhere,
	}
	c := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := c.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return nil, fmt.Errorf("starting Desktop Commander: %w", err)
	}
	return &commander{session}, nil
}

func (c *commander) close() { c.session.Close() }

// call returns the text of an answer, that of a refusal as well.
func (c *commander) call(ctx context.Context, tool string, arguments any) (string, error) {
	res, err := c.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return "", fmt.Errorf("calling %s of Desktop Commander: %w", tool, err)
	}
	var text strings.Builder
	for _, block := range res.Content {
		if t, ok := block.(*mcp.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	return text.String(), nil
}

const (
	// searchPage is how many results a page of its search has.
	searchPage = 5000
	// pollEvery is the pause between two looks at a search that goes on: looking
	// without a pause slows it down.
	pollEvery = 20 * time.Millisecond
)

// search finds lines in the files below dir and reads the results to the end, or
// until there are enough.
// It answers in words, from which the session, the state and the lines are read.
func (c *commander) search(ctx context.Context, dir string, q query) (lines int, err error) {
	text, err := c.call(ctx, "start_search", map[string]any{
		"path": dir, "pattern": q.text, "searchType": "content", "literalSearch": !q.regex, "ignoreCase": false, "contextLines": 0,
	})
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(text, "session: ")
	if !ok {
		return 0, fmt.Errorf("a search of Desktop Commander did not begin: %.300s", text)
	}
	id, _, _ := strings.Cut(rest, "\n")
	length := searchPage
	if q.limit > 0 {
		length = q.limit
	}
	for {
		text, err := c.call(ctx, "get_more_search_results", map[string]any{"sessionId": id, "offset": lines, "length": length})
		if err != nil {
			return 0, err
		}
		shown := strings.Count(text, "📄 ")
		lines += shown
		switch complete := strings.Contains(text, "Status: COMPLETED"); {
		case q.limit > 0 && lines >= q.limit:
			_, err := c.call(ctx, "stop_search", map[string]any{"sessionId": id})
			return lines, err
		case complete && shown < length:
			return lines, nil
		case complete:
		case !strings.Contains(text, "Status: IN PROGRESS"):
			return 0, fmt.Errorf("a search of Desktop Commander is lost: %.300s", text)
		default:
			time.Sleep(pollEvery)
		}
	}
}
