package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"agentrelay/internal/config"
	"agentrelay/internal/oauth/owner"
	"agentrelay/internal/shellquote"
	"agentrelay/internal/store"
)

// pendingName is a file that lies in the state directory while init works: an
// owner's password that was never shown may be replaced by another.
const pendingName = "init.pending"

// passwordName is where a password goes when nobody is at the terminal.
const passwordName = "owner-password.txt"

// initFlags is what init was told.
type initFlags struct {
	stateDir  string
	publicURL string
	port      int
}

// made is what init made. Its JSON is a contract.
type made struct {
	ConfigPath    string `json:"configPath"`
	StateDir      string `json:"stateDir"`
	OwnerPassword string `json:"ownerPassword"`
	MCPURL        string `json:"mcpUrl"`

	config       *config.Config
	passwordFile string // where the password is, when it is not to be printed
}

func (a *app) initCommand() *cobra.Command {
	var flags initFlags
	c := a.withJSON(&cobra.Command{
		Use:   "init",
		Short: "Set up a gateway: config, state directory, owner password",
		Long: `Writes a config that works and a private state directory, makes the owner's
password, and prints it once. Nothing that exists is overwritten; a set-up that was
interrupted can be run again.

Without a terminal on standard output, and without --json, the password goes to a
file of mode 0600 in the state directory, and the file's path is printed.

The state directory is $XDG_STATE_HOME/agent-relay, else ~/.local/state/agent-relay, on
every system. Without --public-url only clients on this machine can connect.`,
		Example: `  gateway init
  gateway init --public-url https://gateway.example.com
  gateway init --port 7000 --state-dir /srv/relay --config /etc/relay.json
  gateway init --json`,
		Args: exact(),
		RunE: func(*cobra.Command, []string) error {
			path, _, err := a.path()
			if err != nil {
				return err
			}
			setup, err := a.beginSetup(path, flags)
			if err != nil {
				return err
			}
			if a.json {
				return setup.finish(a.printJSON(a.Stdout, setup.made))
			}
			return setup.finish(a.printSetup(a.Stdout, setup.made, true))
		},
	})
	c.Flags().StringVar(&flags.stateDir, "state-dir", "", "`directory` of the database (default ~/.local/state/agent-relay)")
	c.Flags().StringVar(&flags.publicURL, "public-url", "", "https `address` for clients (default http://127.0.0.1:<port>)")
	c.Flags().IntVar(&flags.port, "port", config.DefaultPort, "loopback `port` to listen on")
	return c
}

// setup is an init that wrote everything and has still to show the password.
type setup struct {
	made
	pending *flock.Flock
}

// finish ends a set-up. When the password could not be shown (err), the set-up
// stays unfinished and can be run again.
func (s *setup) finish(err error) error {
	defer s.pending.Close()
	if err != nil {
		return fmt.Errorf("the password could not be shown, run the command again: %w", err)
	}
	return os.Remove(s.pending.Path())
}

// beginSetup writes the state directory, the owner's file and, last, the config.
func (a *app) beginSetup(path string, flags initFlags) (_ *setup, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	text, c, err := a.newConfig(path, flags)
	if err != nil {
		return nil, err
	}
	if err := privateStateDir(c.StateDir); err != nil {
		return nil, err
	}
	pending, unfinished, err := beginPending(c.StateDir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			pending.Close()
		}
	}()
	if err := refuseExisting(path, text, c, unfinished); err != nil {
		if !unfinished {
			os.Remove(pending.Path())
		}
		return nil, err
	}
	if err := notePending(pending.Path(), path); err != nil {
		return nil, fmt.Errorf("noting that a set-up began: %w", err)
	}
	password, err := owner.GeneratePassword(a.Rand)
	if err != nil {
		return nil, err
	}
	m := made{ConfigPath: path, StateDir: c.StateDir, OwnerPassword: password, MCPURL: c.MCPURL(), config: c}
	if m.passwordFile, err = a.passwordFile(c.StateDir, password); err != nil {
		return nil, err
	}
	if err := owner.WritePassword(c.OwnerTokenFile, password, a.Rand, unfinished); err != nil {
		return nil, err
	}
	if err := createConfig(path, text); err != nil {
		return nil, err
	}
	return &setup{m, pending}, nil
}

// newConfig is the text of the config that init writes, and what it means.
func (a *app) newConfig(path string, flags initFlags) ([]byte, *config.Config, error) {
	file := struct {
		PublicBaseURL  string `json:"publicBaseUrl,omitempty"`
		Port           int    `json:"port"`
		SharedOwner    bool   `json:"sharedOwner"`
		StateDir       string `json:"stateDir,omitempty"`
		OwnerTokenFile string `json:"ownerTokenFile,omitempty"`
	}{PublicBaseURL: flags.publicURL, Port: flags.port, SharedOwner: true}
	if flags.stateDir != "" {
		dir, err := filepath.Abs(flags.stateDir)
		if err != nil {
			return nil, nil, err
		}
		file.StateDir = dir
	}
	raw, err := json.Marshal(file)
	if err != nil {
		return nil, nil, err
	}
	c, _, err := config.Parse(path, raw, a.Getenv)
	var invalid *config.InvalidError
	if errors.As(err, &invalid) {
		return nil, nil, badFlags(invalid)
	}
	if err != nil {
		return nil, nil, err
	}
	file.PublicBaseURL, file.StateDir, file.OwnerTokenFile = c.PublicBaseURL, c.StateDir, c.OwnerTokenFile
	raw, err = json.MarshalIndent(file, "", "  ")
	return append(raw, '\n'), c, err
}

