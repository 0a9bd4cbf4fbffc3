package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"agentrelay/internal/direct/commands/record"
)

// The codes of commands that could not be executed.
const (
	CodeNotFound      = "command_not_found"
	CodeNotExecutable = "command_not_executable"
	CodeNoDirectory   = "cwd_not_found"
	CodeExecFailed    = "exec_failed"
)

// lookUp finds the program that argv0 names: a path, relative to dir, or a name
// to be looked for in the absolute directories of path.
func lookUp(argv0, dir, path string) (string, *record.Error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", &record.Error{Code: CodeNoDirectory, Message: "The directory to run in is not there any more."}
	}
	if strings.Contains(argv0, "/") {
		program := argv0
		if !filepath.IsAbs(program) {
			program = filepath.Join(dir, program)
		}
		switch err := executable(program); {
		case errors.Is(err, fs.ErrNotExist):
			return "", &record.Error{Code: CodeNotFound, Message: "argv[0] names no file. A relative path counts from cwd, that of a registered command from the project."}
		case err != nil:
			return "", notExecutable()
		}
		return program, nil
	}
	denied := false
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			continue // such as the empty entry, which means the current directory
		}
		program := filepath.Join(d, argv0)
		switch err := executable(program); {
		case err == nil:
			return program, nil
		case errors.Is(err, fs.ErrPermission):
			denied = true
		}
	}
	if denied {
		return "", notExecutable()
	}
	return "", &record.Error{Code: CodeNotFound, Message: "argv[0] is in no directory of PATH, which is " + path + "."}
}

func notExecutable() *record.Error {
	return &record.Error{Code: CodeNotExecutable, Message: "argv[0] is there but the gateway's user may not execute it."}
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}

// execError is what the system's refusal to execute means.
func execError(err error) *record.Error {
	if errors.Is(err, fs.ErrPermission) {
		return notExecutable()
	}
	e := &record.Error{Code: CodeExecFailed, Message: "The system can't execute argv[0]."}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e.Message = "The system can't execute argv[0]: " + errno.Error() + "."
	}
	return e
}
