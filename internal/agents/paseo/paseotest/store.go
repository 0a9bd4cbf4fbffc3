package paseotest

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// store is the daemon's directory. Files are replaced as a whole, so that a kill
// leaves the old or the new one.
type store struct{ dir string }

// record is what is kept of an agent.
type record struct {
	ID             string            `json:"id"`
	Provider       string            `json:"provider"`
	Model          string            `json:"model"`
	CWD            string            `json:"cwd"`
	WorkspaceID    string            `json:"workspaceId"`
	Title          string            `json:"title"`
	Labels         map[string]string `json:"labels"`
	ModeID         string            `json:"modeId"`
	Thinking       string            `json:"thinking"`
	Features       map[string]any    `json:"features"`
	Status         string            `json:"status"`
	LastError      string            `json:"lastError"`
	Attention      string            `json:"attention"`
	AttentionAt    string            `json:"attentionAt"`
	CreatedAt      string            `json:"createdAt"`
	UpdatedAt      string            `json:"updatedAt"`
	LastUserAt     string            `json:"lastUserAt"`
	ArchivedAt     string            `json:"archivedAt"`
	SessionHistory []historyItem     `json:"sessionHistory,omitempty"` // of providers that replay
}

// historyItem is a message as a provider remembers it.
type historyItem struct {
	User bool   `json:"user"`
	Text string `json:"text"`
}

// workspace is what is kept of a workspace.
type workspace struct {
	ID        string `json:"id"`
	ProjectID string `json:"projectId"`
	Directory string `json:"directory"`
	Root      string `json:"root"`
	Kind      string `json:"kind"`
	Title     string `json:"title"`
	Key       string `json:"key"`
	Print     string `json:"print"`
}

// receipt is a journalled request.
type receipt struct {
	Print   string `json:"print"`
	State   string `json:"state"` // pending or completed
	AgentID string `json:"agentId"`
}

func (s store) prepare() error {
	for _, sub := range []string{"agents", "workspaces", "receipts", "worktrees"} {
		if err := os.MkdirAll(filepath.Join(s.dir, sub), 0o700); err != nil {
			return err
		}
	}
	_, err := s.serverID()
	return err
}

func (s store) serverID() (string, error) {
	path := filepath.Join(s.dir, "server-id")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data = []byte(newID("srv_"))
		err = os.WriteFile(path, data, 0o600)
	}
	return strings.TrimSpace(string(data)), err
}

// put replaces a file; a test whose disk fails finds out by what is missing.
func (s store) put(kind, name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		return
	}
	path := filepath.Join(s.dir, kind, name+".json")
	if os.WriteFile(path+".new", data, 0o600) == nil {
		_ = os.Rename(path+".new", path)
	}
}

func (s store) drop(kind, name string) { _ = os.Remove(filepath.Join(s.dir, kind, name+".json")) }

// load reads every file of a kind.
func load[T any](s store, kind string) ([]T, error) {
	paths, err := filepath.Glob(filepath.Join(s.dir, kind, "*.json"))
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(paths))
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (s store) receipt(name string) (receipt, bool) {
	data, err := os.ReadFile(filepath.Join(s.dir, "receipts", name+".json"))
	if err != nil {
		return receipt{}, false
	}
	var r receipt
	return r, json.Unmarshal(data, &r) == nil
}

// note appends a prompt to the list of those that ran.
func (s store) note(p Prompt) {
	data, err := json.Marshal(p)
	if err != nil {
		return
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "prompts.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(append(data, '\n'))
}

func (s store) prompts() ([]Prompt, error) {
	f, err := os.Open(filepath.Join(s.dir, "prompts.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Prompt
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var p Prompt
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, lines.Err()
}

// print is a fingerprint of what a request says, and a name for a file.
func print(parts ...any) string {
	data, _ := json.Marshal(parts)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
