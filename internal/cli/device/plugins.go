package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"agentrelay/internal/device"
	"agentrelay/internal/device/plugins"
	reference "agentrelay/plugins"
)

func (a *app) pluginsCommand() *cobra.Command {
	return a.group("plugins", "The tools of this device", "Lists the plugins of this device, makes the running device read them again, installs those that come along.", "",
		a.pluginsListCommand(), a.pluginsReloadCommand(), a.pluginsInstallCommand())
}

func (a *app) pluginsListCommand() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use:   "list",
		Short: "Read the plugin root and say what is in it",
		Args:  exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.state()
			if err != nil {
				return err
			}
			root, err := a.pluginsIn(s, "device", ".")
			if err != nil {
				return err
			}
			set := root.Scan(cmd.Context())
			defer set.Close()
			if a.json {
				return a.printJSON(map[string]any{"root": root.Dir, "tools": set.Infos(), "problems": slices.Concat([]plugins.Problem{}, set.Problems)})
			}
			return a.printPlugins(root.Dir, set)
		},
	})
}

func (a *app) printPlugins(dir string, set *plugins.Set) error {
	if len(set.Tools) == 0 {
		fmt.Fprintf(a.Stdout, "No plugins in %s\n", clean(dir))
	} else {
		w := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TOOL\tNEEDS\tDOES")
		for _, t := range set.Tools {
			first, _, _ := strings.Cut(t.Desc, "\n")
			fmt.Fprintf(w, "%s\t%s\t%s\n", t.Name, strings.Join(t.Requires, ","), clean(first))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, p := range set.Problems {
		fmt.Fprintln(a.Stdout, "Skipped "+clean(strings.TrimPrefix(p.Plugin+": "+p.Why, ": ")))
	}
	return nil
}

// reloadTime is how long the running device may take to read its plugins.
const reloadTime = 30 * time.Second

func (a *app) pluginsReloadCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Make the running device read its plugins again",
		Args:  exact(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.state()
			if err != nil {
				return err
			}
			before, asked := askStatus(s)
			sent, err := s.Signal(syscall.SIGHUP)
			if err != nil {
				return err
			}
			if !sent {
				return failed(ExitFailed, "it reads its plugins when it starts", "the device does not run")
			}
			if asked != nil {
				fmt.Fprintln(a.Stdout, "Told the running device; it does not say what came of it.")
				return nil
			}
			for until := time.Now().Add(reloadTime); time.Now().Before(until); {
				now, err := askStatus(s)
				if err == nil && now.Loaded.After(before.Loaded) {
					return a.printReloaded(now)
				}
				select {
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				case <-time.After(50 * time.Millisecond):
				}
			}
			return failed(ExitFailed, `"device status" says how it is`, "the running device has not read its plugins within %v", reloadTime)
		},
	}
}

func (a *app) printReloaded(st device.Status) error {
	tools := strings.Join(st.Tools, ", ")
	if tools == "" {
		tools = "none"
	}
	fmt.Fprintln(a.Stdout, "Tools: "+tools)
	for _, p := range st.Problems {
		fmt.Fprintln(a.Stdout, "Skipped "+clean(strings.TrimPrefix(p.Plugin+": "+p.Why, ": ")))
	}
	return nil
}

func (a *app) pluginsInstallCommand() *cobra.Command {
	all, force := false, false
	names := comeAlong()
	c := &cobra.Command{
		Use:   "install NAME...",
		Short: "Copy plugins that come along into the plugin root",
		Long: `Copies plugins that come with this program into the plugin root. They are Python 3 programs:
` + strings.Join(names, ", ") + `.
A running device offers them after "device plugins reload".`,
		Example: `  device plugins install run read-file
  device plugins install --all`,
		RunE: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("name some plugins, or give --all: there are %s", strings.Join(names, ", "))
			}
			if all {
				args = names
			}
			for _, name := range args {
				if !slices.Contains(names, name) {
					return usage("there is no plugin %q: there are %s", name, strings.Join(names, ", "))
				}
			}
			return a.install(args, force)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all of them")
	c.Flags().BoolVar(&force, "force", false, "replace files that differ")
	return c
}

// comeAlong are the names of the reference plugins.
func comeAlong() (names []string) {
	entries, err := reference.Files.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("the embedded plugins: %v", err))
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

func (a *app) install(names []string, force bool) error {
	dir, err := a.pluginRoot()
	if err != nil {
		return err
	}
	var paths []string
	for _, name := range names {
		err := fs.WalkDir(reference.Files, name, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		if strings.HasPrefix(name, "job-") && !slices.Contains(paths, "joblib.py") {
			paths = append(paths, "joblib.py")
		}
	}
	for _, path := range paths {
		if err := copyOut(path, filepath.Join(dir, path), force); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.Stdout, "Installed %s in %s\n", strings.Join(names, ", "), clean(dir))
	return nil
}

func copyOut(from, to string, force bool) error {
	text, err := reference.Files.ReadFile(from)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(to)
	switch {
	case err == nil && string(there) == string(text):
		return nil
	case err == nil && !force:
		return failed(ExitFailed, "--force replaces it", "%s is there already, and differs", to)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(to, text, 0o644)
}
