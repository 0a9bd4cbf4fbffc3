package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/client"
	"agentrelay/internal/direct"
	"agentrelay/internal/direct/commands"
	"agentrelay/internal/direct/commands/output"
	"agentrelay/internal/direct/commands/record"
	"agentrelay/internal/direct/files"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/transfers"
)

// withProjects gives the home two projects: site, in which everything may be
// done, and locked, in which nothing but looking at its name.
func withProjects(t *testing.T, h *rig.Home) (dir string) {
	t.Helper()
	root := filepath.Join(h.Dir, "projects")
	dir = filepath.Join(root, "site")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.Configure("allowedRoots", []string{root})
	h.Configure("direct", object{"projects": []object{
		{"id": "site", "path": dir, "write": true, "commandMode": "full"},
		{"id": "locked", "path": dir, "read": false},
		{"id": "listed", "path": dir, "commandMode": "registered", "commands": []object{{"name": "hello", "argv": []string{"echo", "hello"}}}},
		{"id": "gone", "path": filepath.Join(root, "gone")},
		{"id": "outside", "path": h.Dir},
	}})
	return dir
}

// connect is a session of a client that the owner allowed everything.
func connect(t *testing.T, c *rig.Client) *client.Session {
	t.Helper()
	s, err := c.Connect(t.Context(), "direct", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// do makes a call that must succeed.
func do[Out any](t *testing.T, s *client.Session, tool string, in any) (out Out) {
	t.Helper()
	if err := s.Call(t.Context(), tool, in, &out); err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return out
}

// refusedAs is the code of a tool's refusal.
func refusedAs(err error) string {
	var refusal *client.ToolError
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return fmt.Sprint(err)
}

func TestDirectFiles(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	g := h.Serve()
	c := h.Authorize("editor")
	s := connect(t, c)

	projects := do[direct.ListDirectProjectsOut](t, s, "list_direct_projects", object{})
	for _, p := range projects.Projects {
		if off := p.ProjectID == "gone" || p.ProjectID == "outside"; (p.Unavailable != "") != off {
			t.Errorf("%s: unavailable %q", p.ProjectID, p.Unavailable)
		}
	}
	written := do[files.WriteDirectFileOut](t, s, "write_direct_file", object{
		"projectId": "site", "path": "src/main.txt", "content": "one\ntwo secretly\nthree\n", "expectedSha256": nil, "createParents": true,
	})
	edited := do[files.EditDirectFileOut](t, s, "edit_direct_file", object{
		"projectId": "site", "path": "src/main.txt", "expectedSha256": written.SHA256, "oldText": "two", "newText": "2",
	})
	read := do[files.ReadDirectFileOut](t, s, "read_direct_file", object{"projectId": "site", "path": "src/main.txt"})
	if read.Content != "one\n2 secretly\nthree\n" || read.SHA256 != edited.SHA256 || edited.Replacements != 1 {
		t.Errorf("edited %+v, read %+v", edited, read)
	}
	if found := do[files.SearchDirectFilesOut](t, s, "search_direct_files", object{"projectId": "site", "query": "secretly"}); len(found.Matches) != 1 || found.Matches[0].Line != 2 {
		t.Errorf("found %+v", found)
	}
	if listed := do[files.ListDirectFilesOut](t, s, "list_direct_files", object{"projectId": "site", "recursive": true}); len(listed.Entries) != 2 {
		t.Errorf("listed %+v", listed)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "src/main.txt")); err != nil || string(raw) != read.Content {
		t.Errorf("on disk is %q, %v", raw, err)
	}

	h.OK("clients", "deny", c.ID, "files_write")
	if err := s.Call(t.Context(), "write_direct_file", object{"projectId": "site", "path": "b", "content": "", "expectedSha256": nil}, nil); refusedAs(err) != "not_permitted" {
		t.Errorf("a write that the owner denies: %v", err)
	}
	do[files.ReadDirectFileOut](t, s, "read_direct_file", object{"projectId": "site", "path": "src/main.txt"})
	h.OK("clients", "deny", c.ID, "files_read", "commands")
	if err := s.Call(t.Context(), "list_direct_projects", object{}, nil); refusedAs(err) != "not_permitted" {
		t.Errorf("the projects for a client that may do nothing there: %v", err)
	}
	do[object](t, s, "list_hosts", object{})

	audit := h.OK("status", "--audit", "50", "--json")
	for _, want := range []string{"file.write", "file.edit", "file.read", "file.search", "src/main.txt", `project \"gone\"`} {
		if !strings.Contains(audit, want) {
			t.Errorf("the status lacks %s:\n%s", want, audit)
		}
	}
	if strings.Contains(audit+g.Output(), "secretly") {
		t.Error("the text of a file is in the log or the audit log")
	}
}

func TestDirectCommands(t *testing.T) {
	h := rig.NewHome(t, binary)
	withProjects(t, h)
	g := h.Serve()
	s := connect(t, h.Authorize("runner"))

	short := do[commands.RunDirectCommandOut](t, s, "run_direct_command", object{
		"projectId": "listed", "requestId": "r1", "command": "hello", "waitMs": 20000,
	})
	if short.State != record.Exited || short.ExitCode == nil || *short.ExitCode != 0 || short.Output == nil || text(short.Output.Events) != "hello\n" {
		t.Errorf("a registered command: %+v", short)
	}
	talk := do[commands.RunDirectCommandOut](t, s, "run_direct_command", object{"projectId": "site", "requestId": "r2", "argv": []string{"cat"}, "stdin": "open"})
	for range 2 { // the second is a repeat
		do[object](t, s, "write_direct_command_input", object{"commandId": talk.CommandID, "inputId": "i1", "text": "spoken quietly\n", "eof": true})
	}
	if heard := finish(t, s, "r2"); heard.State != record.Exited || text(heard.Events) != "spoken quietly\n" {
		t.Errorf("a command with input: %+v", heard)
	}
	long := do[commands.RunDirectCommandOut](t, s, "run_direct_command", object{"projectId": "site", "requestId": "r3", "argv": []string{"sleep", "600"}, "timeoutMs": 3600000})
	if code := g.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
	list := h.OK("commands", "list", "--state", "running") // without a gateway
	if !strings.Contains(list, long.CommandID) || strings.Contains(list, short.CommandID) {
		t.Errorf("the running commands are\n%s", list)
	}
	g = h.Serve()
	cancelled := do[commands.CancelDirectCommandOut](t, s, "cancel_direct_command", object{"commandId": long.CommandID})
	if !cancelled.CancelRequested {
		t.Errorf("cancelled: %+v", cancelled)
	}
	if end := finish(t, s, "r3"); end.State != record.Cancelled || end.Signal == "" {
		t.Errorf("after the cancellation: %+v", end)
	}
	other := do[commands.RunDirectCommandOut](t, s, "run_direct_command", object{"projectId": "site", "requestId": "r4", "argv": []string{"sleep", "600"}, "timeoutMs": 3600000})
	if out := h.OK("commands", "cancel", other.CommandID); !strings.Contains(out, "ended") {
		t.Errorf("the owner's cancellation says %q", out)
	}
	if out := h.OK("commands", "show", short.CommandID); !strings.Contains(out, "exited 0") || !strings.Contains(out, "hello") {
		t.Errorf("a command is shown as\n%s", out)
	}
	audit := h.OK("status", "--audit", "50", "--json")
	for _, want := range []string{"command.run", "command.input", "command.cancel"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit log lacks %s:\n%s", want, audit)
		}
	}
	if all := audit + g.Output(); strings.Contains(all, "spoken quietly") || strings.Contains(all, "sleep") || strings.Contains(all, "begun") {
		t.Errorf("the log or the audit log has a command's text, or lacks an end:\n%s", all)
	}
	noSupervisors(t, h)
}

