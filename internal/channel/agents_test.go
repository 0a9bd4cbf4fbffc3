package channel

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentrelay/internal/channel/capability"
	"agentrelay/internal/fault"
	"agentrelay/internal/principal"
	"agentrelay/internal/store"
)

func TestIssuedOnceAndKept(t *testing.T) {
	m := newMachine(t)
	if _, err := m.agents.Adopt(t.Context(), principal.SharedOwner, "local", "builder"); err != nil {
		t.Fatal(err)
	}
	if err := capability.Remove(m.dir, "builder"); err != nil { // lost
		t.Fatal(err)
	}
	paths := make(chan string, 8)
	var wg sync.WaitGroup
	for range cap(paths) {
		wg.Go(func() {
			path, err := m.agents.Issue(t.Context(), "local", "builder")
			if err != nil {
				t.Error(err)
			}
			paths <- path
		})
	}
	wg.Wait()
	path := <-paths
	key := m.key(m.dir, "builder")
	issues := 0
	entries, err := lastEntries(t, m.store)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Action == "agent.issue" {
			issues++
		}
	}
	if issues != 2 { // that of the adoption, and one for the lost file
		t.Errorf("%d capabilities were issued", issues)
	}
	for _, c := range []struct {
		path string
		mode fs.FileMode
	}{{path, 0o600}, {filepath.Dir(path), fs.ModeDir | 0o700}} {
		if info, err := os.Lstat(c.path); err != nil || info.Mode() != c.mode {
			t.Errorf("%s: %v, %v", c.path, info.Mode(), err)
		}
	}
	m.restart()
	if again, err := m.agents.Issue(t.Context(), "local", "builder"); err != nil || again != path || m.key(m.dir, "builder") != key {
		t.Errorf("after a restart: %s, %v", again, err)
	}
	agent{m, "builder", key}.request("GET", "/v1/self", "").want(t, "")

	// Content that the database doesn't know is replaced.
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.agents.Issue(t.Context(), "local", "builder"); err != nil || m.key(m.dir, "builder") == key {
		t.Errorf("a broken file: %v", err)
	}
}

