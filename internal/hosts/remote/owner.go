package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"agentrelay/internal/hosts/install"
	"agentrelay/internal/hosts/ssh"
)

// daemonBudget is how long the agent daemon has to accept a connection.
const daemonBudget = 5 * time.Second

// defaultLookBudget bounds the look at what is installed.
const defaultLookBudget = 2 * time.Minute

// Check walks the way to the machine, step by step, on a connection of its own,
// and then looks at what is installed there and at the agent daemon. The host must
// have been started.
func (h *Host) Check(ctx context.Context) []ssh.Step {
	steps := h.SSH.CheckConnection(ctx)
	for _, s := range steps {
		if s.State == ssh.Fail && s.Name != "forward" {
			return append(steps, ssh.Step{Name: "install", State: ssh.Skip, Detail: "Not looked at."}, ssh.Step{Name: "daemon", State: ssh.Skip, Detail: "Not tried."})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.lookBudget)
	defer cancel()
	h.SSH.Wake()
	link, err := h.SSH.Link(ctx)
	if err != nil {
		return append(steps, ssh.Step{
			Name: "install", State: ssh.Fail, Detail: "The connection that the gateway keeps is down although a new one works: " + err.Error(), Next: "Run the check again in half a minute.",
		})
	}
	steps = append(steps, install.Check(ctx, h.installation(link))...)
	return append(steps, h.checkDaemon(ctx, link))
}

func (h *Host) checkDaemon(ctx context.Context, link *ssh.Link) ssh.Step {
	ctx, cancel := context.WithTimeout(ctx, daemonBudget)
	defer cancel()
	network, address := h.SSH.DaemonAddress()
	conn, err := link.Dial(ctx, network, address)
	if err != nil {
		return ssh.Step{
			Name: "daemon", State: ssh.Warn, Detail: fmt.Sprintf("No agent daemon answers at %s.", address),
			Next: "Start Paseo there if agents are to be dispatched on this host, or give its port with ?daemonPort= in the target. Nothing else needs it.",
		}
	}
	conn.Close()
	return ssh.Step{Name: "daemon", State: ssh.Pass, Detail: fmt.Sprintf("An agent daemon accepts connections at %s.", address)}
}

func (h *Host) installation(link *ssh.Link) install.Options {
	o := install.Options{HostID: h.ID(), Link: link, StateDir: h.conf.RemoteStateDir, Builds: install.Builds{StateDir: h.gatewayDir}}
	if self, err := os.Executable(); err == nil {
		o.Builds.Beside = filepath.Dir(self)
	}
	return o
}

// Install puts the worker's program on the machine, over a connection of this
// host's own. The host must have been started.
func (h *Host) Install(ctx context.Context) (install.Result, error) {
	link, err := h.SSH.Link(ctx)
	if err != nil {
		return install.Result{}, err
	}
	return install.Install(ctx, h.installation(link))
}

// NextStep is what to do about an error of [Host.Install]; "" when that is not
// known.
func NextStep(err error) string {
	var e *install.Error
	if errors.As(err, &e) {
		return e.Next
	}
	return ""
}