// A call that waits is answered when the gateway is asked to stop; what it waits
// for goes on.
func TestStopEndsTheWaitForACommand(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	g := h.Serve()
	c := h.Authorize("waiter")
	s := connect(t, c)
	answer := make(chan commands.RunDirectCommandOut, 1)
	go func() {
		var out commands.RunDirectCommandOut
		err := s.Call(context.Background(), "run_direct_command", object{
			"projectId": "site", "requestId": "w", "argv": []string{"sh", "-c", "touch here; sleep 600"}, "timeoutMs": 3600000, "waitMs": 20000,
		}, &out)
		if err != nil {
			t.Errorf("the call that waits: %v", err)
		}
		answer <- out
	}()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "here")); err == nil || time.Now().After(deadline) {
			break
		}
	}
	begun := time.Now()
	// A connection that was opened and not used yet is waited for as well, 5 s.
	if code := g.Stop(); code != 0 || time.Since(begun) > 9*time.Second {
		t.Errorf("the gateway ended with %d after %v", code, time.Since(begun))
	}
	out := <-answer
	if out.State != record.Running {
		t.Errorf("the call that waits is answered %+v", out)
	}
	h.OK("commands", "cancel", out.CommandID)
	noSupervisors(t, h)
}

// finish waits for the end of a command and reads all of its output.
func finish(t *testing.T, s *client.Session, requestID string) (out commands.ReadDirectCommandOut) {
	t.Helper()
	var cursor int64
	var lost int64
	seen := commands.Output{}
	for deadline := time.Now().Add(time.Minute); ; {
		out = do[commands.ReadDirectCommandOut](t, s, "read_direct_command", object{"requestId": requestID, "cursor": cursor, "waitMs": 5000})
		seen.Events = append(seen.Events, out.Events...)
		cursor, lost = out.NextCursor, lost+out.LostCount
		if out.State.Final() && !out.Truncated || time.Now().After(deadline) {
			out.Events, out.LostCount = seen.Events, lost
			return out
		}
	}
}

