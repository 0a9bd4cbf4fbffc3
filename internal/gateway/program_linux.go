package gateway

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram takes the pages of the program itself out of this process's
// memory. A start touches almost all of them, and few are needed afterwards; what
// is comes back from the system's cache of the file when it is used. Only pages
// that can't have been written are let go: of a program that is relocated when
// it is loaded (buildmode pie) those are the code alone.
func releaseProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	constants := isPlainExecutable()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != exe || fields[1] != "r-xp" && (fields[1] != "r--p" || !constants) {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return lines.Err()
}

func isPlainExecutable() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-buildmode" {
			return s.Value == "exe"
		}
	}
	return false
}
