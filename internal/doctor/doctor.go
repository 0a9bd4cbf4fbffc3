// Package doctor finds out why a gateway does not work, or soon will not, by going
// the ways that its clients, hosts and backups go.
//
// It owns the list of checks: the id of each, what it looks at, why that matters and
// what to do about what it finds. It promises that ids are stable, that checks run at
// once and each within a time of its own, so that one which hangs delays no other,
// that a check which can't be made is skipped with the reason and never passed, that
// no secret stands in what it says, that nobody is woken and no command run, and that
// what it makes (a client, its tokens, a ticket) is gone when it ends. It works with
// and without a running gateway.
//
// It leaves the words around the findings, flags and exit codes to internal/cli, which
// also tells it about the units of service managers, and every rule that it checks to
// the package that has it.
package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"agentrelay/internal/safedial"
)

// Status is how a check went.
type Status string

// The statuses.
const (
	Pass Status = "PASS"
	Warn Status = "WARN" // it works, but not all of it or not for long
	Fail Status = "FAIL" // something that clients or the owner need does not work
	Skip Status = "SKIP" // it could not be checked, or there is nothing to check
)

// Result is what one check found of one thing. Its JSON is a contract.
type Result struct {
	// ID is the check's: lower case, with a dot after its group.
	ID string `json:"id"`
	// Subject is which host, project, subscription or target it is about, when the
	// check looks at several.
	Subject string `json:"subject,omitempty"`
	Status  Status `json:"status"`
	// Evidence is what was found, in a sentence.
	Evidence string `json:"evidence"`
	// Why says why the check is made.
	Why string `json:"why"`
	// Next is what to do; "" when there is nothing.
	Next string `json:"next,omitempty"`
	// Ms is how long the check took.
	Ms int64 `json:"ms"`
}

// Report is all that a doctor found. Its JSON is a contract.
type Report struct {
	Version string    `json:"version"` // of this program
	At      time.Time `json:"at"`
	Config  string    `json:"config"` // the config file
	Running bool      `json:"running"`
	Client  string    `json:"client,omitempty"`
	Public  bool      `json:"public"`
	Results []Result  `json:"results"`
	Passed  int       `json:"passed"`
	Warned  int       `json:"warned"`
	Failed  int       `json:"failed"`
	Skipped int       `json:"skipped"`
}

// Unit is an installed service of the gateway, as its service manager has it.
type Unit struct {
	Manager string // systemd or launchd
	System  bool   // of the system, not of a user
	Path    string
	Text    string // as it is installed
	Shipped string // as this program would write it, with the same program and config
	Program string // that it starts
	Enabled bool   // starts by itself
	Running bool
	// Lingers is whether the user's services run without a login; nil where that is
	// no question, or not known.
	Lingers *bool
	// KillMode is systemd's, drop-ins included; "" when not known.
	KillMode string
	// Version is what the program says of itself; "" when it does not.
	Version string
	// Trouble is why the service manager could not be asked.
	Trouble string
}

// Hold is how long an answer is held open through the proxy: longer than the time
// after which proxies give up a silent answer, and with --public longer than any that
// we know.
const (
	Hold       = 35 * time.Second
	PublicHold = 150 * time.Second
)

// Options says what to check and with what. ConfigPath and Getenv are required; the
// zero value of every other field is what an owner gets.
type Options struct {
	ConfigPath string
	Getenv     func(string) string
	Version    string // of this program
	// Client adds the checks of one client: one of [Clients].
	Client string
	// Public holds the answer for [PublicHold].
	Public bool
	Now    func() time.Time
	// Units asks the service managers.
	Units func(context.Context) []Unit
	// LogindKills asks whether logind ends what a user has started when he logs out.
	LogindKills func(context.Context) (kills, known bool)
	// Dial, Resolver and RootCAs are how the public address is reached.
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Resolver safedial.Resolver
	RootCAs  *x509.CertPool
	// NetworkFS and FreeBytes ask about the file system of a directory.
	NetworkFS func(dir string) (string, error)
	FreeBytes func(dir string) (uint64, error)
	// Safedial is how wake-up targets are reached; the config's test mode is added.
	Safedial safedial.Options
	// Hold is how long the answer is held; 0 is [Hold] or [PublicHold].
	Hold time.Duration

	only []string // the ids to run, nil for all; of tests
	more []check  // of tests
}

// check is one thing to look at.
type check struct {
	id, why string
	needs   need
	budget  time.Duration // 0 is defaultBudget
	late    finding       // when the budget is over; the zero value is a plain failure
	run     func(context.Context, *visit) []finding
}

// defaultBudget is how long a check has, once what it needs is there.
const defaultBudget = 15 * time.Second

// maxEvidence bounds what a finding says, in bytes; the longest that is ours is a list
// of all that is wrong in a config.
const maxEvidence = 4000

// need is what has to be there before a check makes sense.
type need int

