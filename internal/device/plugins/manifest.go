// Package plugins finds and runs the tools of a device.
//
// It owns the form of a plugin (a directory with manifest.json and an entry), the
// contract by which its program is started (one JSON object in, the last JSON object
// line out), the limits on what it may say, and the servers of MCP that a plugin of
// type mcp names. It promises that a plugin with a fault is reported and skipped,
// that a program gets arguments that fit its schema, an environment without secrets
// of this process, and no terminal, that its whole process group is gone when a call
// has ended, and that memory is bounded whatever it prints. It leaves to package
// device which call may run at all, and to nobody what a program does: it runs as
// the user, without a sandbox.
package plugins

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"agentrelay/internal/devices/wire"
)

// Manifest is what manifest.json says.
type Manifest struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Type        string            `json:"type"` // "" or script, or mcp
	Entry       string            `json:"entry"`
	Interpreter string            `json:"interpreter"`
	Schema      json.RawMessage   `json:"schema"`
	TimeoutMs   *int64            `json:"timeout_ms"`
	Cwd         string            `json:"cwd"`
	SummaryHint string            `json:"summary_hint"`
	Requires    []string          `json:"requires"`
	Env         map[string]string `json:"env"`

	// Of type mcp: one of the two.
	Command []string          `json:"command"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

const (
	manifestName = "manifest.json"
	// maxManifest bounds the file, in bytes.
	maxManifest    = 256 << 10
	defaultTimeout = 60 * time.Second
	maxTimeout     = wire.CallBudget
)

var requirements = []string{"net", "fs", "shell"}

// envForm is the form of the names in env.
var envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parse reads a manifest and checks all that needs no disk. Its errors say what to
// change. They name keys, but of values only those that are names themselves.
func parse(raw []byte, directory string) (Manifest, *wire.Schema, error) {
	var m Manifest
	if !utf8.Valid(raw) {
		return m, nil, errors.New("manifest.json is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return m, nil, fmt.Errorf("manifest.json %s", jsonProblem(err))
	}
	if d.More() {
		return m, nil, errors.New("manifest.json has something after the object")
	}
	if err := m.check(directory); err != nil {
		return m, nil, err
	}
	if m.Type == "mcp" {
		return m, nil, nil
	}
	schema, err := wire.Compile(m.Schema)
	if err != nil {
		return m, nil, err
	}
	return m, schema, nil
}

func jsonProblem(err error) string {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return "is not an object"
	case errors.As(err, &kind):
		return fmt.Sprintf("has a %s where %s belongs", strings.Fields(kind.Value)[0], kind.Field)
	case errors.As(err, &syntax):
		return fmt.Sprintf("is not JSON at byte %d", syntax.Offset)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		return "has the unknown key " + strings.ToValidUTF8(clip(strings.TrimPrefix(err.Error(), "json: unknown field "), 80), "?")
	}
	return "is not JSON"
}

// clip cuts s to at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}

func (m Manifest) check(directory string) error {
	switch {
	case !wire.NameForm.MatchString(m.Name):
		return fmt.Errorf("name must match %s", wire.NameForm)
	case m.Name != directory:
		return fmt.Errorf("name is %s, but the directory is %s: they must be equal", m.Name, directory)
	case strings.TrimSpace(m.Description) == "":
		return errors.New("description is missing")
	case len(m.Description) > wire.MaxDesc:
		return fmt.Errorf("description has more than %d bytes", wire.MaxDesc)
	case m.TimeoutMs != nil && (*m.TimeoutMs < 1 || *m.TimeoutMs > maxTimeout.Milliseconds()):
		return fmt.Errorf("timeout_ms must be from 1 to %d", maxTimeout.Milliseconds())
	case m.Cwd != "" && m.Cwd != "inherit" && !filepath.IsAbs(m.Cwd):
		return errors.New(`cwd must be "inherit" or an absolute path`)
	}
	for _, r := range m.Requires {
		if !slices.Contains(requirements, r) {
			return errors.New("requires may have net, fs and shell")
		}
	}
	for name, value := range m.Env {
		if !envForm.MatchString(name) || strings.ContainsRune(value, 0) {
			return errors.New("env has a name or value that no environment can have")
		}
	}
	switch m.Type {
	case "", "script":
		return m.checkScript()
	case "mcp":
		return m.checkServer()
	}
	return errors.New("type must be script or mcp")
}

func (m Manifest) checkScript() error {
	switch {
	case m.Entry == "":
		return errors.New("entry is missing")
	case !filepath.IsLocal(m.Entry):
		return errors.New("entry must be a file inside the plugin's directory")
	case m.Command != nil || m.URL != "" || m.Headers != nil:
		return errors.New("command, url and headers need type mcp")
	}
	return nil
}

func (m Manifest) checkServer() error {
	switch {
	case m.Entry != "" || m.Interpreter != "" || m.Schema != nil:
		return errors.New("entry, interpreter and schema are not for type mcp: the server says what its tools take")
	case (len(m.Command) > 0) == (m.URL != ""):
		return errors.New("type mcp needs either command or url")
	case m.URL != "" && (m.Env != nil || m.Cwd != ""):
		return errors.New("env and cwd need a command")
	case m.URL == "" && m.Headers != nil:
		return errors.New("headers need a url")
	case len(m.Command) > 0 && m.Command[0] == "":
		return errors.New("command must begin with a program")
	}
	if m.URL != "" {
		u, err := url.Parse(m.URL)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return errors.New("url must be an http or https address")
		}
	}
	return nil
}

func (m Manifest) timeout() time.Duration {
	if m.TimeoutMs == nil {
		return defaultTimeout
	}
	return time.Duration(*m.TimeoutMs) * time.Millisecond
}

// digest is the identity of a definition: another manifest in another place is
// another tool.
func digest(raw []byte, dir string) string {
	sum := sha256.New()
	sum.Write([]byte(dir))
	sum.Write([]byte{0})
	sum.Write(raw)
	return hex.EncodeToString(sum.Sum(nil))
}

// readManifest reads the file of a plugin that only this user, or root, can change.
func readManifest(dir string) ([]byte, error) {
	path := filepath.Join(dir, manifestName)
	for _, p := range []string{dir, path} {
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("there is no manifest.json")
		}
		if err != nil {
			return nil, fmt.Errorf("it can't be read: %w", errors.Unwrap(err))
		}
		if err := ours(info); err != nil {
			return nil, err
		}
		if p == path && !info.Mode().IsRegular() {
			return nil, errors.New("manifest.json is no file")
		}
		if p == path && info.Size() > maxManifest {
			return nil, fmt.Errorf("manifest.json has more than %d bytes", maxManifest)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("manifest.json can't be read: %w", errors.Unwrap(err))
	}
	return raw, nil
}

// ours refuses what others could have put there: it would run as this user.
func ours(info fs.FileInfo) error {
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("%s may be written by anybody: chmod o-w it", info.Name())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to another user", info.Name())
	}
	return nil
}

// resolveEntry is the entry's file, which lies in the plugin's directory even when
// links are followed.
func resolveEntry(dir, entry string) (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(dir, entry))
	if err != nil {
		return "", errors.New("the entry is not there")
	}
	inside, err := filepath.Rel(dir, real)
	if err != nil || !filepath.IsLocal(inside) {
		return "", errors.New("the entry is a link out of the plugin's directory")
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() {
		return "", errors.New("the entry is no file")
	}
	return real, ours(info)
}
