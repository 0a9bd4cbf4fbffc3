package device

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) policyCommand() *cobra.Command {
	return a.group("policy", "What runs without asking", "Lists and revokes what runs without asking. A running device sees the change at the next call.", "",
		a.policyListCommand(), a.policyRevokeCommand())
}

func (a *app) policyListCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "List what is allowed for good, as device:tool",
		Args:  exact(),
		RunE: func(*cobra.Command, []string) error {
			f, err := a.policy()
			if err != nil {
				return err
			}
			p, err := f.Read()
			if err != nil {
				return failed(ExitConfig, "correct the file, or remove it", "%w", err)
			}
			if a.json {
				return a.printJSON(map[string]any{"path": f.Path, "autoallow": append([]string{}, p.AutoAllow...), "approval_timeout_ms": p.Timeout.Milliseconds()})
			}
			if len(p.AutoAllow) == 0 {
				fmt.Fprintln(a.Stdout, "Nothing is allowed for good.")
			}
			for _, e := range p.AutoAllow {
				fmt.Fprintln(a.Stdout, e)
			}
			return nil
		},
	})
}

func (a *app) policyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke TOOL",
		Short: "Ask again before a tool runs",
		Example: `  device policy revoke run
  device policy revoke laptop:run`,
		Args: exact("the tool"),
		RunE: func(_ *cobra.Command, args []string) error {
			entry := args[0]
			if !strings.Contains(entry, ":") {
				s, err := a.state()
				if err != nil {
					return err
				}
				id, err := s.Identity()
				if err != nil {
					return err
				}
				entry = id.Device + ":" + entry
			}
			f, err := a.policy()
			if err != nil {
				return err
			}
			found, err := f.Revoke(entry)
			if err != nil {
				return err
			}
			if !found {
				return failed(ExitFailed, `"device policy list" lists what is`, "%q is not allowed for good", entry)
			}
			fmt.Fprintf(a.Stdout, "%s is asked again from now on.\n", entry)
			return nil
		},
	}
}