func text(events []output.Event) string {
	var b strings.Builder
	for _, e := range events {
		b.WriteString(e.Text)
	}
	return b.String()
}

// noSupervisors sees that no process of a command is left.
func noSupervisors(t *testing.T, h *rig.Home) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left := ""
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			raw, _ := os.ReadFile(p) // it may have ended
			if line := strings.ReplaceAll(string(raw), "\x00", " "); strings.Contains(line, h.StateDir) {
				left += line + "\n"
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("these processes are left:\n%s", left)
		}
	}
}

// runs is what a client knows of the commands it ran in a round.
type runs struct {
	mu       sync.Mutex
	asked    []string
	answered map[string]string // request to command
}

// Whatever instant the gateway is killed at: every request has run once or not at
// all, its record says which, and its output is complete.
func TestKillDuringCommands(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	h.Configure("commands", object{"runningPerOwner": 100, "runningPerHost": 100})
	setUp := h.Serve()
	c := h.Authorize("runner")
	setUp.Kill()
	const script = `echo begin; echo ran >> "$0"; for i in 1 2 3 4 5 6 7 8 9; do echo "line $i"; done; sleep 0.1; echo end; exit 7`
	const printed = "begin\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\nline 9\nend\n"
	args := func(id string) object {
		return object{"projectId": "site", "requestId": id, "argv": []string{"sh", "-c", script, id}}
	}

	rounds := max(crashRounds(t)/2, 1)
	var book *runs
	ran, never := 0, 0
	rig.Crash{
		Home: h, Rounds: rounds, Longest: 300 * time.Millisecond,
		Work: func(ctx context.Context, round int) {
			book = &runs{answered: map[string]string{}}
			session, err := c.Connect(ctx, "runner", c.Token.AccessToken)
			if err != nil {
				return // killed before it began
			}
			defer session.Close()
			var wg sync.WaitGroup
			for worker := range 3 {
				wg.Go(func() {
					for n := 0; n < 4 && ctx.Err() == nil; n++ {
						id := fmt.Sprintf("r%d-%d-%d", round, worker, n)
						book.mu.Lock()
						book.asked = append(book.asked, id)
						book.mu.Unlock()
						var out commands.RunDirectCommandOut
						if err := session.Call(ctx, "run_direct_command", args(id), &out); err != nil {
							return
						}
						book.mu.Lock()
						book.answered[id] = out.CommandID
						book.mu.Unlock()
					}
				})
			}
			wg.Wait()
		},
		Check: func(round int) {
			session, err := c.Connect(t.Context(), "runner", c.Token.AccessToken)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			for _, id := range book.asked {
				end := finish(t, session, id)
				mark, _ := os.ReadFile(filepath.Join(dir, id)) // "" when it never ran
				switch {
				case end.State == record.Exited && *end.ExitCode == 7 && text(end.Events) == printed && string(mark) == "ran\n":
					ran++
				case end.State == record.Failed && end.Error.Code == "not_started" && book.answered[id] == "" && len(mark) == 0:
					never++
				default:
					t.Errorf("%s, answered as %q: %+v, it ran %q", id, book.answered[id], end, mark)
				}
				again := do[commands.RunDirectCommandOut](t, session, "run_direct_command", args(id))
				if !again.Duplicate || again.CommandID != end.CommandID || again.State != end.State {
					t.Errorf("the repeat of %s is %+v, its record %+v", id, again, end)
				}
				if now, _ := os.ReadFile(filepath.Join(dir, id)); string(now) != string(mark) {
					t.Errorf("the repeat of %s ran it again", id)
				}
			}
		},
	}.Run(t)
	t.Logf("%d rounds: %d commands ran, %d never did", rounds, ran, never)
	if ran == 0 {
		t.Error("too little was under way for the test to show anything")
	}
	noSupervisors(t, h)
}