const (
	needNothing need = iota
	needConfig       // a config that can be used
	needState        // and a state directory of ours with a database
	needStored       // and a way to read what is stored: a gateway, or its lock
	needGateway      // a config, and a running gateway that answers
	needPublic       // and the public address leads to it
)

// finding is what a check says of one thing.
type finding struct {
	subject  string
	status   Status
	evidence string
	next     string
}

func (f finding) of(subject string) finding {
	f.subject = subject
	return f
}

func pass(format string, args ...any) finding {
	return finding{status: Pass, evidence: fmt.Sprintf(format, args...)}
}

func skip(format string, args ...any) finding {
	return finding{status: Skip, evidence: fmt.Sprintf(format, args...)}
}

func warn(next, format string, args ...any) finding {
	return finding{status: Warn, next: next, evidence: fmt.Sprintf(format, args...)}
}

func fail(next, format string, args ...any) finding {
	return finding{status: Fail, next: next, evidence: fmt.Sprintf(format, args...)}
}

func one(f finding) []finding { return []finding{f} }

// checks is every check, in the order of the report.
func checks() []check {
	return slices.Concat(stateChecks(), gatewayChecks(), publicChecks(), oauthChecks(), hostChecks(), deviceChecks(), directChecks(), eventChecks(), backupChecks(), serviceChecks())
}

// IDs are the ids of all checks, those of clients last.
func IDs() []string {
	var ids []string
	for _, c := range slices.Concat(checks(), clientChecks(clients()[0])) {
		ids = append(ids, c.id)
	}
	return ids
}

// Run makes the checks. It ends early, with what is not known yet skipped, when ctx
// does.
func Run(ctx context.Context, o Options) Report {
	o = o.withDefaults()
	list := append(checks(), o.more...)
	if k, ok := findClient(o.Client); ok {
		list = append(list, clientChecks(k)...)
	}
	if o.only != nil {
		list = slices.DeleteFunc(list, func(c check) bool { return !slices.Contains(o.only, c.id) })
	}
	v := newVisit(ctx, o)
	found := make([][]Result, len(list))
	var wg sync.WaitGroup
	for i, c := range list {
		wg.Go(func() { found[i] = c.make(ctx, v) })
	}
	wg.Wait()
	r := Report{Version: o.Version, At: o.Now().UTC().Truncate(time.Millisecond), Config: o.ConfigPath, Running: v.running() != nil, Client: o.Client, Public: o.Public, Results: slices.Concat(found...)}
	v.close()
	for _, result := range r.Results {
		*map[Status]*int{Pass: &r.Passed, Warn: &r.Warned, Fail: &r.Failed, Skip: &r.Skipped}[result.Status]++
	}
	return r
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Units == nil {
		o.Units = func(context.Context) []Unit { return nil }
	}
	if o.LogindKills == nil {
		o.LogindKills = func(context.Context) (bool, bool) { return false, false }
	}
	if o.NetworkFS == nil {
		o.NetworkFS = networkFS
	}
	if o.FreeBytes == nil {
		o.FreeBytes = freeBytes
	}
	if o.Hold == 0 {
		o.Hold = Hold
		if o.Public {
			o.Hold = PublicHold
		}
	}
	return o
}

// make runs a check within its budget. One that outlives it is left behind: what it
// waits for, such as a mount that hangs, can't be interrupted.
func (c check) make(ctx context.Context, v *visit) []Result {
	if reason := v.missing(c.needs); reason != "" {
		return c.results(one(skip("%s", reason)), 0)
	}
	budget := c.budget
	if budget == 0 {
		budget = defaultBudget
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	begun := time.Now()
	answer := make(chan []finding, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				at := make([]byte, 4<<10)
				at = at[:runtime.Stack(at, false)]
				answer <- one(fail("Report this with the program's version.", "The check itself broke: %v\n%s", p, at))
			}
		}()
		answer <- c.run(ctx, v)
	}()
	// What a check makes of the end of its time is better than our own words.
	hard := time.NewTimer(budget + time.Second)
	defer hard.Stop()
	select {
	case found := <-answer:
		return c.results(found, time.Since(begun))
	case <-hard.C:
		return c.results(one(c.overdue(budget)), time.Since(begun))
	}
}

func (c check) overdue(budget time.Duration) finding {
	if c.late.status != "" {
		return c.late
	}
	return fail("See whether a disk, a mount or a name server that it needs hangs, then run the doctor again.", "It did not end within %v.", budget)
}

func (c check) results(found []finding, took time.Duration) []Result {
	out := make([]Result, len(found))
	for i, f := range found {
		if len(f.evidence) > maxEvidence { // of a proxy that answers with a page
			f.evidence = strings.ToValidUTF8(f.evidence[:maxEvidence], "") + "…"
		}
		if f.status != Pass && !strings.HasSuffix(f.evidence, ".") {
			f.evidence += "."
		}
		out[i] = Result{c.id, f.subject, f.status, f.evidence, c.why, f.next, took.Milliseconds()}
	}
	return out
}
