package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// errNoHome means that a default path was needed and none can be made.
var errNoHome = errors.New("HOME is not set: set it, or name the config with --config and write stateDir into it")

// DefaultPath is where the config lies when --config is not given:
// $XDG_CONFIG_HOME/agent-relay/config.json, else
// ~/.config/agent-relay/config.json. The same places are used on macOS.
func DefaultPath(getenv func(string) string) (string, error) {
	return xdg(getenv, "XDG_CONFIG_HOME", ".config", "config.json")
}

// DefaultStateDir is where the state lies when the config has no stateDir:
// $XDG_STATE_HOME/agent-relay, else ~/.local/state/agent-relay. The same places
// are used on macOS.
func DefaultStateDir(getenv func(string) string) (string, error) {
	return xdg(getenv, "XDG_STATE_HOME", filepath.Join(".local", "state"), "")
}

// xdg follows the XDG base directory specification, which says that a relative
// value of its variables is ignored.
func xdg(getenv func(string) string, variable, underHome, name string) (string, error) {
	base := getenv(variable)
	if !filepath.IsAbs(base) {
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return "", errNoHome
		}
		base = filepath.Join(home, underHome)
	}
	return filepath.Join(base, "agent-relay", name), nil
}

// ExpandPath makes the absolute, clean form of a local path of the config. A
// leading ~ or $HOME is the home directory; nothing else is expanded.
func ExpandPath(path string, getenv func(string) string) (string, error) {
	for _, prefix := range []string{"~", "$HOME", "${HOME}"} {
		rest, ok := strings.CutPrefix(path, prefix)
		if !ok || rest != "" && !os.IsPathSeparator(rest[0]) {
			continue
		}
		home := getenv("HOME")
		if !filepath.IsAbs(home) {
			return "", errors.New("starts at the home directory, but HOME is not set: write the absolute path")
		}
		path = home + rest
		break
	}
	switch {
	case path == "":
		return "", errors.New("must not be empty: write an absolute path, or remove the key")
	case strings.ContainsRune(path, 0):
		return "", errors.New("must not contain a NUL character")
	case !filepath.IsAbs(path):
		return "", errors.New("must be an absolute path (a leading ~ or $HOME is expanded, nothing else)")
	}
	return filepath.Clean(path), nil
}