func TestDirectTransfers(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	h.Configure("safedial", object{"allowLoopback": true})
	content := strings.Repeat("0123456789", 100_000)
	source := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, content) }))
	defer source.Close()
	g := h.Serve()
	c := h.Authorize("carrier")
	s := connect(t, c)

	in := object{
		"projectId": "site", "path": "data.bin", "requestId": "i1", "expectedSha256": nil,
		"file": object{"download_url": source.URL + "/secret-name", "file_id": "file-1", "file_name": "x.bin"},
	}
	imported := do[transfers.Transfer](t, s, "import_direct_file", in)
	if raw, err := os.ReadFile(filepath.Join(dir, "data.bin")); imported.State != transfers.Completed || err != nil || string(raw) != content {
		t.Fatalf("imported: %+v, %d bytes, %v", imported, len(raw), err)
	}
	if again := do[transfers.Transfer](t, s, "import_direct_file", in); !again.Duplicate || again.State != transfers.Completed {
		t.Errorf("the repeat: %+v", again)
	}
	exported := do[transfers.Transfer](t, s, "export_direct_file", object{"projectId": "site", "path": "data.bin", "requestId": "e1"})
	if exported.State != transfers.Ready || exported.SHA256 != imported.SHA256 {
		t.Fatalf("exported: %+v", exported)
	}
	if code := g.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}
	g = h.Serve() // links outlive it
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	get := func(ranges string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, exported.DownloadURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ranges != "" {
			req.Header.Set("Range", ranges)
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.bin"), nil, 0o644); err != nil { // a link gives what there was
		t.Fatal(err)
	}
	if code, body := get("bytes=999990-"); code != http.StatusPartialContent || body != "0123456789" {
		t.Errorf("a range: %d %q", code, body)
	}
	if code, body := get(""); code != http.StatusOK || body != content {
		t.Errorf("the whole: %d, %d bytes", code, len(body))
	}
	var state transfers.Transfer
	for deadline := time.Now().Add(10 * time.Second); state.State != transfers.Completed && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		state = do[transfers.Transfer](t, s, "get_direct_transfer", object{"requestId": "e1"})
	}
	if state.State != transfers.Completed {
		t.Errorf("after the download: %+v", state)
	}
	list := h.OK("transfers", "list")
	ticket := strings.Split(exported.DownloadURL, "/")[4]
	if !strings.Contains(list, "e1") || !strings.Contains(list, "i1") || strings.Contains(list, ticket) {
		t.Errorf("the transfers are\n%s", list)
	}
	second := do[transfers.Transfer](t, s, "export_direct_file", object{"projectId": "site", "path": "data.bin", "requestId": "e2"})
	if out := h.OK("transfers", "revoke", "e2"); !strings.Contains(out, "ended") {
		t.Errorf("a revocation says %q", out)
	}
	if now := do[transfers.Transfer](t, s, "get_direct_transfer", object{"requestId": "e2"}); second.DownloadURL == "" || now.State != transfers.Revoked || now.DownloadURL != "" {
		t.Errorf("after its revocation: %+v", now)
	}
	audit := h.OK("status", "--audit", "50", "--json")
	if !strings.Contains(audit, "file.export") || !strings.Contains(audit, "file.import") {
		t.Errorf("the audit log is\n%s", audit)
	}
	h.OK("clients", "deny", c.ID, "files_read")
	if code, _ := get(""); code != http.StatusNotFound {
		t.Errorf("the link of a client that may not read files any more answers %d", code)
	}
	h.OK("clients", "allow", c.ID, "files_read")
	exported = do[transfers.Transfer](t, s, "export_direct_file", object{"projectId": "site", "path": "data.bin", "requestId": "e3"})
	if code, _ := get(""); code != http.StatusOK {
		t.Errorf("a new link answers %d", code)
	}
	g.Stop()
	h.OK("clients", "revoke", c.ID) // without a gateway
	g = h.Serve()
	if code, _ := get(""); code != http.StatusNotFound {
		t.Errorf("after the revocation of its client the link answers %d", code)
	}
	if all := g.Output() + audit; strings.Contains(all, ticket) || strings.Contains(all, "secret-name") {
		t.Error("a link or an address is in the log")
	}
}

