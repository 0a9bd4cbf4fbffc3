package config

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxFile bounds the config file; a larger one is not a config.
const maxFile = 1 << 20

// Remark is a warning or a problem of one key of a config file.
type Remark struct {
	Key  string `json:"key,omitempty"`  // "hosts[0].transport"; empty for the file as a whole
	Line int    `json:"line,omitempty"` // 0 when the key is not in the file
	Text string `json:"text"`           // what is wrong, and what to write instead
}

// String is "line 3: hosts[0].transport: must be ...".
func (r Remark) String() string {
	var b strings.Builder
	if r.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", r.Line)
	}
	if r.Key != "" {
		b.WriteString(r.Key + ": ")
	}
	return b.String() + r.Text
}

// InvalidError says that a config file can't be used, with every reason.
type InvalidError struct {
	File     string
	Problems []Remark // never empty, in the order of the file
}

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = "\n  " + p.String()
	}
	return fmt.Sprintf("the config %s can't be used:%s", e.File, strings.Join(lines, ""))
}

// Load reads and checks a config file. getenv gives HOME and the XDG
// directories. The warnings are for the owner; the config works all the same.
//
// A file that is there and can't be used is an [InvalidError]; one that is
// missing is an error for which errors.Is reports fs.ErrNotExist.
func Load(path string, getenv func(string) string) (*Config, []Remark, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the config: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the config: %w", err)
	}
	c, warnings, err := Parse(path, raw, getenv)
	if err != nil {
		return nil, nil, err
	}
	if c.file, err = filepath.Abs(path); err != nil {
		return nil, nil, fmt.Errorf("finding the config: %w", err)
	}
	return c, warnings, nil
}

// Parse is [Load] for a file already read; file is its name in errors.
func Parse(file string, raw []byte, getenv func(string) string) (*Config, []Remark, error) {
	if len(raw) > maxFile {
		return nil, nil, &InvalidError{file, []Remark{{Text: fmt.Sprintf("is larger than %d bytes, which no config is: name the right file with --config", maxFile)}}}
	}
	root, err := parse(bytes.TrimPrefix(raw, []byte("\ufeff")))
	if err != nil {
		return nil, nil, &InvalidError{file, []Remark{{Line: err.Line, Text: err.Text}}}
	}
	r := &reading{lines: map[string]int{}, getenv: getenv}
	c := blank()
	r.decodeRoot(root, c)
	r.complete(c)
	r.check(c)
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Remark) int { return a.Line - b.Line })
		return nil, nil, &InvalidError{file, r.problems}
	}
	return c, r.warnings(c), nil
}

// Default is the config of an empty file.
func Default(getenv func(string) string) (*Config, error) {
	c, _, err := Parse("defaults", []byte("{}"), getenv)
	return c, err
}

// blank is a config with every default that depends on nothing.
func blank() *Config {
	return &Config{
		Port:            DefaultPort,
		OAuth:           OAuth{Redirects: []string{}},
		Mailbox:         Mailbox{Limits{PairPerHour: 60, OwnerPerHour: 600}},
		Events:          Events{DefaultTTL: "30d", MinTTL: "1m", MaxTTL: "365d", MaxSubscriptions: 1000, ChallengesPerMinute: 120, KeepDays: 90, ErrorCodes: "sketch"},
		Tools:           Tools{Mailbox: true, Direct: true, Agents: true, Devices: true},
		TrustedProxies:  []string{"127.0.0.0/8", "::1/128"},
		AllowedOrigins:  []string{},
		AllowedHosts:    []string{},
		Audit:           Audit{KeepDays: 365},
		Backup:          Backup{Every: "1d", Keep: 7},
		Log:             Log{Level: "info"},
		AllowedRoots:    []string{},
		Direct:          Direct{Projects: []Project{}},
		Commands:        Commands{PassEnvironment: []string{}, RunningPerOwner: 16, RunningPerHost: 32, OutputBytes: 16 << 20, StoredBytes: 2 << 30, KeepDays: 30},
		Transfers:       Transfers{MaxFileBytes: 1 << 30, SpoolBytes: 8 << 30, PerOwner: 64, LinkLife: "10m"},
		Hosts:           []Host{},
		PeerWakeTargets: []WakeTarget{},
	}
}

// reading is one pass over a file: where each key was and what was wrong.
type reading struct {
	lines    map[string]int // by key path; 0 is never stored
	problems []Remark
	getenv   func(string) string
}

