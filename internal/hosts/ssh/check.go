package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	xssh "golang.org/x/crypto/ssh"
)

// StepState is how a step of a check went.
type StepState string

// The states of a step.
const (
	Pass StepState = "pass"
	Warn StepState = "warn" // works, but not all of it or not as the settings ask
	Fail StepState = "fail"
	Skip StepState = "skip" // not tried, for an earlier step failed
)

// Step is one step of a check, for the owner's eyes: it may name files of this
// machine.
type Step struct {
	// Name is settings, name, key, auth, shell or forward. Settings comes once for
	// each setting that is not followed.
	Name  string    `json:"name"`
	State StepState `json:"state"`
	// Detail says in one sentence what was found.
	Detail string `json:"detail"`
	// Next is what to do about it; "" when there is nothing to do.
	Next string `json:"next,omitempty"`
}

// checkTimeout bounds each thing that a check asks of a host it is logged in to.
const checkTimeout = 30 * time.Second

// CheckConnection connects anew, apart from the connection that is kept, and says
// of each step how it went: the ssh settings (with each that is not supported, by
// name), the machine's name, its key, the login, the login shell, and the
// forwarding of unix sockets. It leaves nothing on the host.
func (h *Host) CheckConnection(ctx context.Context) []Step {
	if h.bad != nil {
		return failed(nil, h.badTarget())
	}
	way, err := h.route(ctx, spec{h.at.User, h.at.Host, h.at.Port}, 0)
	if err != nil {
		return failed(nil, asFailure(err, "settings"))
	}
	steps := settingsSteps(way)
	p, err := h.walk(ctx, way, false)
	if err != nil {
		f := asFailure(err, "name")
		return failed(append(steps, passedBefore(f.step, p)...), f)
	}
	l := newLink(p, h.opts.HostID, 0)
	defer func() {
		l.drop("The check is over.")
		<-l.ended
	}()
	steps = append(steps, passedBefore("shell", p)...)
	shell := l.checkShell(ctx)
	steps = append(steps, shell)
	if shell.State == Fail {
		return append(steps, Step{Name: "forward", State: Skip, Detail: "Not tried."})
	}
	return append(steps, l.checkForward(ctx))
}

// badTarget is what is wrong with a host whose target can't be read.
func (h *Host) badTarget() *failure {
	return &failure{step: "settings", reason: "The target in the config " + h.bad.Error() + ".", next: "Correct it.", cause: h.bad}
}

var stepNames = []string{"settings", "name", "key", "auth", "shell", "forward"}

// failed ends a check with the step that failed and those after it.
func failed(steps []Step, f *failure) []Step {
	detail := f.detail
	if detail == "" {
		detail = f.reason
	}
	steps = append(steps, Step{Name: f.step, State: Fail, Detail: plain(detail), Next: f.next})
	for _, name := range stepNames[slices.Index(stepNames, f.step)+1:] {
		steps = append(steps, Step{Name: name, State: Skip, Detail: "Not tried."})
	}
	return steps
}

func settingsSteps(way []*settings) []Step {
	var steps []Step
	for _, s := range way {
		for _, n := range s.notes {
			steps = append(steps, Step{Name: "settings", State: Warn, Detail: s.alias + ": " + n.text, Next: n.next})
		}
	}
	if len(steps) > 0 {
		return steps
	}
	s := way[len(way)-1]
	detail := fmt.Sprintf("ssh would go to %s as %s", s.address(), s.user)
	if len(way) > 1 {
		var over []string
		for _, hop := range way[:len(way)-1] {
			over = append(over, hop.address())
		}
		detail += " over " + strings.Join(over, " and ")
	} else if s.proxyCommand != "" {
		detail += " over a ProxyCommand"
	}
	return []Step{{Name: "settings", State: Pass, Detail: detail + "."}}
}

// passedBefore has the steps between settings and the named one, which went well.
func passedBefore(step string, p *passage) []Step {
	s := p.to
	var all []Step
	for _, name := range stepNames[1:slices.Index(stepNames, step)] {
		detail := map[string]string{"name": fmt.Sprintf("%s answers.", s.address()), "auth": fmt.Sprintf("User %s is logged in.", s.user)}[name]
		if name == "key" && p.at != nil {
			detail = fmt.Sprintf("The host key %s is known.", fingerprint(p.at.offered))
		}
		all = append(all, Step{Name: name, State: Pass, Detail: detail})
	}
	return all
}

// checkShell sees whether commands run, and what the login shell adds to them.
func (l *Link) checkShell(ctx context.Context) Step {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	banner, out, err := l.script(ctx, `printf '%s\n' "${SHELL-unknown}"`, nil, nil, 4096)
	s := Step{Name: "shell", State: Fail, Next: "Give the user a login shell that runs commands: ssh HOST true must succeed."}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		s.Detail = fmt.Sprintf("The login shell ran no command in %v.", checkTimeout)
	case err != nil:
		s.Detail = fmt.Sprintf("The login shell ran no command: %v.", err)
		if said := bytes.TrimSpace(banner); len(said) > 0 {
			s.Detail = fmt.Sprintf("The login shell ran no command; it printed %q.", said[:min(len(said), 200)])
		}
	default:
		s.State, s.Next = Pass, ""
		s.Detail = fmt.Sprintf("Commands run, by way of %s.", path.Clean(string(bytes.TrimSpace(out))))
		if n := len(bytes.TrimSpace(banner)); n > 0 {
			s.Detail = fmt.Sprintf("Commands run, by way of %s, which prints %d bytes of its own before them; they are passed over.", path.Clean(string(bytes.TrimSpace(out))), n)
		}
	}
	return s
}

// checkForward has the host listen on a unix socket and connects to it.
func (l *Link) checkForward(ctx context.Context) Step {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s := Step{Name: "forward", State: Fail, Next: "In the sshd_config there: AllowStreamLocalForwarding yes, and no DisableForwarding. Without it agents on that machine can't send messages; everything else works."}
	out, err := l.Script(ctx, "umask 077; mktemp -d", nil, nil, 4096)
	if err != nil {
		s.Detail, s.Next = fmt.Sprintf("No directory for a socket could be made: %v.", err), "See that the temporary directory there can be written to."
		return s
	}
	dir := strings.TrimSpace(string(out))
	defer func() { // also when time is up
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		_, _ = l.Script(ctx, `rm -rf -- "$1"`, []string{dir}, nil, 4096)
	}()
	listener, err := l.ListenUnix(ctx, dir+"/s")
	if err != nil {
		s.Detail = "Unix sockets can't be forwarded: " + err.Error() + "."
		return s
	}
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_ = c.Close()
		}
	}()
	c, err := l.Dial(ctx, "unix", dir+"/s")
	var refused *xssh.OpenChannelError
	if errors.As(err, &refused) {
		s.State, s.Detail = Warn, "The host listens on a unix socket for the gateway, but the gateway may not connect to one there: "+refused.Message+"."
		s.Next = "In the sshd_config there: AllowStreamLocalForwarding yes. It is needed only where the target has a daemonSocket."
		return s
	}
	if err != nil {
		s.Detail = fmt.Sprintf("The forwarded socket does not answer: %v.", err)
		return s
	}
	_ = c.Close()
	return Step{Name: "forward", State: Pass, Detail: "A unix socket of the host reaches the gateway."}
}
