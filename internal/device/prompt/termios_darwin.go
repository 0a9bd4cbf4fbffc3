package prompt

import "golang.org/x/sys/unix"

const (
	getTermios      = unix.TIOCGETA
	setTermiosFlush = unix.TIOCSETAF
)
