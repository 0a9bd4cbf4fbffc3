package gateway

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentrelay/internal/admin"
	"agentrelay/internal/fault"
	"agentrelay/internal/hosts"
	"agentrelay/internal/hosts/remote"
	"agentrelay/internal/hosts/ssh"
)

func (a *app) hostsCommand() *cobra.Command {
	return a.group("hosts", "Look at your other machines, and prepare them",
		`Machines of the key hosts in the config are reached over SSH, as your own ssh would reach
them. On each the gateway needs a small helper, which is installed when you say so.`,
		`  gateway hosts list
  gateway hosts trust build-server
  gateway hosts install build-server
  gateway hosts check build-server`,
		a.hostsListCommand(), a.hostsCheckCommand(), a.hostsInstallCommand(), a.hostsTrustCommand(), a.hostsAcceptIdentityCommand())
}

func (a *app) hostsListCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List the machines and whether they are reached",
		Example: `  gateway hosts list
  gateway hosts list --json`,
		Args: exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out, err := call(a, cmd, admin.ListHosts, admin.None{})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, out)
			}
			return a.printHosts(out)
		},
	})
}

func (a *app) printHosts(list []admin.HostInfo) error {
	now := a.Now()
	rows := make([][]string, len(list))
	for i, h := range list {
		worker := ""
		if h.Worker != nil {
			if worker = h.Worker.Version; h.Worker.Outdated {
				worker += ", outdated"
			}
		}
		rows[i] = []string{h.HostID, h.Name, h.Transport, string(h.State) + " " + ago(now, h.Since), worker, strconv.Itoa(h.Projects)}
		if h.Reason != "" {
			rows[i] = append(rows[i], h.Reason)
		}
		if h.State == hosts.Up && h.Channel != nil && h.Channel.Reason != "" {
			rows[i] = append(rows[i], "Agents there can't reach the gateway: "+h.Channel.Reason)
		}
	}
	return table(a.Stdout, 0, []string{"HOST", "NAME", "REACHED BY", "STATE SINCE", "WORKER", "PROJECTS"}, rows)
}

func (a *app) hostsCheckCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "check <hostId>",
		Short: "Walk the way to a machine, step by step",
		Long: `Connects anew and shows each step: the ssh settings, the name, the key, the login, the
shell, the forwarding, the directory, the helper. What is wrong comes with what to do. While
a gateway runs it is the gateway that looks, for its keys and its environment count. The
exit code is 1 when a step failed.`,
		Example: `  gateway hosts check build-server
  gateway hosts check build-server --json`,
		Args: exact("the host id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			steps, err := call(a, cmd, admin.CheckHost, admin.ByHost{HostID: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(a.Stdout, steps)
			} else {
				err = a.printSteps(steps)
			}
			if err != nil {
				return err
			}
			for _, s := range steps {
				if s.State == ssh.Fail {
					return failed(s.Next, "the check failed at the step %q", s.Name)
				}
			}
			return nil
		},
	})
}

