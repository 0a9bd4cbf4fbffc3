package direct

// OnDarwin makes h classify errors as on a Mac of a user with this home.
func (h *Host) OnDarwin(home string) { h.goos, h.home = "darwin", home }
