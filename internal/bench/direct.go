package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentrelay/internal/client"
)

// directRounds is how many rounds the sides of the Direct workspace have: some
// take seconds each.
const directRounds = 5

// project is the id of the one project that a workspace serves.
const project = "bench"

// workspace is a gateway with one project, and a client of it that calls as
// chat clients do: over HTTP, with a token, one call after the other.
type workspace struct {
	home    *home
	program *program
	session *client.Session
	dir     string // of the project
}

// openWorkspace serves dir, or an empty directory of its own for "".
func openWorkspace(ctx context.Context, b *bench, dir string) (*workspace, error) {
	h, err := newHome(b.gateway, b.dir)
	if err != nil {
		return nil, err
	}
	w := &workspace{home: h, dir: dir}
	if dir == "" {
		w.dir = filepath.Join(h.dir, "project")
		if err := os.Mkdir(w.dir, 0o755); err != nil {
			return nil, err
		}
	}
	err = h.configure(map[string]any{
		"allowedRoots": []string{w.dir},
		"direct": map[string]any{"projects": []map[string]any{
			{"id": project, "path": w.dir, "write": dir == "", "commandMode": "full"},
		}},
		"transfers": map[string]any{"spoolBytes": 32 << 30},
	})
	if err != nil {
		return nil, err
	}
	if w.program, err = h.serve(); err != nil {
		return nil, err
	}
	if err := w.connect(ctx); err != nil {
		w.program.stop()
		return nil, err
	}
	return w, nil
}

func (w *workspace) connect(ctx context.Context) error {
	if err := w.home.login(ctx); err != nil {
		return err
	}
	server, err := client.Discover(ctx, w.home.client, w.home.made.MCPURL)
	if err != nil {
		return err
	}
	w.session, err = server.Connect(ctx, "bench", strings.TrimPrefix(w.home.mcp.token, "Bearer "))
	return err
}

func (w *workspace) close() {
	w.session.Close()
	w.program.stop()
}

// refusedAs says whether a call was refused with a code, and returns any other
// failure as an error. That a refusal is the answer is what some sides measure.
func refusedAs(err error, code string) error {
	refusal, ok := errors.AsType[*client.ToolError](err)
	switch {
	case ok && refusal.Code == code:
		return nil
	case err == nil:
		return fmt.Errorf("a call succeeded that had to be refused as %s", code)
	}
	return err
}
