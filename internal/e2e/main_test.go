// Package e2e tests the built programs as their users meet them: started from a
// command line, called over HTTP by clients that others wrote, killed at any
// instant.
//
// It promises real parts throughout; what it needs besides Go is installed by
// scripts/test, and a part that is missing fails the test. It leaves rules that
// one package can show to the tests of that package.
package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/e2e/rig"
)

// binary is the gateway, built once for all tests of this package.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "relay-bin")
	if err == nil {
		binary, err = rig.Build(dir, "gateway")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// crashRounds is how often a crash test kills the gateway: a few times in a
// short run, else AGENT_RELAY_CRASH_ROUNDS, by default 200.
func crashRounds(t *testing.T) int {
	t.Helper()
	if s := os.Getenv("AGENT_RELAY_CRASH_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("AGENT_RELAY_CRASH_ROUNDS=%q is not a number of rounds", s)
		}
		return n
	}
	if testing.Short() {
		return 20
	}
	return 200
}
