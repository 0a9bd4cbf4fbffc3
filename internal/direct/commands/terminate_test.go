package commands_test

import "syscall"

func terminate(pid int) { syscall.Kill(pid, syscall.SIGKILL) }
