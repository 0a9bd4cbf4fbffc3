package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// modules is where scripts/test installs the suite and the Node that runs it.
const modules = "../npm/node_modules"

// suiteTime bounds one run of the suite, which takes seconds when nothing hangs.
const suiteTime = 3 * time.Minute

// suiteCommand is the suite, ready to run with the given arguments. Its results
// go to the directory that is also returned.
func suiteCommand(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	const advice = "run scripts/test, which installs the conformance suite and Node 22"
	script := filepath.Join(modules, "@modelcontextprotocol/conformance/dist/index.js")
	if _, err := os.Stat(script); err != nil {
		t.Fatalf("%v: %s", err, advice)
	}
	node := filepath.Join(modules, ".bin/node")
	if _, err := os.Stat(node); err != nil {
		node = "node"
	}
	version, err := exec.Command(node, "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v: %s", node, err, advice)
	}
	digits, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if major, err := strconv.Atoi(digits); err != nil || major < 22 {
		t.Fatalf("%s is version %s, and the suite needs 22: %s", node, bytes.TrimSpace(version), advice)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), suiteTime)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, node, slices.Concat([]string{script}, args, []string{"--output-dir", dir})...)
	cmd.WaitDelay = 5 * time.Second
	return cmd, dir
}

// requirements runs what a revision of the protocol requires of a server, and
// fails the test unless exactly the expected failures fail. Scenarios in also
// are not scored by the revision, and must pass all the same.
func requirements(t *testing.T, revision, url, expected string, also ...string) {
	t.Helper()
	cmd, dir := suiteCommand(t, "server", "--url", url, "--requirements", revision, "--expected-failures", expected)
	output, err := cmd.CombinedOutput()
	results := readResults(t, dir)
	if len(results) == 0 {
		t.Fatalf("the suite ran no scenario: %v\n%s", err, tail(output))
	}
	if err != nil {
		found := false
		for _, entry := range listed(output, "Unexpected failures") {
			found = true
			scenario, id, _ := strings.Cut(entry, ":")
			results.report(t, scenario, id)
		}
		for _, entry := range listed(output, "Stale baseline entries") {
			found = true
			t.Errorf("%s passes now: remove it from %s", entry, expected)
		}
		if !found {
			t.Errorf("the suite failed: %v\n%s", err, tail(output))
		}
	}
	for _, scenario := range also {
		if len(results[scenario]) == 0 {
			t.Errorf("%s did not run", scenario)
		}
		results.report(t, scenario, "")
	}
	t.Log(results.score())
}

// check is one verdict in a scenario.
type check struct {
	ID           string          `json:"id"`
	Description  string          `json:"description"`
	Status       string          `json:"status"`
	ErrorMessage string          `json:"errorMessage"`
	Details      json.RawMessage `json:"details"`
}

func (c check) failed() bool { return c.Status == "FAILURE" || c.Status == "WARNING" }

// results are the checks of each scenario.
type results map[string][]check

var resultName = regexp.MustCompile(`^(?:authorization-)?server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$`)

func readResults(t *testing.T, dir string) results {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := results{}
	for _, entry := range entries {
		name := resultName.FindStringSubmatch(entry.Name())
		if name == nil {
			t.Fatalf("the suite wrote %s, which names no scenario", entry.Name())
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name(), "checks.json"))
		if errors.Is(err, os.ErrNotExist) {
			continue // the scenario itself broke; the suite's output says how
		}
		if err != nil {
			t.Fatal(err)
		}
		var checks []check
		if err := json.Unmarshal(data, &checks); err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		all[name[1]] = checks
	}
	return all
}

// report fails the test once for each failed check of a scenario, or for the
// one with the given id.
func (r results) report(t *testing.T, scenario, id string) {
	t.Helper()
	if len(r[scenario]) == 0 {
		t.Errorf("%s left no results", scenario)
	}
	for _, c := range r[scenario] {
		if c.failed() && (id == "" || id == c.ID) {
			t.Errorf("%s:%s (%s)\n\texpected: %s\n\tfound: %s\n\tdetails: %s", scenario, c.ID, c.Status, c.Description, c.ErrorMessage, shortened(c.Details))
		}
	}
}

func (r results) score() string {
	passed, failed := 0, 0
	for _, checks := range r {
		if slices.ContainsFunc(checks, check.failed) {
			failed++
		} else {
			passed++
		}
	}
	return strconv.Itoa(passed) + " scenarios without and " + strconv.Itoa(failed) + " with failed checks, of those that ran"
}

var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// listed are the entries below a heading in the suite's output.
func listed(output []byte, heading string) []string {
	_, below, _ := strings.Cut(colour.ReplaceAllString(string(output), ""), heading)
	var entries []string
	for _, line := range strings.Split(below, "\n")[1:] {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			break
		}
		entries = append(entries, fields[1])
	}
	return entries
}

func tail(output []byte) []byte {
	const limit = 4000
	return output[max(0, len(output)-limit):]
}

func shortened(b []byte) string {
	const limit = 1500
	if len(b) <= limit {
		return string(b)
	}
	return string(b[:limit]) + " …"
}
