package device

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"agentrelay/internal/device"
	"agentrelay/internal/device/state"
	"agentrelay/internal/devices/wire"
)

func (a *app) pairCommand() *cobra.Command {
	var name, pin string
	var plain, replace bool
	c := &cobra.Command{
		Use:   "pair URL CODE --device NAME",
		Short: "Join a relay with a pairing code",
		Long: `Exchanges a pairing code for this device's token, which is kept readable for you alone. With - as
CODE it is read from standard input, so that it stands in no list of processes.

wss:// trusts the system's authorities, or with --pin the one certificate with that SHA-256. ws://
is for this machine and for tailnets; elsewhere it needs --insecure.`,
		Example: `  device pair wss://relay.example ABCD-EFGH-JKLM --device laptop
  device pair ws://100.101.102.103:7777 - --device phone < code.txt`,
		Args: exact("the relay's URL", "the pairing code"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !wire.NameForm.MatchString(name) {
				return usage("--device must be a name that matches %s", wire.NameForm)
			}
			fingerprint, err := device.ParsePin(pin)
			if err != nil {
				return usage("--pin: %s", err)
			}
			target, err := device.ParseTarget(args[0], plain)
			if err != nil {
				return usage("%s", err)
			}
			code, err := a.code(args[1])
			if err != nil {
				return err
			}
			return a.pair(cmd, state.Identity{RelayURL: target.URL, Device: name, Pin: fingerprint, Plain: plain}, code, target.Warning, replace)
		},
	}
	c.Flags().StringVar(&name, "device", "", "this device's `name`: lower-case letters, digits and hyphens, at most 32")
	c.Flags().StringVar(&pin, "pin", "", "`SHA-256` of the relay's certificate in hex, instead of authorities")
	c.Flags().BoolVar(&plain, "insecure", false, "accept ws:// to a host that is neither this machine nor in a tailnet")
	c.Flags().BoolVar(&replace, "replace", false, "give up the pairing that this device has")
	return c
}

// code reads the pairing code.
func (a *app) code(arg string) (string, error) {
	if arg != "-" {
		return strings.TrimSpace(arg), nil
	}
	line, err := bufio.NewReader(io.LimitReader(a.Stdin, 1024)).ReadString('\n')
	if code := strings.TrimSpace(line); code != "" {
		return code, nil
	}
	return "", fmt.Errorf("no pairing code came from standard input: %w", err)
}

func (a *app) pair(cmd *cobra.Command, id state.Identity, code, warning string, replace bool) error {
	s, err := a.state()
	if err != nil {
		return err
	}
	lock, err := s.Lock()
	if err != nil {
		return err
	}
	defer lock.Release()
	if former, err := s.Identity(); err == nil && !replace {
		return failed(ExitFailed, `"device unpair" gives that up, or --replace does both`, "this device is paired already, as %s with %s", former.Device, former.RelayURL)
	}
	if warning != "" {
		fmt.Fprintln(a.Stderr, "device: "+warning)
	}
	id, err = a.Dial.Pair(cmd.Context(), id, code)
	if err != nil {
		return failed(ExitFailed, `codes are used once, and for ten minutes: "gateway devices pair" makes a new one`, "not paired: %w", err)
	}
	if err := s.Forget(); err != nil { // calls of another relay are none of this one's
		return err
	}
	if err := s.SetIdentity(id); err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "Paired as %s with %s.\nNext: \"device plugins install run\" or plugins of your own, then \"device run\".\n", id.Device, id.RelayURL)
	return nil
}
