package files

import "agentrelay/internal/fault"

// The refusals of file tools, besides those of package direct.
var (
	HashConflict   = fault.Kind{Code: "hash_conflict", Hint: "Read the file again, apply the change to what is there now, and pass its sha256 (read_direct_file with hash true has it for files of any size)."}
	FileExists     = fault.Kind{Code: "file_exists", Hint: "To replace the file, read it and pass its sha256 as expectedSha256; to keep it, write to another path."}
	FileTooLarge   = fault.Kind{Code: "file_too_large", Hint: "Read it in pages by byteOffset or tail; change it with a command of the project, or replace it with import_direct_file."}
	ReadOnlyFile   = fault.Kind{Code: "read_only_file", Hint: "Ask the owner whether this file should be changed; a read-only file is changed only after its mode is."}
	PrivilegedFile = fault.Kind{Code: "privileged_file", Hint: "Ask the owner to change this file: it runs with rights of its own (setuid, setgid or file capabilities), which changed content must not get."}
	WouldLoseBytes = fault.Kind{Code: "would_lose_bytes", Hint: "Change it with edit_direct_file, which leaves all other bytes as they are, or replace it with import_direct_file."}
	TextNotFound   = fault.Kind{Code: "text_not_found", Hint: "Copy oldText from the file as it is there (read_direct_file), character for character, and repeat the call."}
	AmbiguousEdit  = fault.Kind{Code: "ambiguous_edit", Hint: "Add neighbouring lines to oldText until it occurs once, or pass replaceAll true to replace every occurrence."}
)

// Kinds lists the refusals of this package for docs/errors.md. Malformed
// arguments are refused with [fault.InvalidArguments], cursors of other lists
// with [fault.InvalidCursor].
func Kinds() []fault.Kind {
	return []fault.Kind{
		HashConflict, FileExists, FileTooLarge, ReadOnlyFile, PrivilegedFile, WouldLoseBytes, TextNotFound, AmbiguousEdit,
	}
}
