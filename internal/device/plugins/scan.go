package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/devices/wire"
)

// Root is where plugins are, and what they are run with.
type Root struct {
	Dir    string // the plugin root
	Spill  string // the directory of outputs that are too long
	State  string // what context.state says: where plugins may keep things
	Cwd    string // where plugins with cwd inherit run
	Device string // the device's name, for context and spill
	Getenv func(string) string
	Log    *slog.Logger // may be nil
}

// Problem is a plugin, or a tool of one, that was skipped.
type Problem struct {
	Plugin string `json:"plugin"`
	Why    string `json:"why"`
}

// Tool is something that can be called.
type Tool struct {
	wire.ToolInfo
	Plugin  string        // the directory it comes from
	Hint    string        // the argument that says best what a call does
	Timeout time.Duration // the longest that a call may take
	Digest  string        // the identity of its definition
	Remote  string        // the name that an MCP server has for it
	schema  *wire.Schema
	run     func(context.Context, Call) Result
}

// Check is what is wrong with canonical arguments, or nil.
func (t *Tool) Check(args json.RawMessage) error { return t.schema.Check(args) }

// Set are the tools that were found in one scan.
type Set struct {
	Tools    []*Tool // sorted by name
	Problems []Problem

	byName  map[string]*Tool
	servers []*server
	calls   sync.WaitGroup
	once    sync.Once
}

// Find is the tool of a name, or nil.
func (s *Set) Find(name string) *Tool { return s.byName[name] }

// Infos is what hello says of the tools.
func (s *Set) Infos() []wire.ToolInfo {
	out := make([]wire.ToolInfo, len(s.Tools))
	for i, t := range s.Tools {
		out[i] = t.ToolInfo
	}
	return out
}

// Run calls a tool of this set. The end of ctx ends the call.
func (s *Set) Run(ctx context.Context, t *Tool, c Call) Result {
	s.calls.Add(1)
	defer s.calls.Done()
	return t.run(ctx, c)
}

// Close ends the servers of this set once its calls have ended.
func (s *Set) Close() {
	s.once.Do(func() {
		s.calls.Wait()
		for _, v := range s.servers {
			v.close()
		}
	})
}

// serverTime is how long a server may take to start and to say what it has.
const serverTime = 20 * time.Second

// maxHello bounds what the tools may take of a hello frame, in bytes.
const maxHello = wire.MaxFrame - 64<<10

// Scan reads the plugin root. A root that isn't there has no plugins; what can't be
// used is in Problems.
func (r Root) Scan(ctx context.Context) *Set {
	s := &Set{byName: map[string]*Tool{}}
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.Problems = []Problem{{"", "the plugin root can't be read: " + errors.Unwrap(err).Error()}}
		}
		return s
	}
	env, path := environment(r.Getenv)
	loaders := make([]loaded, len(entries))
	var all sync.WaitGroup
	for i, e := range entries {
		// Others are no plugins: .git, __pycache__, files beside them.
		if dir := filepath.Join(r.Dir, e.Name()); wire.NameForm.MatchString(e.Name()) && isDir(dir) {
			all.Go(func() { loaders[i] = r.load(ctx, e.Name(), dir, env, path) })
		}
	}
	all.Wait()
	s.join(loaders)
	return s
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// loaded is what one plugin has.
type loaded struct {
	tools    []*Tool
	problems []Problem
	server   *server
}

func (r Root) load(ctx context.Context, name, dir string, env []string, path string) loaded {
	fail := func(err error) loaded { return loaded{problems: []Problem{{name, err.Error()}}} }
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fail(errors.New("its directory can't be resolved"))
	}
	raw, err := readManifest(dir)
	if err != nil {
		return fail(err)
	}
	m, schema, err := parse(raw, name)
	if err != nil {
		return fail(err)
	}
	cwd := r.Cwd
	if m.Cwd != "" && m.Cwd != "inherit" {
		if cwd = m.Cwd; !isDir(cwd) {
			return fail(errors.New("cwd is no directory"))
		}
	}
	id := digest(raw, dir)
	if m.Type == "mcp" {
		return r.loadServer(ctx, m, id, &server{manifest: m, cwd: cwd, env: with(env, m.Env), path: path, log: r.Log})
	}
	entry, err := resolveEntry(dir, m.Entry)
	if err != nil {
		return fail(err)
	}
	argv := []string{entry}
	if m.Interpreter != "" {
		program, found := lookUp(m.Interpreter, path)
		if !found {
			return fail(fmt.Errorf("the interpreter %s is not in PATH", clip(m.Interpreter, 80)))
		}
		argv = []string{program, entry}
	} else if info, err := os.Stat(entry); err != nil || info.Mode()&0o111 == 0 {
		return fail(errors.New("the entry is not executable, and there is no interpreter"))
	}
	p := script{argv: argv, cwd: cwd, env: with(env, m.Env), root: r}
	return loaded{tools: []*Tool{{
		ToolInfo: wire.ToolInfo{Name: name, Desc: m.Description, Schema: m.Schema, Requires: m.Requires},
		Plugin:   name, Hint: m.SummaryHint, Timeout: m.timeout(), Digest: id, schema: schema, run: p.run,
	}}}
}

// join makes one set of all plugins: names are unique, and all fit into a hello.
func (s *Set) join(all []loaded) {
	var tools []*Tool
	for _, l := range all {
		tools = append(tools, l.tools...)
		s.Problems = append(s.Problems, l.problems...)
		if l.server != nil {
			s.servers = append(s.servers, l.server)
		}
	}
	rename(tools)
	slices.SortFunc(tools, func(a, b *Tool) int { return strings.Compare(a.Name, b.Name) })
	size := 0
	for _, t := range tools {
		raw, err := wire.Encode(wire.Frame{Type: wire.Hello, Tools: []wire.ToolInfo{t.ToolInfo}})
		switch {
		case err != nil || size+len(raw) > maxHello:
			s.Problems = append(s.Problems, Problem{t.Plugin, fmt.Sprintf("the tool %s was left out: the schemas of all tools must fit into %d bytes", t.Name, maxHello)})
			continue
		case len(s.Tools) == wire.MaxTools:
			s.Problems = append(s.Problems, Problem{t.Plugin, fmt.Sprintf("the tool %s was left out: a device has at most %d tools", t.Name, wire.MaxTools)})
			continue
		}
		size += len(raw)
		s.Tools = append(s.Tools, t)
		s.byName[t.Name] = t
	}
}
