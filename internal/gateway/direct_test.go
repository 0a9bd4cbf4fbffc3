package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentrelay/internal/audit"
	"agentrelay/internal/config"
	"agentrelay/internal/hosts/local"
	"agentrelay/internal/store"
	"agentrelay/internal/tool"
)

// withProjects adds two projects: site, which may be read and written, and gone,
// whose directory does not exist.
func withProjects(t *testing.T, c *config.Config) (dir string) {
	t.Helper()
	root := t.TempDir()
	dir = filepath.Join(root, "site")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.AllowedRoots = []string{root}
	c.Direct.Projects = []config.Project{
		{ID: "site", Name: "Site", Path: dir, Read: true, Write: true, CommandMode: "full"},
		{ID: "gone", Name: "Gone", Path: filepath.Join(root, "gone"), Read: true, CommandMode: "disabled"},
		{ID: "state", Name: "State", Path: c.StateDir, Read: true, CommandMode: "disabled"},
	}
	return dir
}

func (h *harness) entries(t *testing.T, limit int) (entries []audit.Entry) {
	t.Helper()
	err := store.Read(t.Context(), h.store, func(r *store.Reader) (err error) {
		entries, err = audit.Last(r, limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestFileToolsAreOnRecord(t *testing.T) {
	c := testConfig(t)
	dir := withProjects(t, c)
	h := start(t, c)
	const content = "the eagle has landed\n"
	hash := "d9c3eea2a0ad5f87a2a1a1b5e0f1b0d0a7a5c2a3f2b2f5b7a0a1c1d1e1f1a1b1" // of something else
	for _, step := range []struct {
		tool    string
		args    map[string]any
		says    string
		action  string
		outcome string
	}{
		{"write_direct_file", map[string]any{"projectId": "site", "path": "a.txt", "content": content, "expectedSha256": nil}, `"created":true`, "file.write", "ok"},
		{"write_direct_file", map[string]any{"projectId": "site", "path": "a.txt", "content": content, "expectedSha256": nil}, `"duplicate":true`, "file.write", "ok"},
		{"read_direct_file", map[string]any{"projectId": "site", "path": "a.txt", "hostId": "mac"}, `"hostId":"` + local.ID() + `"`, "file.read", "ok"},
		{"search_direct_files", map[string]any{"projectId": "site", "query": "eagle", "hostId": "local"}, `"line":1`, "file.search", "ok"},
		{"edit_direct_file", map[string]any{"projectId": "site", "path": "a.txt", "oldText": "eagle", "newText": "owl", "expectedSha256": hash}, "hash_conflict", "file.edit", "hash_conflict"},
	} {
		got := h.call(t, goodToken, step.tool, step.args)
		got.sameTwice(t)
		if !strings.Contains(string(got.Structured), step.says) {
			t.Errorf("%s: %s", step.tool, got.Structured)
		}
		checkAgainstOutputSchema(t, step.tool, got.Structured)
		var found *audit.Entry
		for _, e := range h.entries(t, 2) { // a refusal has one of its own on top
			if e.Action == step.action {
				found = &e
				break
			}
		}
		if found == nil || found.Outcome != step.outcome || found.Detail["project"] != "site" || found.Detail["host"] != local.ID() || found.ClientID != "client-a" {
			t.Errorf("%s: the audit log has %+v", step.tool, found)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(raw) != content {
		t.Errorf("the file is %q, %v", raw, err)
	}
	for _, e := range h.entries(t, 100) {
		if strings.Contains(string(tool.Encode(e)), "eagle") {
			t.Errorf("the audit log quotes a file: %+v", e)
		}
	}
	if strings.Contains(h.log.String(), "eagle") {
		t.Error("the log quotes a file")
	}
}

// TestNoChangeWithoutARecord: a change is not made when it can't be put on record
// first.
// TestAClientThatMayNotReadIsShownNoText: it may edit what it knows, and learns
// nothing else of the file.
func TestAClientThatMayNotReadIsShownNoText(t *testing.T) {
	c := testConfig(t)
	dir := withProjects(t, c)
	h := start(t, c)
	const before, after = "the secret of the eagle\nsits here\n", "the secret of the eagle\nsleeps here\n"
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	edit := func(token, old string) string {
		return string(h.call(t, token, "edit_direct_file", map[string]any{
			"projectId": "site", "path": "a.txt", "expectedSha256": hashText(before), "oldText": old, "newText": "sleeps",
		}).Structured)
	}
	for _, old := range []string{"the secret of the eagles", "no such thing"} {
		if got := edit(blindToken, old); !strings.Contains(got, "text_not_found") || strings.Contains(got, "secret") || strings.Contains(got, "line") {
			t.Errorf("a miss answers %s", got)
		}
	}
	if got := edit(goodToken, "the secret of the eagles"); !strings.Contains(got, "Nearest is line 1") {
		t.Errorf("a client that may read files is answered %s", got)
	}
	for _, duplicate := range []string{`"duplicate":false`, `"duplicate":true`} {
		got := edit(blindToken, "sits")
		if strings.Contains(got, "secret") || !strings.Contains(got, hashText(after)) || !strings.Contains(got, `"replacements":1`) || !strings.Contains(got, duplicate) {
			t.Errorf("an edit answers %s, want %s", got, duplicate)
		}
	}
	if got := edit(goodToken, "sits"); !strings.Contains(got, "secret") {
		t.Errorf("the diff is not kept for those who may read: %s", got)
	}
}

func hashText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestNoChangeWithoutARecord(t *testing.T) {
	c := testConfig(t)
	dir := withProjects(t, c)
	h := start(t, c)
	if err := h.store.Close(); err != nil {
		t.Fatal(err)
	}
	for tool, args := range map[string]map[string]any{
		"write_direct_file":  {"projectId": "site", "path": "a.txt", "content": "x", "expectedSha256": nil},
		"run_direct_command": {"projectId": "site", "requestId": "r", "argv": []string{"touch", "a.txt"}, "waitMs": 1000},
	} {
		if e := h.call(t, goodToken, tool, args).failure(t); e.Code != "unavailable" {
			t.Errorf("%s: %+v", tool, e)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("the project has %v, %v", names, err)
	}
}

func TestHostsOfTools(t *testing.T) {
	c := testConfig(t)
	withProjects(t, c)
	h := start(t, c)
	got := h.call(t, goodToken, "list_hosts", nil)
	if s := string(got.Structured); got.IsError || !strings.Contains(s, `"hostId":"`+local.ID()+`"`) || !strings.Contains(s, `"directConfigured":true`) || !strings.Contains(s, `"available":true`) {
		t.Errorf("%s", s)
	}
	checkAgainstOutputSchema(t, "list_hosts", got.Structured)
	for _, each := range directTools(&workspace{}) {
		args := map[string]any{"hostId": "elsewhere"}
		for name, value := range map[string]any{
			"projectId": "site", "path": "a", "requestId": "r", "commandId": "c", "inputId": "i", "query": "q", "content": "", "oldText": "a", "newText": "b",
			"expectedSha256": strings.Repeat("0", 64), "file": map[string]any{"download_url": "https://example.com/", "file_id": "f"},
		} {
			for _, p := range each.In.Properties {
				if p.Name == name && (p.Required || name == "requestId") {
					args[name] = value
				}
			}
		}
		if e := h.call(t, goodToken, each.Name, args).failure(t); e.Code != "unknown_host" || !strings.Contains(e.Message, local.ID()) {
			t.Errorf("%s: %+v", each.Name, e)
		}
	}
}

func TestProjectsThatCannotBeUsedAreNamed(t *testing.T) {
	c := testConfig(t)
	withProjects(t, c)
	c.AllowedRoots = append(c.AllowedRoots, filepath.Dir(c.StateDir))
	h := start(t, c)
	s, err := h.Status(t.Context())
	if err != nil || s.Projects != (Projects{Total: 3, Unavailable: 2}) {
		t.Fatalf("%+v, %v", s.Projects, err)
	}
	var text []string
	for _, w := range s.Warnings {
		if w.Name == "project_unavailable" {
			text = append(text, w.Text)
		}
	}
	if all := strings.Join(text, "\n"); len(text) != 2 || !strings.Contains(all, `"gone"`) || !strings.Contains(all, `"state"`) {
		t.Errorf("the warnings are %q", text)
	}
	for project, code := range map[string]string{"gone": "project_unavailable", "state": "project_unavailable", "other": "unknown_project"} {
		if e := h.call(t, goodToken, "list_direct_files", map[string]any{"projectId": project}).failure(t); e.Code != code || strings.Contains(e.Message, c.StateDir) {
			t.Errorf("%s: %+v", project, e)
		}
	}
	got := h.call(t, goodToken, "list_direct_projects", nil)
	if got.IsError || strings.Contains(string(got.Structured), "/") {
		t.Errorf("a path is shown, or nothing: %s", got.Structured)
	}
	checkAgainstOutputSchema(t, "list_direct_projects", got.Structured)
}

func TestExportsAndTheirLinks(t *testing.T) {
	c := testConfig(t)
	dir := withProjects(t, c)
	if err := os.WriteFile(filepath.Join(dir, "a b.txt"), []byte("0123456789"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := start(t, c)
	got := h.call(t, goodToken, "export_direct_file", map[string]any{"projectId": "site", "path": "a b.txt", "requestId": "e1"})
	if got.IsError || len(got.Content) != 2 || got.Content[1].Type != "resource_link" {
		t.Fatalf("%+v", got)
	}
	checkAgainstOutputSchema(t, "export_direct_file", got.Structured)
	_, link, _ := strings.Cut(string(got.Structured), `"downloadUrl":"`)
	link, _, _ = strings.Cut(link, `"`)
	path := strings.TrimPrefix(link, c.PublicBaseURL)
	_, path, found := strings.Cut(path, "/files/")
	if !found {
		t.Fatalf("the link is %q", link)
	}
	ticket, _, _ := strings.Cut(path, "/")
	resp, body := h.do(t, request{method: http.MethodGet, path: "/files/" + path, header: map[string][]string{"Range": {"bytes=2-4"}}})
	if resp.StatusCode != http.StatusPartialContent || body != "234" || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a range: %d %q", resp.StatusCode, body)
	}
	for _, other := range []string{"/files/" + ticket + "/other", "/files/" + ticket, "/files/" + ticket + "/a/b", "/files/", "/files/x/y"} {
		resp, body := h.do(t, request{method: http.MethodGet, path: other})
		if e := httpFailure(t, resp, body); resp.StatusCode != http.StatusNotFound || e.Code != "unknown_ticket" {
			t.Errorf("%s: %d %+v", other, resp.StatusCode, e)
		}
	}
	resp, body = h.do(t, request{method: http.MethodPost, path: "/files/" + path})
	if e := httpFailure(t, resp, body); resp.StatusCode != http.StatusMethodNotAllowed || e.Code != "method_not_allowed" {
		t.Errorf("POST: %d %+v", resp.StatusCode, e)
	}
	if strings.Contains(h.log.String(), ticket) {
		t.Error("the log has a ticket")
	}
	again := h.call(t, goodToken, "get_direct_transfer", map[string]any{"requestId": "e1"})
	if len(again.Content) != 2 || !strings.Contains(string(again.Structured), link) {
		t.Errorf("%s", again.Structured)
	}
	off := testConfig(t)
	off.Tools.Direct = false
	if resp, _ := start(t, off).do(t, request{method: http.MethodGet, path: "/files/x/y"}); resp.StatusCode != http.StatusNotFound {
		t.Errorf("switched off: %d", resp.StatusCode)
	}
}

func TestImportsTakeFilesOfTheHost(t *testing.T) {
	for _, each := range directTools(&workspace{}) {
		names, _ := each.Definition().Meta["openai/fileParams"].([]string)
		if want := each.Name == "import_direct_file"; (len(names) == 1 && names[0] == "file") != want {
			t.Errorf("%s: %v", each.Name, names)
		}
	}
}
