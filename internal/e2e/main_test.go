// Package e2e tests the built programs as their users meet them: started from a
// command line, called over HTTP by clients that others wrote, killed at any
// instant.
//
// It promises real parts throughout; what it needs besides Go is installed by
// scripts/test, and a part that is missing fails the test. It leaves rules that
// one package can show to the tests of that package.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"agentrelay/internal/cli/gateway"
	"agentrelay/internal/e2e/rig"
)

// binary is the gateway, built once for all tests of this package.
var binary string

// asCutOffGateway makes the test binary be a gateway on a machine that resolves
// no names, so that what it does without the internet is tested everywhere alike
// and no test calls on anybody.
const asCutOffGateway = "AGENT_RELAY_TEST_AS_CUT_OFF_GATEWAY"

func serveCutOff() {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("this machine is cut off")
	}}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(gateway.Run(ctx, gateway.OSEnv()))
}

func TestMain(m *testing.M) {
	if os.Getenv(asCutOffGateway) != "" {
		serveCutOff()
	}
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