// The refusals of the Direct tools, as the TypeScript SDK 1.x meets them after
// tools/list.
func TestDirectRefusalsWithTheTypeScriptSDK(t *testing.T) {
	h := rig.NewHome(t, binary)
	dir := withProjects(t, h)
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("same\nsame\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Serve()
	c := h.Authorize("SDK 1.x")
	zeros := strings.Repeat("0", 64)

	file := object{"download_url": "http://127.0.0.1:1/x", "file_id": "f"}
	sdk(t, c, map[refused]bool{}, []sdkCall{
		{"list_hosts", object{}, ""},
		{"list_direct_projects", object{"hostId": "mac"}, ""},
		{"list_direct_projects", object{"hostId": "elsewhere"}, "unknown_host"},
		{"list_direct_files", object{"projectId": "site"}, ""},
		{"list_direct_files", object{"projectId": "nothing"}, "unknown_project"},
		{"list_direct_files", object{"projectId": "gone"}, "project_unavailable"},
		{"list_direct_files", object{"projectId": "outside"}, "project_unavailable"},
		{"list_direct_files", object{"projectId": "locked"}, "read_disabled"},
		{"list_direct_files", object{"projectId": "site", "cursor": "nonsense"}, "invalid_cursor"},
		{"list_direct_files", object{"projectId": "site", "path": "a.txt"}, "not_directory"},
		{"search_direct_files", object{"projectId": "site", "query": "same", "context": 1}, ""},
		{"search_direct_files", object{"projectId": "site", "query": "(", "regex": true}, "invalid_arguments"},
		{"read_direct_file", object{"projectId": "site", "path": "a.txt", "tail": true, "limit": 1}, ""},
		{"read_direct_file", object{"projectId": "site", "path": "none"}, "path_not_found"},
		{"read_direct_file", object{"projectId": "site", "path": "../x"}, "outside_project"},
		{"write_direct_file", object{"projectId": "site", "path": "a.txt", "content": "x", "expectedSha256": nil}, "file_exists"},
		{"write_direct_file", object{"projectId": "site", "path": "a.txt", "content": "x", "expectedSha256": zeros}, "hash_conflict"},
		{"write_direct_file", object{"projectId": "site", "path": ".GIT/config", "content": "x", "expectedSha256": nil, "createParents": true}, "protected_path"},
		{"write_direct_file", object{"projectId": "listed", "path": "b.txt", "content": "x", "expectedSha256": nil}, "write_disabled"},
		{"write_direct_file", object{"projectId": "site", "path": "b.txt", "content": "x", "expectedSha256": nil, "executable": true}, ""},
		{"edit_direct_file", object{"projectId": "site", "path": "a.txt", "oldText": "a", "newText": "b", "expectedSha256": zeros}, "hash_conflict"},
		{"run_direct_command", object{"projectId": "site", "requestId": "ok", "argv": []string{"true"}, "waitMs": 20000}, ""},
		{"run_direct_command", object{"projectId": "site", "requestId": "ok", "argv": []string{"false"}}, "key_conflict"},
		{"run_direct_command", object{"projectId": "site", "requestId": "bad"}, "invalid_arguments"},
		{"run_direct_command", object{"projectId": "locked", "requestId": "no", "argv": []string{"true"}}, "commands_disabled"},
		{"run_direct_command", object{"projectId": "listed", "requestId": "no", "argv": []string{"true"}}, "command_not_registered"},
		{"run_direct_command", object{"projectId": "listed", "requestId": "yes", "command": "hello"}, ""},
		{"read_direct_command", object{"requestId": "ok"}, ""},
		{"read_direct_command", object{"commandId": "0"}, "unknown_direct_command"},
		{"cancel_direct_command", object{"commandId": "0"}, "unknown_direct_command"},
		{"write_direct_command_input", object{"commandId": "0", "inputId": "i", "eof": true}, "unknown_direct_command"},
		{"export_direct_file", object{"projectId": "site", "path": "none", "requestId": "t"}, "path_not_found"},
		{"export_direct_file", object{"projectId": "locked", "path": "a.txt", "requestId": "t"}, "read_disabled"},
		{"import_direct_file", object{"projectId": "site", "path": "c", "requestId": "t", "expectedSha256": nil, "file": file}, "download_refused"},
		{"import_direct_file", object{"projectId": "site", "path": "c", "requestId": "t", "expectedSha256": nil, "file": object{"file_id": "f"}}, "invalid_arguments"},
		{"get_direct_transfer", object{"requestId": "t"}, "unknown_transfer"},
	})
	h.OK("clients", "deny", c.ID, "files_read", "files_write", "commands")
	sdk(t, c, map[refused]bool{}, []sdkCall{
		{"list_direct_projects", object{}, "not_permitted"},
		{"read_direct_file", object{}, "not_permitted"},
		{"write_direct_file", object{}, "not_permitted"},
		{"run_direct_command", object{}, "not_permitted"},
		{"export_direct_file", object{}, "not_permitted"},
		{"import_direct_file", object{}, "not_permitted"},
		{"get_direct_transfer", object{}, "not_permitted"},
	})
}
