package gateway

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is what this binary is.
type build struct {
	Version string `json:"version"` // "devel" for one built from a work tree
	Commit  string `json:"commit,omitempty"`
	Changed bool   `json:"changed"` // the work tree had changes that are in no commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// thisBuild reads what the Go tool wrote into the binary.
func thisBuild() build {
	b := build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Changed = s.Value == "true"
		}
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "version",
		Short: "Say which version this is",
		Example: `  gateway version
  gateway version --json`,
		Args: exact(),
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			if a.json {
				return a.printJSON(a.Stdout, b)
			}
			commit := ""
			if b.Commit != "" {
				commit = ", commit " + b.Commit[:min(12, len(b.Commit))]
			}
			if b.Changed {
				commit += " with changes"
			}
			_, err := fmt.Fprintf(a.Stdout, "Agent Relay gateway %s%s, %s, %s/%s\n", b.Version, commit, b.Go, b.OS, b.Arch)
			return err
		},
	})
}
