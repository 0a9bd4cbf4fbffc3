package gateway

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"agentrelay/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	return a.group("config", "Look at the config", "", `  gateway config check`, a.configCheckCommand())
}

func (a *app) configCheckCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "check",
		Short: "Check the config and print its effective form",
		Long: `Checks every key of the config and prints it with all defaults filled in.
Warnings go to standard error. A config that can't be used ends with exit code 78
and a list of all its problems. Secrets are never in a config: it names the files
and variables that hold them.`,
		Example: `  gateway config check
  gateway config check --config ./config.json
  gateway config check --json`,
		Args: exact(),
		RunE: func(*cobra.Command, []string) error {
			path, _, err := a.path()
			if err != nil {
				return err
			}
			c, warnings, err := a.load()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(a.Stdout, struct {
					Path     string          `json:"path"`
					Warnings []config.Remark `json:"warnings"`
					Config   json.RawMessage `json:"config"`
				}{path, warnings, c.JSON()})
			}
			for _, w := range warnings {
				fmt.Fprintln(a.Stderr, wrap("warning: "+clean(w.String())))
			}
			fmt.Fprintf(a.Stderr, "%s is in order. With the defaults it says:\n", clean(path))
			_, err = a.Stdout.Write(c.JSON())
			return err
		},
	})
}
