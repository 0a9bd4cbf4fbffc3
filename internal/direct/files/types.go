package files

import (
	"encoding/json"
	"time"
)

// Limits of arguments and answers.
const (
	MaxContent = 1 << 20  // bytes of text that write_direct_file takes, and each text of edit_direct_file
	MaxEdit    = 64 << 20 // bytes of a file that edit_direct_file works on
	MaxWhole   = 8 << 20  // bytes up to which a read looks at the whole file
	MaxHash    = 16 << 30 // bytes of a file that is hashed: by hash true, and before it is replaced
	MaxScan    = 4 << 30  // bytes that a read looks through to find a line

	DefaultList, MaxList     = 200, 1000 // entries
	DefaultSearch, MaxSearch = 100, 500  // matches
	DefaultRead, MaxRead     = 500, 2000 // lines
	MaxContext               = 5         // lines before and after a match
	MaxQuery                 = 1024      // characters
	MaxGlob                  = 1024      // bytes

	maxPage = 64 << 10  // bytes of content in a read, as JSON escapes it
	maxList = 192 << 10 // bytes of paths and texts in a list or a search
	maxLine = 500       // characters of a line in a match
)

// Time is an instant that JSON shows as RFC 3339 in UTC with milliseconds.
type Time struct{ time.Time }

// MarshalJSON implements [json.Marshaler].
func (t Time) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// Type is what an entry of a directory is.
type Type string

// The types.
const (
	File      Type = "file"
	Directory Type = "directory"
	Symlink   Type = "symlink"
	Other     Type = "other" // a pipe, socket or device
)

// Skipped counts what a list or a search left out, by reason.
type Skipped struct {
	Ignored    int `json:"ignored,omitempty"`    // by .gitignore or the built-in names
	Protected  int `json:"protected,omitempty"`  // the gateway's own files
	Links      int `json:"links,omitempty"`      // search and recursion do not follow links
	Special    int `json:"special,omitempty"`    // pipes, sockets, devices
	Binary     int `json:"binary,omitempty"`     // a NUL byte in the first 8 KiB
	Unreadable int `json:"unreadable,omitempty"` // no permission, or an error of the disk
	Changed    int `json:"changed,omitempty"`    // removed or replaced meanwhile
	BadName    int `json:"badName,omitempty"`    // not UTF-8, so that no argument could name it
	TooDeep    int `json:"tooDeep,omitempty"`    // below 256 directories
	Temporary  int `json:"temporary,omitempty"`  // of a write in progress or a crash
}

// In what follows a pointer is an argument whose absence differs from its empty
// value; nil means that the caller left it out.

// ListDirectFilesIn is the arguments of list_direct_files.
type ListDirectFilesIn struct {
	ProjectID string `json:"projectId"`
	Path      string `json:"path,omitempty"` // a directory; "" is the project's own
	Recursive bool   `json:"recursive,omitempty"`
	// Glob selects entries by path below Path: * ? [] {} within a name, ** over
	// directories; without a slash by name at any depth.
	Glob           *string `json:"glob,omitempty"`
	IncludeIgnored bool    `json:"includeIgnored,omitempty"` // with Recursive; a plain list leaves nothing out
	Limit          *int    `json:"limit,omitempty"`          // 1..1000, nil is 200
	Cursor         *string `json:"cursor,omitempty"`
}

// Entry is one entry of a directory.
type Entry struct {
	Path       string `json:"path"`
	Type       Type   `json:"type"`
	Size       int64  `json:"size"` // bytes of a file, else 0
	ModifiedAt Time   `json:"modifiedAt"`
	Executable bool   `json:"executable,omitempty"`
	// LinkTarget is the project-relative path that a link names, whether or not
	// something is there; absent when the link leads out of the project.
	LinkTarget *string `json:"linkTarget,omitempty"`
}

// ListDirectFilesOut is the answer of list_direct_files, ordered by the names
// on the path in byte order, a directory before what is in it.
type ListDirectFilesOut struct {
	Path       string  `json:"path"`
	Entries    []Entry `json:"entries"`
	Skipped    Skipped `json:"skipped"` // by this page
	NextCursor string  `json:"nextCursor,omitempty"`
	HostID     string  `json:"hostId"`
}

// SearchDirectFilesIn is the arguments of search_direct_files.
type SearchDirectFilesIn struct {
	ProjectID string `json:"projectId"`
	// Query is looked for within single lines, 1..1024 characters.
	Query          string  `json:"query"`
	Path           string  `json:"path,omitempty"`       // a directory or one file; "" is the project
	Regex          bool    `json:"regex,omitempty"`      // Query is an RE2 expression
	IgnoreCase     bool    `json:"ignoreCase,omitempty"` // by simple Unicode folding
	Glob           *string `json:"glob,omitempty"`       // as in list_direct_files, of files
	IncludeIgnored bool    `json:"includeIgnored,omitempty"`
	Context        *int    `json:"context,omitempty"` // 0..5 lines before and after
	Limit          *int    `json:"limit,omitempty"`   // 1..500, nil is 100
	Cursor         *string `json:"cursor,omitempty"`
}

// Match is the first match of a line. Bytes that are not UTF-8 show as U+FFFD.
type Match struct {
	Path   string `json:"path"`
	Line   int64  `json:"line"`   // from 1
	Column int64  `json:"column"` // from 1, in characters
	// Text is the line without its end; of a long line, what is around the match.
	Text          string   `json:"text"`
	TextTruncated bool     `json:"textTruncated,omitempty"`
	Before        []string `json:"before,omitempty"`
	After         []string `json:"after,omitempty"`
}

