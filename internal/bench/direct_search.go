package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"agentrelay/internal/direct/files"
)

// query is what is searched for in the source tree of Go.
type query struct {
	name, text string
	regex      bool
	limit      int     // lines, after which nobody reads on; 0 is all
	bound      float64 // times ripgrep; 0 is none
}

var queries = []query{
	{"a rare literal", "ErrTooLarge", false, 0, 3},
	{"a regular expression", `func \([a-z]+ \*[A-Za-z]+\) Close\(\) error`, true, 0, 0},
	{"a frequent literal", "func (", false, files.MaxSearch, 3},
	{"all of a frequent literal, in pages of 500", "func (", false, 0, 3},
}

// searches compares searches with the files in the cache of the system: the
// gateway's pages, ripgrep's lines and columns on a pipe, and Desktop Commander,
// which runs ripgrep too. Three things differ: the gateway answers in the order
// of paths, the others in any; each of its pages is a call of its own with a row
// in the audit log; and it has at most 500 lines in a page.
func searches(ctx context.Context, b *bench) ([]row, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for the source tree of Go: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(strings.TrimSpace(string(out)), "src"))
	if err != nil {
		return nil, err
	}
	w, err := openWorkspace(ctx, b, dir)
	if err != nil {
		return nil, err
	}
	defer w.close()
	dc, err := startCommander(ctx, b)
	if err != nil {
		return nil, err
	}
	defer dc.close()
	var rows []row
	for _, q := range queries {
		more, err := compareSearches(ctx, w, dc, q)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func compareSearches(ctx context.Context, w *workspace, dc *commander, q query) ([]row, error) {
	found := make([]int, 3)
	timed := func(i int, search func() (int, error)) side {
		return func() (float64, error) {
			begun := time.Now()
			n, err := search()
			found[i] = n
			return time.Since(begun).Seconds(), err
		}
	}
	sides := []side{
		timed(0, func() (int, error) { return w.search(q) }),
		timed(1, func() (int, error) { return ripgrep(w.dir, q) }),
		timed(2, func() (int, error) { return dc.search(ctx, w.dir, q) }),
	}
	if _, err := inTurns(1, sides...); err != nil { // it warms the cache
		return nil, err
	}
	s, err := inTurns(directRounds, sides...)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("search of Go's source for %s, %d lines", q.name, found[0])
	byRipgrep, byCommander := s.ratio(0, 1), s.ratio(0, 2)
	first := ratioed(name, milli(s.median(0)), fmt.Sprintf("ripgrep, %d lines: %s", found[1], milli(s.median(1))), byRipgrep)
	if q.bound > 0 {
		first = first.atMost(byRipgrep, q.bound, fmt.Sprintf("%.1f", q.bound))
	}
	return []row{first, ratioed("the same", milli(s.median(0)), fmt.Sprintf("Desktop Commander, %d lines: %s", found[2], milli(s.median(2))), byCommander).
		atMost(byCommander, 1, "1.0")}, nil
}

// search reads every page, as large as they may be.
func (w *workspace) search(q query) (lines int, err error) {
	conn, err := dial(w.home.mcp.url.Host)
	if err != nil {
		return 0, err
	}
	defer conn.conn.Close()
	in := map[string]any{"projectId": project, "query": q.text, "regex": q.regex, "limit": files.MaxSearch}
	for {
		page, err := conn.searchPage(w.home.mcp.request("search_direct_files", in))
		if err != nil {
			return 0, err
		}
		lines += len(page.Matches)
		if page.NextCursor == "" || q.limit > 0 && lines >= q.limit {
			return lines, nil
		}
		in["cursor"] = page.NextCursor
	}
}

// foundPage is a page of a search as far as the other sides are read: matches are
// counted and not taken apart.
type foundPage struct {
	Matches    []json.RawMessage
	NextCursor string
}

// searchPage reads the structured content of an answer and nothing else, once. The
// client of the MCP SDK decodes all of it several times: with it the client would
// take longer for a page than the gateway, on the same processors.
func (w *wire) searchPage(request []byte) (page foundPage, err error) {
	_, body, err := w.exchange(request)
	if err != nil {
		return page, err
	}
	_, structured, ok := bytes.Cut(body, []byte(`"structuredContent":`)) // quotes in the text are escaped
	if !ok || bytes.Contains(body, []byte(`"isError":true`)) {
		return page, fmt.Errorf("a search failed: %.500s", body)
	}
	return page, json.NewDecoder(bytes.NewReader(structured)).Decode(&page)
}

// ripgrep reads what rg prints, and ends it when there is enough.
func ripgrep(dir string, q query) (lines int, err error) {
	args := []string{"--no-config", "--line-number", "--column", "--no-heading", "--color=never"}
	if !q.regex {
		args = append(args, "--fixed-strings")
	}
	cmd := exec.Command("rg", append(args, "--", q.text, dir)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("ripgrep: %w", err)
	}
	printed := bufio.NewScanner(out)
	printed.Buffer(nil, 16<<20)
	for printed.Scan() {
		if lines++; lines == q.limit {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return lines, nil
		}
	}
	if err := errors.Join(printed.Err(), cmd.Wait()); err != nil {
		return 0, fmt.Errorf("ripgrep: %w", err)
	}
	return lines, nil
}