func TestAdoptRefuses(t *testing.T) {
	m := newMachine(t)
	m.adopt("builder")
	record := func(owner, host, id string) error {
		return store.Exec(t.Context(), m.store, func(tx *store.Tx) error { return m.agents.Record(tx, owner, host, id) })
	}
	const id = "0B9C1D0E-8E3D-4A53-9D2E-8C2F3B1F7A10"
	if err := errors.Join(record("local-owner:a", "box", id), record("local-owner:a", "box", strings.ToLower(id))); err != nil {
		t.Errorf("recording a dispatch twice: %v", err)
	}
	if err := record("local-owner:b", "box", id); !errors.Is(err, AgentTaken) {
		t.Errorf("recorded for two owners: %v", err)
	}
	for _, c := range []struct {
		owner, host, agent string
		kind               fault.Kind
	}{
		{principal.SharedOwner, "nowhere", "x", fault.UnknownHost},
		{principal.SharedOwner, "", "../x", fault.InvalidArguments},
		{principal.SharedOwner, "", "", fault.InvalidArguments},
		{"somebody", "", "x", fault.InvalidArguments},
		{"local-owner:", "", "x", fault.InvalidArguments},
		{"local-owner:b", "", "builder", AgentTaken},
		{"local-owner:b", "box", id, AgentTaken},
	} {
		if _, err := m.agents.Adopt(t.Context(), c.owner, c.host, c.agent); !errors.Is(err, c.kind) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if out, err := m.agents.Adopt(t.Context(), "local-owner:a", "box", id); err != nil || out.Created || out.Agent.Source != Dispatched || out.Agent.AgentID != strings.ToLower(id) {
		t.Errorf("adopting what was dispatched: %+v, %v", out, err)
	}
	if _, err := m.agents.Revoke(t.Context(), "", "nobody"); !errors.Is(err, UnknownAgent) {
		t.Error(err)
	}
	for range 2 {
		if _, err := m.agents.Revoke(t.Context(), "box", id); err != nil {
			t.Error(err)
		}
	}
	if err := record("local-owner:a", "box", id); err != nil {
		t.Errorf("recording a revoked agent: %v", err)
	}
	if _, err := m.agents.Issue(t.Context(), "box", strings.ToLower(id)); !errors.Is(err, AgentRevoked) {
		t.Errorf("issued to a revoked agent: %v", err)
	}
	if _, err := m.agents.Issue(t.Context(), "box", "nobody"); !errors.Is(err, UnknownAgent) {
		t.Error(err)
	}
	if out, err := m.agents.Adopt(t.Context(), "local-owner:b", "box", id); err != nil || !out.Created || out.Agent.Owner != "local-owner:b" {
		t.Errorf("a revoked agent that changes hands: %+v, %v", out, err)
	}
}

// TestRemoteHost: the same key lies on the host for good, and follows when the
// host was away.
func TestRemoteHost(t *testing.T) {
	m := newMachine(t)
	m.remote.down = errDown
	out, err := m.agents.Adopt(t.Context(), principal.SharedOwner, "box", "builder")
	if err != nil || out.Pending == "" || !out.Agent.IssuedAt.IsZero() {
		t.Fatalf("%+v, %v", out, err)
	}
	if err := m.agents.Deliver(t.Context(), "box"); err == nil {
		t.Error("delivered to a host that is down")
	}
	m.remote.down = nil
	if err := m.agents.Deliver(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	first := m.remote.files["agent-channels/builder.json"]
	if _, err := capability.Decode([]byte(first), "builder"); err != nil {
		t.Fatalf("%q: %v", first, err)
	}
	m.restart()
	delete(m.remote.files, "agent-channels/builder.json")
	if _, err := m.agents.Issue(t.Context(), "box", "builder"); err != nil || m.remote.files["agent-channels/builder.json"] != first {
		t.Errorf("issued again: %q, %v", m.remote.files, err)
	}
	if _, err := capability.Read(m.dir, "builder"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it opens this host too: %v", err)
	}
}

// TestWhatIsNotPrivateIsNamed to the owner, and to nobody else.
func TestWhatIsNotPrivateIsNamed(t *testing.T) {
	m := newMachine(t)
	m.adopt("builder")
	link := filepath.Join(m.dir, capability.Name("builder"))
	if err := errors.Join(os.Rename(link, link+"x"), os.Symlink(link+"x", link)); err != nil {
		t.Fatal(err)
	}
	_, err := m.agents.Adopt(t.Context(), principal.SharedOwner, "", "builder")
	if e := fault.From(err); e.Code != "capability_not_private" || !strings.Contains(e.Message, link) {
		t.Errorf("adopting: %v", err)
	}
	_, err = m.agents.Issue(t.Context(), "local", "builder")
	if e := fault.From(err); err == nil || strings.Contains(e.Message+e.Hint, m.dir) {
		t.Errorf("issuing for a dispatch: %v", err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("it was replaced: %v, %v", info, err)
	}
}

func TestListPages(t *testing.T) {
	m := newMachine(t)
	for _, id := range []string{"c", "a", "b"} {
		m.adopt(id)
	}
	if _, err := m.agents.Revoke(t.Context(), "", "b"); err != nil {
		t.Fatal(err)
	}
	in, got := ListIn{IncludeRevoked: true, Limit: ptr(1)}, ""
	for {
		out, err := m.agents.List(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range out.Agents {
			got += a.AgentID
		}
		if out.NextCursor == "" {
			break
		}
		in.Cursor = &out.NextCursor
	}
	if got != "abc" {
		t.Errorf("listed %s", got)
	}
	if out, err := m.agents.List(t.Context(), ListIn{}); err != nil || len(out.Agents) != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	if out, err := m.agents.List(t.Context(), ListIn{Owner: "local-owner:x"}); err != nil || len(out.Agents) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := m.agents.List(t.Context(), ListIn{Cursor: ptr("!")}); !errors.Is(err, fault.InvalidCursor) {
		t.Error(err)
	}
	if _, err := m.agents.List(t.Context(), ListIn{Limit: ptr(0)}); !errors.Is(err, fault.InvalidArguments) {
		t.Error(err)
	}
}

func TestKeepCopy(t *testing.T) {
	dir := shortDir(t)
	exe := filepath.Join(t.TempDir(), "peer-agent")
	for _, content := range []string{"one", "one", "two"} {
		if err := os.WriteFile(exe, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		path, err := KeepCopy(dir, exe)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		info, _ := os.Lstat(path)
		if err != nil || string(raw) != content || info.Mode() != 0o700 || path != ProgramPath(dir) {
			t.Errorf("%s is %q, %v, %v", path, raw, info.Mode(), err)
		}
	}
	// A link in its place is replaced, and what it names is left alone.
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(victim, []byte("mine"), 0o600), os.Remove(ProgramPath(dir)), os.Symlink(victim, ProgramPath(dir))); err != nil {
		t.Fatal(err)
	}
	if _, err := KeepCopy(dir, exe); err != nil {
		t.Error(err)
	}
	if raw, _ := os.ReadFile(victim); string(raw) != "mine" {
		t.Errorf("the link was followed: %q", raw)
	}
	if err := os.Chmod(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	var unsafe *capability.UnsafeError
	if _, err := KeepCopy(dir, exe); !errors.As(err, &unsafe) {
		t.Errorf("a directory that others read: %v", err)
	}
	if _, err := KeepCopy(shortDir(t), filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
