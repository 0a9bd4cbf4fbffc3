package files

import (
	"encoding/base64"
	"strconv"
	"strings"

	"agentrelay/internal/fault"
)

// A cursor is base64url of: one version byte, the first 8 bytes of a hash over
// the list it continues, in hex, and the position of the last thing that was shown. A
// position is a path, so that a list goes on behind it even if it is gone. The
// hash keeps a cursor from continuing another list by mistake; it protects
// nothing, for a position is only where to go on.
const (
	cursorVersion = 1
	cursorTag     = 8
	// MaxCursor is the longest cursor in characters.
	MaxCursor = 8192
)

// scope names a list: the tool and the arguments that select what it shows.
type scope []string

func (s scope) head() string {
	return string(rune(cursorVersion)) + fingerprint(s...)[:2*cursorTag]
}

// position is where a list goes on: behind path, or in a search behind a line of
// the file at path.
type position struct {
	path   string
	line   int64 // the last line that was dealt with; 0 for the whole file
	offset int64 // where the next line began
}

func (s scope) cursor(p position) string {
	key := strings.Join([]string{p.path, strconv.FormatInt(p.line, 36), strconv.FormatInt(p.offset, 36)}, "\x00")
	return base64.RawURLEncoding.EncodeToString([]byte(s.head() + key))
}

// position returns what was given to cursor; nil for the start of the list.
func (s scope) position(cursor *string) (*position, error) {
	if cursor == nil {
		return nil, nil
	}
	foreign := fault.InvalidCursor.New("cursor does not belong to this list.")
	if len(*cursor) > MaxCursor {
		return nil, foreign
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(*cursor)
	if err != nil {
		return nil, foreign
	}
	key, ok := strings.CutPrefix(string(raw), s.head())
	parts := strings.Split(key, "\x00")
	if !ok || len(parts) != 3 || parts[0] == "" {
		return nil, foreign
	}
	line, err1 := strconv.ParseInt(parts[1], 36, 64)
	offset, err2 := strconv.ParseInt(parts[2], 36, 64)
	if err1 != nil || err2 != nil || line < 0 || offset < 0 {
		return nil, foreign
	}
	return &position{parts[0], line, offset}, nil
}
