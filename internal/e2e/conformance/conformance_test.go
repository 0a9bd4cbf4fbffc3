// Package conformance runs the official conformance suite of MCP
// (@modelcontextprotocol/conformance, pinned in internal/e2e/npm) against our
// HTTP stack and against the product.
//
// It owns what each run is expected to find: the files in testdata list every
// failure with its reason, and a run fails when anything else fails or when one
// of them passes. It promises real parts throughout: the suite runs in Node, in
// front of the real routes, guards and bearer check, with tokens that a client
// got by registering and being allowed. It leaves the fixtures, which the suite
// calls by name, to the package fixture, and installing the suite to
// scripts/test.
package conformance

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/conformance/fixture"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The revisions of the protocol that the suite scores.
const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// TestFixtureServer measures the HTTP stack: with a server behind it that has
// all the suite asks for, what fails is the stack's fault.
func TestFixtureServer(t *testing.T) {
	g, r := startHere(t)
	front := httptest.NewServer(g.HandlerFor(fixture.New([]byte("a key of this test"))))
	t.Cleanup(front.Close)
	address := withBearer(t, front.URL+"/mcp", r.token(t))
	const expected = "testdata/fixture.yaml"
	t.Run(legacy, func(t *testing.T) {
		requirements(t, legacy, address, expected, "json-schema-2020-12")
	})
	t.Run(modern, func(t *testing.T) {
		requirements(t, modern, address, expected, "json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation")
	})
}

// TestProductServer measures the gateway as it is built, with its own tools.
func TestProductServer(t *testing.T) {
	r := startBinary(t)
	address := withBearer(t, r.mcpURL, r.token(t))
	const expected = "testdata/product.yaml"
	t.Run(legacy, func(t *testing.T) { requirements(t, legacy, address, expected) })
	t.Run(modern, func(t *testing.T) { requirements(t, modern, address, expected, "http-header-validation") })
}

// TestAuthorizationServer lets the suite be the client of our authorization
// server. It prints the address that a person is to open; we play that person.
func TestAuthorizationServer(t *testing.T) {
	r := startBinary(t)
	port := strconv.Itoa(freePort(t))
	callback := "http://127.0.0.1:" + port + "/callback"
	var added struct{ ID string }
	r.command(t, &added, "clients", "add", "--name", "Conformance suite", "--redirect", callback)

	s := r.discover(t)
	cmd, dir := suiteCommand(t, "authorization", "--url", s.Meta.Issuer, "--client-id", added.ID, "--port", port)
	output := &bytes.Buffer{}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(io.TeeReader(pipe, output))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), s.Meta.AuthorizationEndpoint+"?") {
			openInBrowser(t, s, lines.Text(), r.password, callback)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the suite failed: %v\n%s", err, tail(output.Bytes()))
	}
	results := readResults(t, dir)
	for _, scenario := range []string{"authorization-server-metadata-endpoint", "authorization-code-grant"} {
		results.report(t, scenario, "")
		if !slices.ContainsFunc(results[scenario], func(c check) bool { return c.Status == "SUCCESS" }) {
			t.Errorf("%s passed nothing", scenario)
		}
	}
}

// openInBrowser opens the address, allows what it asks for and follows the
// redirect to the suite.
func openInBrowser(t *testing.T, s *client.Server, address, password, callback string) {
	t.Helper()
	flow := s.Authorize("", "", "") // of the suite: only the page matters
	flow.URL = address
	to, err := flow.Consent(t.Context(), password, client.Allow)
	if err != nil {
		t.Error(err)
		// The suite would wait for minutes.
		to, _ = url.Parse(callback + "?error=access_denied")
	}
	res, err := http.Get(to.String())
	if err != nil {
		t.Error(err)
		return
	}
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}