// badFlags says the problems of a config in terms of init's flags.
func badFlags(invalid *config.InvalidError) error {
	flags := map[string]string{"publicBaseUrl": "--public-url", "port": "--port", "stateDir": "--state-dir"}
	var lines []string
	for _, p := range invalid.Problems {
		name := p.Key
		if flag, ok := flags[p.Key]; ok {
			name = flag
		}
		lines = append(lines, name+" "+p.Text)
	}
	return usage("%s", strings.Join(lines, "\n"))
}

func privateStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failed("choose another with --state-dir", "the state directory can't be made: %w", err)
	}
	return checkPrivate(dir, ExitFailed)
}

// checkPrivate refuses a state directory that others can use.
func checkPrivate(dir string, code int) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("looking at the state directory: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return &exitError{
			code: code, err: fmt.Errorf("the state directory %s has mode %04o, others can use it", dir, mode),
			hint: "run chmod 700 on it if it is yours alone, else choose another",
		}
	}
	return nil
}

// beginPending takes the set-up's own lock. unfinished says that an earlier
// set-up in this state directory did not get to its end.
func beginPending(stateDir string) (pending *flock.Flock, unfinished bool, err error) {
	pending = flock.New(filepath.Join(stateDir, pendingName), flock.SetPermissions(0o600))
	ok, err := pending.TryLock()
	if err != nil {
		return nil, false, fmt.Errorf("locking the set-up: %w", err)
	}
	if !ok {
		return nil, false, failed("wait until it has ended", "another gateway init is at work in %s", stateDir)
	}
	info, err := os.Stat(pending.Path())
	if errors.Is(err, fs.ErrNotExist) { // another set-up ended between our open and our lock
		return pending, false, nil
	}
	if err != nil {
		pending.Close()
		return nil, false, fmt.Errorf("looking at an earlier set-up: %w", err)
	}
	return pending, info.Size() > 0, nil
}

// notePending marks the set-up of a config as unfinished. The note is on disk
// before anything else is: what it explains must not survive a power cut alone.
func notePending(note, config string) error {
	f, err := os.OpenFile(note, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(config + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return syncDir(filepath.Dir(note))
}

// refuseExisting finds what init must not touch.
func refuseExisting(path string, text []byte, c *config.Config, unfinished bool) error {
	have, err := os.ReadFile(path)
	if _, none := os.Lstat(path); err != nil && none == nil {
		err = nil // a link to nowhere, or another thing that is no config of ours
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("looking for an earlier config: %w", err)
	case unfinished && string(have) == string(text): // written by the set-up that did not end
		return nil
	default:
		return failed(fmt.Sprintf(`edit that file, or choose another with --config. A new password: "gateway owner reset-password --config %s"`, shellquote.Word(path)), "there is a config already at %s, and nothing is overwritten", path)
	}
	if unfinished {
		return nil
	}
	for _, file := range []string{c.OwnerTokenFile, filepath.Join(c.StateDir, store.FileName)} {
		if _, err := os.Lstat(file); err == nil {
			return failed("choose another with --state-dir, or write a config that names this one", "the state directory %s belongs to a gateway already (it has %s), and nothing is overwritten", c.StateDir, filepath.Base(file))
		}
	}
	return nil
}

// createConfig makes the config appear whole or not at all, and never in the
// place of another file.
func createConfig(path string, text []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of the config: %w", err)
	}
	f, err := os.CreateTemp(dir, ".config-*.json")
	if err != nil {
		return fmt.Errorf("writing the config: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing the config: %w", err)
	}
	err = os.Link(f.Name(), path)
	if errors.Is(err, fs.ErrExist) {
		if have, readErr := os.ReadFile(path); readErr == nil && string(have) == string(text) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("writing the config: %w", err)
	}
	return syncDir(dir)
}

// syncDir puts the names in a directory on disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// passwordFile puts a password that is not to be printed into a file that only
// the owner can read, and returns its path; else it returns "". The file of an
// earlier password goes either way.
func (a *app) passwordFile(stateDir, password string) (string, error) {
	path := filepath.Join(stateDir, passwordName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("removing an earlier password file: %w", err)
	}
	if a.json || a.StdoutTerminal {
		return "", nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("writing the password file: %w", err)
	}
	_, err = fmt.Fprintln(f, password)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", fmt.Errorf("writing the password file: %w", err)
	}
	return path, nil
}

// printPassword shows a new password once, or says in which file it is.
func printPassword(w io.Writer, password, file string) error {
	if file != "" {
		_, err := fmt.Fprintf(w, "Owner password: in the file %s\n  Move it to your password manager and delete the file. It is stored nowhere else.\n", file)
		return err
	}
	_, err := fmt.Fprintf(w, "Owner password: %s\n  Put it into your password manager now: it is shown once and stored nowhere else.\n", password)
	return err
}