// bad notes a problem of a key, unless that key or one above it already has one.
func (r *reading) bad(key, format string, args ...any) {
	for _, p := range r.problems {
		if p.Key != "" && (key == p.Key || strings.HasPrefix(key, p.Key+".") || strings.HasPrefix(key, p.Key+"[")) {
			return
		}
	}
	r.problems = append(r.problems, Remark{Key: key, Line: r.line(key), Text: fmt.Sprintf(format, args...)})
}

// line is where the key is, else where the nearest thing above it is.
func (r *reading) line(key string) int {
	for key != "" {
		if n := r.lines[key]; n > 0 {
			return n
		}
		key = key[:max(strings.LastIndexAny(key, ".["), 0)]
	}
	return 0
}

// unused are the keys whose feature this version does not have, or that no
// version needs any more.
var unused = []struct{ key, why string }{
	{"paseoCommand", "is not used: the gateway needs no Paseo command, the key can be removed"},
	{"hosts[].nodeCommand", "is not used: nothing runs under Node on that machine, the key can be removed"},
	{"tools.devices", "is not used by this version, which has no such tools yet"},
}

var index = regexp.MustCompile(`\[\d+\]`)

// warnings is one remark for each thing in the file that has no effect, or that
// the owner should know is on.
func (r *reading) warnings(c *Config) []Remark {
	first := map[string]int{}
	for key, line := range r.lines {
		key = index.ReplaceAllString(key, "[]")
		if n, ok := first[key]; !ok || line < n {
			first[key] = line
		}
	}
	out := []Remark{}
	for _, u := range unused {
		if line, ok := first[u.key]; ok {
			out = append(out, Remark{u.key, line, u.why})
		}
	}
	for i, p := range c.Direct.Projects {
		if !slices.ContainsFunc(c.AllowedRoots, func(root string) bool { return p.Path == root || root == "/" || strings.HasPrefix(p.Path, root+"/") }) {
			key := fmt.Sprintf("direct.projects[%d].path", i)
			out = append(out, Remark{key, r.line(key), "does not lie in a directory of allowedRoots, so nothing can be done in this project unless a link leads there: add the directory that holds it to allowedRoots"})
		}
	}
	if c.Safedial.AllowLoopback {
		out = append(out, Remark{"safedial.allowLoopback", first["safedial.allowLoopback"], "is on: clients can make the gateway connect to this machine. Use it for tests only"})
	}
	slices.SortStableFunc(out, func(a, b Remark) int { return a.Line - b.Line })
	return out
}

// expand replaces a local path by its absolute form.
func (r *reading) expand(key string, path *string) {
	full, err := ExpandPath(*path, r.getenv)
	if err != nil {
		r.bad(key, "%v", err)
		return
	}
	*path = full
}

// complete fills in the defaults that depend on other keys, and expands paths.
func (r *reading) complete(c *Config) {
	r.defaultPath("stateDir", &c.StateDir, func() (string, error) { return DefaultStateDir(r.getenv) })
	if rest, ok := strings.CutPrefix(c.OwnerTokenFile, "file:"); ok {
		c.OwnerTokenFile = rest
	}
	r.defaultPath("backup.dir", &c.Backup.Dir, func() (string, error) { return filepath.Join(c.StateDir, "backups"), nil })
	r.defaultPath("ownerTokenFile", &c.OwnerTokenFile, func() (string, error) { return filepath.Join(c.StateDir, "owner.json"), nil })
	if r.lines["publicBaseUrl"] == 0 {
		c.PublicBaseURL = "http://127.0.0.1:" + strconv.Itoa(c.Port)
	}
	for i := range c.AllowedRoots {
		r.expand(fmt.Sprintf("allowedRoots[%d]", i), &c.AllowedRoots[i])
	}
	for i := range c.Direct.Projects {
		r.expand(fmt.Sprintf("direct.projects[%d].path", i), &c.Direct.Projects[i].Path)
	}
	if r.lines["paseoCommand"] > 0 {
		r.expand("paseoCommand", &c.PaseoCommand)
	}
}

// defaultPath expands a path, or makes it when the key is not in the file.
func (r *reading) defaultPath(key string, path *string, make func() (string, error)) {
	if r.lines[key] > 0 {
		r.expand(key, path)
		return
	}
	made, err := make()
	if err != nil {
		r.bad(key, "has no default: %v", err)
		return
	}
	*path = made
}