// SearchDirectFilesOut is the answer of search_direct_files, ordered by path as
// in a list, then by line.
type SearchDirectFilesOut struct {
	Matches      []Match `json:"matches"`
	ScannedFiles int     `json:"scannedFiles"`
	ScannedBytes int64   `json:"scannedBytes"`
	Skipped      Skipped `json:"skipped"`
	// Truncated says that the search ended before the last file: by limit, or
	// by what one call may scan. NextCursor goes on from there.
	Truncated  bool   `json:"truncated"`
	NextCursor string `json:"nextCursor,omitempty"`
	HostID     string `json:"hostId"`
}

// Encoding is how content is written in an answer.
type Encoding string

// The encodings.
const (
	UTF8   Encoding = "utf-8"
	Base64 Encoding = "base64" // standard, padded: the bytes are not UTF-8
)

// EOL is what ends the lines of a file.
type EOL string

// The line ends.
const (
	LF    EOL = "lf"
	CRLF  EOL = "crlf"
	Mixed EOL = "mixed"
	NoEOL EOL = "none"
)

// ReadDirectFileIn is the arguments of read_direct_file. At most one of Offset,
// ByteOffset and Tail is given.
type ReadDirectFileIn struct {
	ProjectID  string `json:"projectId"`
	Path       string `json:"path"`
	Offset     *int64 `json:"offset,omitempty"`     // line, from 0
	Limit      *int   `json:"limit,omitempty"`      // 1..2000 lines, nil is 500
	ByteOffset *int64 `json:"byteOffset,omitempty"` // of nextByteOffset
	Tail       bool   `json:"tail,omitempty"`       // the last Limit lines
	Hash       bool   `json:"hash,omitempty"`       // look at the whole file whatever its size
}

// ReadDirectFileOut is the answer of read_direct_file. A line ends behind its
// LF; what follows the last LF, if anything, is a line too.
type ReadDirectFileOut struct {
	Path string `json:"path"`
	// Content is the bytes of the page as they are, line ends and byte order
	// mark included, so that pages joined are the file.
	Content  string   `json:"content"`
	Encoding Encoding `json:"encoding"`
	BOM      bool     `json:"bom"` // the file begins with a UTF-8 byte order mark
	// EOL, SHA256 and TotalLines are of the whole file; absent above 8 MiB
	// unless Hash was given.
	EOL    EOL    `json:"eol,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Size   int64  `json:"size"` // bytes of the file
	// Offset is the line in which Content begins, from 0; absent when it is not
	// known (Tail and ByteOffset, in a file that was not looked at as a whole).
	Offset     *int64 `json:"offset,omitempty"`
	ByteOffset int64  `json:"byteOffset"` // where Content begins
	// ReturnedLines counts the lines that Content completes.
	ReturnedLines int    `json:"returnedLines"`
	TotalLines    *int64 `json:"totalLines,omitempty"`
	// NextOffset is the line behind Content; absent at the end of the file, when
	// it is not known, and when Content ends within a line.
	NextOffset     *int64 `json:"nextOffset,omitempty"`
	NextByteOffset *int64 `json:"nextByteOffset,omitempty"` // the byte behind Content; absent at the end
	Truncated      bool   `json:"truncated"`                // the file goes on behind Content
	HostID         string `json:"hostId"`
}

// WriteDirectFileIn is the arguments of write_direct_file.
type WriteDirectFileIn struct {
	ProjectID string `json:"projectId"`
	Path      string `json:"path"`
	Content   string `json:"content"` // at most 1 MiB of UTF-8, written as it is
	// ExpectedSHA256 is what the file has now (64 hex digits); nil creates it.
	ExpectedSHA256 *string `json:"expectedSha256"`
	CreateParents  bool    `json:"createParents,omitempty"`
	Executable     *bool   `json:"executable,omitempty"` // nil leaves it as it is; new files are not
}

// WriteDirectFileOut is the answer of write_direct_file.
type WriteDirectFileOut struct {
	Path      string `json:"path"` // behind all links
	SHA256    string `json:"sha256"`
	Size      int64  `json:"size"`
	Created   bool   `json:"created"`
	Duplicate bool   `json:"duplicate"` // an earlier call has done this
	HostID    string `json:"hostId"`
}

// EditDirectFileIn is the arguments of edit_direct_file.
type EditDirectFileIn struct {
	ProjectID      string `json:"projectId"`
	Path           string `json:"path"`
	ExpectedSHA256 string `json:"expectedSha256"`
	OldText        string `json:"oldText"` // not empty
	NewText        string `json:"newText"`
	ReplaceAll     bool   `json:"replaceAll,omitempty"`
}

// EditDirectFileOut is the answer of edit_direct_file.
type EditDirectFileOut struct {
	Path         string `json:"path"` // behind all links
	SHA256       string `json:"sha256"`
	Size         int64  `json:"size"`
	Replacements int    `json:"replacements"`
	// Diff is unified, bounded, and "" in a project that may not be read.
	Diff      string `json:"diff"`
	Duplicate bool   `json:"duplicate"` // an earlier call has done this
	HostID    string `json:"hostId"`
}
