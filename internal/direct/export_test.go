package direct

import "time"

// OnDarwin makes h classify errors as on a Mac of a user with this home.
func (h *Host) OnDarwin(home string) { h.goos, h.home = "darwin", home }

// Hangs makes h ask ask before it looks for the directory at a path, and wait so
// long for one to be found.
func (h *Host) Hangs(ask func(path string), patience time.Duration) {
	eval := h.eval
	h.patience = patience
	h.eval = func(path string) (string, error) {
		ask(path)
		return eval(path)
	}
}
