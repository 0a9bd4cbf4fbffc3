package plugins

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// inherited are the variables of this process that plugins get. Everything else may
// be a secret: of the device, of its service manager, of the shell it was started
// from. A manifest's env adds more.
var inherited = []string{
	"HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSH_AUTH_SOCK",
	"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS",
	"LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME",
	"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS", // a plugin may open a window or a notification
	"__CF_USER_TEXT_ENCODING",                                                                                                                    // macOS: without it some programs ask a service for the encoding
	"PREFIX", "ANDROID_ROOT", "ANDROID_DATA", "ANDROID_ART_ROOT", "ANDROID_I18N_ROOT", "ANDROID_TZDATA_ROOT", "TERMUX_VERSION", "TERMUX__PREFIX", // Termux
}

// defaultPath is the PATH of plugins when this process has none.
const defaultPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"

// environment is what every plugin gets, and the PATH in which programs are looked for.
func environment(getenv func(string) string) (env []string, path string) {
	for _, name := range inherited {
		if v := getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	if getenv("TERMUX_VERSION") != "" && getenv("LD_PRELOAD") != "" {
		env = append(env, "LD_PRELOAD="+getenv("LD_PRELOAD")) // there nothing with a #! line runs without it
	}
	path = cleanPath(getenv("PATH"))
	// Nobody sits at a terminal that plugins could use.
	return append(env, "PATH="+path, "TERM=dumb", "NO_COLOR=1", "PAGER=cat", "GIT_PAGER=cat", "GIT_TERMINAL_PROMPT=0", "PYTHONDONTWRITEBYTECODE=1"), path
}

// cleanPath leaves out what depends on the directory in which something runs: a
// project could put its own python3 there.
func cleanPath(path string) string {
	var out []string
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) && !slices.Contains(out, filepath.Clean(dir)) {
			out = append(out, filepath.Clean(dir))
		}
	}
	if len(out) == 0 {
		return defaultPath
	}
	return strings.Join(out, string(filepath.ListSeparator))
}

// lookUp finds a program in path, which has absolute directories only.
func lookUp(program, path string) (string, bool) {
	if filepath.IsAbs(program) {
		found, err := exec.LookPath(program)
		return found, err == nil
	}
	if strings.ContainsRune(program, filepath.Separator) {
		return "", false
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, true
		}
	}
	return "", false
}

// with adds a manifest's variables, which replace those of the same name.
func with(env []string, more map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, replaced := more[name]
		return replaced
	})
	for name, value := range more {
		out = append(out, name+"="+value)
	}
	return out
}
