package prompt

import "golang.org/x/sys/unix"

const (
	getTermios      = unix.TCGETS
	setTermiosFlush = unix.TCSETSF
)
