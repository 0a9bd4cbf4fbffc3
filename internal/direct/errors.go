package direct

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"agentrelay/internal/fault"
)

// The refusals that all of the Direct workspace shares. Their messages name
// arguments, never values or absolute paths.
var (
	UnknownProject     = fault.Kind{Code: "unknown_project", Hint: "list_direct_projects shows the project ids of a host; give hostId too when the project is on another host."}
	ProjectUnavailable = fault.Kind{Code: "project_unavailable", Hint: "Ask the owner to look at this project's path and allowedRoots in the gateway's config (gateway config check). Other projects work meanwhile.", Retryable: true}
	ReadDisabled       = fault.Kind{Code: "read_disabled", Hint: "Ask the owner to set read to true for this project in the gateway's config, or use a project that list_direct_projects shows with read true."}
	WriteDisabled      = fault.Kind{Code: "write_disabled", Hint: "Ask the owner to set write to true for this project in the gateway's config, or use a project that list_direct_projects shows with write true."}
	OutsideProject     = fault.Kind{Code: "outside_project", Hint: "Use a path inside the project. A link that leads out of it is not followed; if the files behind it are needed, ask the owner to add a project for them."}
	ProtectedPath      = fault.Kind{Code: "protected_path", Hint: "Use another file. Git's own directories are changed only by running git; the gateway's state, config and credential files are not accessible at all."}
	PathNotFound       = fault.Kind{Code: "path_not_found", Hint: "list_direct_files shows what there is. To create a file whose directory is missing, use write_direct_file with createParents true."}
	NotRegularFile     = fault.Kind{Code: "not_regular_file", Hint: "Use the path of a plain file; list_direct_files shows the type of each entry and the content of a directory."}
	NotDirectory       = fault.Kind{Code: "not_directory", Hint: "Use the path of a directory; list_direct_files shows the type of each entry."}
	LinkLoop           = fault.Kind{Code: "link_loop", Hint: "Use the path of the file itself; list_direct_files shows where a link leads."}
	PermissionDenied   = fault.Kind{Code: "permission_denied", Hint: "Ask the owner to give the gateway's user access to this path, or use another one."}
	MacOSPrivacy       = fault.Kind{Code: "macos_privacy", Hint: "Ask the owner to allow the gateway's program this folder in System Settings, Privacy & Security, Files and Folders, and to restart the gateway; or to move the project out of the protected folders."}
	NoSpace            = fault.Kind{Code: "no_space", Hint: "Ask the owner to free disk space (or quota) on that host, then repeat the call. The file is as it was.", Retryable: true}
	FileSystemError    = fault.Kind{Code: "file_system_error", Hint: "Repeat the call once. If it fails again, the owner should look at that disk or mount.", Retryable: true}
	FileChanged        = fault.Kind{Code: "file_changed", Hint: "Something else changed this path during the call. Read it again and repeat the call.", Retryable: true}
)

// Kinds lists the refusals of this package for docs/errors.md. Malformed
// arguments are refused with [fault.InvalidArguments].
func Kinds() []fault.Kind {
	return []fault.Kind{
		UnknownProject, ProjectUnavailable, ReadDisabled, WriteDisabled, OutsideProject, ProtectedPath, PathNotFound, NotRegularFile,
		NotDirectory, LinkLoop, PermissionDenied, MacOSPrivacy, NoSpace, FileSystemError, FileChanged,
	}
}

// Invalid refuses the argument of that name, with the rule it broke.
func Invalid(argument, rule string) error {
	return fault.InvalidArguments.New(argument + " " + rule)
}

func message(err error) string { return fault.From(err).Message }

// refusals says what an errno of the system means to a caller.
var refusals = []struct {
	errnos  []syscall.Errno
	kind    fault.Kind
	message string
}{
	{[]syscall.Errno{syscall.ENOENT}, PathNotFound, "path names nothing in this project."},
	{[]syscall.Errno{syscall.ENOTDIR}, NotDirectory, "A parent of path is not a directory."},
	{[]syscall.Errno{syscall.EISDIR, syscall.ENXIO, syscall.ENODEV}, NotRegularFile, "path is not a plain file."},
	{[]syscall.Errno{syscall.EACCES, syscall.EPERM}, PermissionDenied, "The system does not allow the gateway's user this access."},
	{[]syscall.Errno{syscall.EROFS}, PermissionDenied, "The file system is mounted read-only."},
	{[]syscall.Errno{syscall.ELOOP}, LinkLoop, "path leads through too many links."},
	{[]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT}, NoSpace, "There is no space left for it on that disk."},
	{[]syscall.Errno{syscall.ENAMETOOLONG}, fault.InvalidArguments, "path has a name that is too long for this file system."},
	{[]syscall.Errno{syscall.EILSEQ, syscall.EINVAL}, fault.InvalidArguments, "path has a name that this file system does not accept."},
	{[]syscall.Errno{syscall.ESTALE}, FileChanged, "path changed while it was used."},
}

// Fault turns an error of the system into the refusal that the caller gets; a
// refusal and nil stay as they are. path is where it happened, absolute, and
// only helps to tell a privacy denial of macOS from others.
func (h *Host) Fault(err error, path string) error {
	var refused *fault.Error
	if err == nil || errors.As(err, &refused) {
		return err
	}
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		if errors.Is(err, fs.ErrNotExist) {
			return PathNotFound.New("path names nothing in this project.").Because(err)
		}
		if named := new(fs.PathError); errors.As(err, &named) { // an os.Root says so of a link that leads out
			return FileChanged.New("path changed while it was used.").Because(err)
		}
		return err
	}
	if errno == syscall.EPERM && h.goos == "darwin" && privacyFolder(h.home, path) {
		return MacOSPrivacy.New("macOS does not allow the gateway's program this folder.").Because(err)
	}
	for _, r := range refusals {
		for _, e := range r.errnos {
			if e == errno {
				return r.kind.New(r.message).Because(err)
			}
		}
	}
	return FileSystemError.New("The file system answered: " + errno.Error() + ".").Because(err)
}

// privacyFolders are the folders of a home directory that macOS guards (TCC).
var privacyFolders = []string{
	"Desktop", "Documents", "Downloads", "Movies", "Music", "Pictures", ".Trash",
	"Library/Mobile Documents", "Library/CloudStorage", "Library/Containers", "Library/Group Containers",
}

// privacyFolder reports whether macOS asks the user before a program may use
// path: a guarded folder, a removable or a network volume.
func privacyFolder(home, path string) bool {
	if strings.HasPrefix(path, "/Volumes/") {
		return true
	}
	for _, folder := range privacyFolders {
		if home != "" && Inside(filepath.Join(home, folder), path) {
			return true
		}
	}
	return false
}

// unavailable is the refusal for a project directory that can't be entered.
func (h *Host) unavailable(path string, err error) error {
	refused := h.Fault(err, path)
	switch {
	case errors.Is(refused, MacOSPrivacy):
		return refused
	case errors.Is(refused, PathNotFound):
		return ProjectUnavailable.New("The project's directory does not exist.").Because(err)
	case errors.Is(refused, PermissionDenied):
		return ProjectUnavailable.New("The gateway's user may not enter the project's directory.").Because(err)
	}
	return ProjectUnavailable.New("The project's directory can't be opened.").Because(err)
}
