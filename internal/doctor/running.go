package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/store"
)

func gatewayChecks() []check {
	return []check{
		{id: "gateway.running", needs: needConfig, why: "Without it nothing else works.", run: checkRunning},
		{id: "gateway.version", needs: needGateway, why: "After an update the old program runs on until it is restarted, and its data and tools are those of the old one.", run: checkVersion},
		{id: "gateway.ready", needs: needGateway, why: "A gateway whose store does not answer refuses every call.", run: checkReady},
		{id: "gateway.port", needs: needConfig, why: "The proxy hands requests to this port. Another program there would get your clients' tokens.", run: checkPort},
		{id: "clock.steps", needs: needGateway, why: "Tokens, subscriptions and rate limits end by the clock: one that jumps ends them too early or too late.", run: checkSteps},
	}
}

const restartIt = "Restart it: gateway service restart, or stop it and run gateway serve."

func checkRunning(ctx context.Context, v *visit) []finding {
	d := v.conn()
	if d.err != nil {
		return one(fail("Run the doctor as the user that runs the gateway.", "%s", sentence(d.err)))
	}
	if d.conn != nil {
		s := v.status()
		if s.err != nil {
			return one(fail(restartIt, "A gateway runs, but does not answer its owner: %s", sentence(s.err)))
		}
		return one(pass("Version %s, started %s ago.", s.Version, span(time.Duration(s.UptimeMs)*time.Millisecond)))
	}
	const start = "Start it: gateway service install keeps it running, gateway serve runs it here."
	if v.stateErr != nil {
		return one(fail(start, "No gateway runs."))
	}
	release, err := store.Lock(v.config.StateDir)
	var locked *store.LockedError
	if errors.As(err, &locked) {
		return one(fail("If it is starting or stopping, run the doctor again; else end it and start the gateway.", "%s", sentence(&admin.UnansweredError{LockedError: locked})))
	}
	if err == nil {
		release()
	}
	return one(fail(start, "No gateway runs."))
}

func checkVersion(_ context.Context, v *visit) []finding {
	s, f := v.status(), v.facts()
	if s.err != nil {
		return one(fail(restartIt, "The gateway does not say its version: %s", sentence(s.err)))
	}
	if f.err != nil {
		return one(warn(restartIt, "The gateway is version %s and does not know this doctor's questions.", s.Version))
	}
	var found []finding
	if f.Replaced {
		found = append(found, warn(restartIt, "Another program lies at %s now than the one that runs.", f.Program))
	}
	if s.Version != v.o.Version {
		found = append(found, warn("Restart it if this program is the newer one: gateway service restart. Else use the program that runs.", "The gateway is version %s, this program %s.", s.Version, v.o.Version))
	}
	for _, u := range v.units() {
		if u.Version != "" && u.Version != s.Version {
			found = append(found, warn("Restart it: gateway service restart. If the service starts an old program, install it again: gateway service install.", "The gateway is version %s, the service at %s starts version %s.", s.Version, u.Path, u.Version))
		}
	}
	if len(found) == 0 {
		found = one(pass("Version %s runs, and is what this program and the service are.", s.Version))
	}
	return found
}

// coveredWarnings are those of the status that a check of its own looks at.
var coveredWarnings = []string{"loopback_only", "loopback_receivers_allowed", "network_filesystem_allowed", "other_owners", "project", "subscription", "receiver", "wake_target", "backup"}

func checkReady(_ context.Context, v *visit) []finding {
	s := v.status()
	if s.err != nil {
		return one(fail(restartIt, "It does not say: %s", sentence(s.err)))
	}
	if !s.Ready {
		return one(fail("Its log says more: gateway service logs. See that the disk of the state directory has room and can be written.", "The gateway is not ready: %s", s.Reason))
	}
	var found []finding
	for _, w := range s.Warnings {
		covered := false
		for _, prefix := range coveredWarnings {
			covered = covered || strings.HasPrefix(w.Name, prefix)
		}
		if !covered {
			found = append(found, warn("gateway status shows it with the rest.", "%s", w.Text))
		}
	}
	if len(found) == 0 {
		found = one(pass("Its store answers; %d tools, surface %s.", s.Tools, s.Surface))
	}
	return found
}

func (v *visit) localURL() string { return "http://127.0.0.1:" + strconv.Itoa(v.config.Port) }

func checkPort(ctx context.Context, v *visit) []finding {
	const taken = "Find who has it (lsof -i :%[1]d), or give the gateway another port in the config, and the proxy with it."
	port := v.config.Port
	if v.running() == nil {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return one(fail(fmt.Sprintf(taken, port), "Another program listens on port %d.", port))
		case err != nil:
			return one(fail("Choose a port from 1024 in the config.", "Port %d can't be used: %s", port, sentence(err)))
		}
		_ = l.Close()
		return one(pass("Port %d is free.", port))
	}
	if err := v.ticket().err; err != nil {
		return one(skip("The running gateway takes no questions of this doctor: %s", sentence(err)))
	}
	r := v.post(ctx, v.plain, v.localURL()+"/mcp")
	if r.err == nil && r.echo.Proof == v.ticket().Proof {
		return one(pass("The gateway answers on port %d.", port))
	}
	return one(fail("The running gateway has another port than the config says: restart it. "+fmt.Sprintf(taken, port), "What answers on port %d is not the gateway that runs.", port))
}

// allowedStep is how far the clock may have been set while the gateway ran: what
// keeps time does so in small steps.
const allowedStep = time.Minute

func checkSteps(_ context.Context, v *visit) []finding {
	s := v.status()
	if s.err != nil {
		return one(skip("The gateway does not say since when it runs."))
	}
	step := v.o.Now().Sub(s.StartedAt) - time.Duration(s.UptimeMs)*time.Millisecond
	if step > -allowedStep && step < allowedStep {
		return one(pass("The clock has run evenly since the gateway started."))
	}
	return one(warn("If the machine does not sleep, let it keep its time: timedatectl set-ntp true on Linux, Set time automatically on macOS. Clients may have to connect again.", "Since the gateway started, the clock has moved %s more or less than time has passed: it was set, or the machine slept.", span(step.Abs())))
}
