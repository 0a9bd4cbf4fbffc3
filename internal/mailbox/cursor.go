package mailbox

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// A cursor is base64url of: one version byte, the first 8 bytes of a hash over
// the list it continues, and the key of the last row of the page. The hash keeps
// a cursor from continuing another list by mistake; it protects nothing, for
// each list is confined to its owner anyway.
const (
	cursorVersion = 1
	cursorScope   = 8
	cursorMax     = 4096 // an owner may be named by a long client id
)

// scope names a list: its tool, its owner and the arguments that select rows.
type scope []string

func (s scope) tag() []byte {
	h := sha256.New()
	writeFields(h, s...)
	return h.Sum(nil)[:cursorScope]
}

func (s scope) cursor(key string) string {
	raw := append([]byte{cursorVersion}, s.tag()...)
	return base64.RawURLEncoding.EncodeToString(append(raw, key...))
}

// key returns what was given to cursor; nil is the start of the list, "".
func (s scope) key(cursor *string) (string, error) {
	if cursor == nil {
		return "", nil
	}
	if len(*cursor) <= cursorMax {
		raw, err := base64.RawURLEncoding.Strict().DecodeString(*cursor)
		if err == nil {
			if key, ok := strings.CutPrefix(string(raw), string(append([]byte{cursorVersion}, s.tag()...))); ok && key != "" {
				return key, nil
			}
		}
	}
	return "", InvalidCursor.New("cursor does not belong to this list.")
}

func (s scope) cursorAt(id int64) string {
	return s.cursor(string(binary.AppendUvarint(nil, uint64(id))))
}

// id returns what was given to cursorAt; nil is the start of the list, 0.
func (s scope) id(cursor *string) (int64, error) {
	key, err := s.key(cursor)
	if key == "" || err != nil {
		return 0, err
	}
	id, n := binary.Uvarint([]byte(key))
	if n != len(key) {
		return 0, InvalidCursor.New("cursor is damaged.")
	}
	return int64(id), nil
}