func (a *app) printSteps(steps []ssh.Step) error {
	for _, s := range steps {
		line := fmt.Sprintf("%-5s %-10s %s", strings.ToUpper(string(s.State)), s.Name, clean(s.Detail))
		if s.Next != "" {
			line += "\n                 " + clean(s.Next)
		}
		if _, err := fmt.Fprintln(a.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// remote is an SSH host of the config, for a command that works here.
func (a *app) remote(hostID string) (*remote.Host, error) {
	c, _, err := a.load()
	if err != nil {
		return nil, err
	}
	conf, err := admin.FindHost(c, hostID)
	if err != nil {
		return nil, err
	}
	return remote.New(remote.Options{Config: c, Host: conf, Version: thisBuild().Version, Now: a.Now}), nil
}

func (a *app) hostsTrustCommand() *cobra.Command {
	var yes string
	c := &cobra.Command{
		Use:   "trust <hostId>",
		Short: "Accept the key of a machine",
		Long: `Shows the fingerprint of the key that the machine has, and when you agree puts it into your
known_hosts file, where ssh finds it too. Compare it with what the machine itself says:
  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`,
		Example: `  gateway hosts trust build-server
  gateway hosts trust build-server --fingerprint SHA256:…`,
		Args: exact("the host id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.remote(args[0])
			if err != nil {
				return err
			}
			defer h.Close()
			return a.trust(cmd, h, yes)
		},
	}
	c.Flags().StringVar(&yes, "fingerprint", "", "accept the key with this `fingerprint` without asking")
	return c
}

func (a *app) trust(cmd *cobra.Command, h *remote.Host, fingerprint string) error {
	key, known, changed, err := h.SSH.OfferedKey(cmd.Context())
	if err != nil {
		return err
	}
	if known {
		_, err := fmt.Fprintf(a.Stdout, "%s has the key that is known already: %s %s\n", key.Host, key.Type, key.SHA256)
		return err
	}
	fmt.Fprintf(a.Stdout, "%s shows the key\n  %s %s\n", key.Host, key.Type, key.SHA256)
	for _, old := range changed {
		fmt.Fprintf(a.Stdout, "in place of the one that is known\n  %s\n", old)
	}
	if len(changed) > 0 {
		fmt.Fprintln(a.Stdout, "A key changes when a machine is installed anew. It also looks like this when somebody stands in between.")
	}
	switch fingerprint {
	case key.SHA256:
	case "":
		fmt.Fprintf(a.Stdout, "Put it into %s? Write yes: ", key.File)
		answer, _ := bufio.NewReader(a.Stdin).ReadString('\n')
		if strings.TrimSpace(answer) != "yes" {
			return fault.InvalidArguments.New("The key was not accepted; nothing was changed.").WithHint("Run it again and write yes, once you have compared the fingerprint.")
		}
	default:
		return fault.InvalidArguments.New("The machine shows another key than the one with that fingerprint; nothing was changed.")
	}
	if err := h.SSH.Trust(cmd.Context(), key); err != nil {
		return err
	}
	if _, err := call(a, cmd, admin.RetryHost, admin.ByHost{HostID: h.ID()}); err != nil {
		return fmt.Errorf("the key is in %s, but the gateway could not be told: %w", key.File, err)
	}
	_, err = fmt.Fprintf(a.Stdout, "It is in %s.\n", key.File)
	return err
}

// installBudget bounds an installation, on a slow link too.
const installBudget = 10 * time.Minute

func (a *app) hostsInstallCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "install <hostId>",
		Short: "Put the gateway's helper on a machine",
		Long: `Copies the program peer-agent for that machine's system into its remoteStateDir, checks the
copy by running it there, and only then puts it in place. It lies beside this program, or in
the directory builds of the state directory. Run it again after an upgrade.`,
		Example: `  gateway hosts install build-server
  gateway hosts check build-server`,
		Args: exact("the host id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.remote(args[0])
			if err != nil {
				return err
			}
			defer h.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), installBudget)
			defer cancel()
			h.Start(ctx)
			done, err := h.Install(ctx)
			if err != nil {
				if next := remote.NextStep(err); next != "" {
					return failed(next, "nothing was installed: %w", err)
				}
				return err
			}
			if _, err := call(a, cmd, admin.RetryHost, admin.ByHost{HostID: h.ID()}); err != nil {
				return fmt.Errorf("it is installed, but the gateway could not be told: %w", err)
			}
			if a.json {
				return a.printJSON(a.Stdout, done)
			}
			text := "Installed %s for %s/%s.\n"
			if done.Unchanged {
				text = "%s for %s/%s was there already.\n"
			}
			_, err = fmt.Fprintf(a.Stdout, text, done.Path, done.Platform.OS, done.Platform.Arch)
			return err
		},
	})
}
