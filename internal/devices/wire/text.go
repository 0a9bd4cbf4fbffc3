package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// compact is JSON without escapes for HTML and without a newline.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Canonical is arguments as they travel: one JSON object without white space
// between its parts, names, order and numbers as the caller wrote them. nil and
// null are {}. The bytes are those of args in the frame, so that a hash over them
// is the same on both sides.
func Canonical(args json.RawMessage) (json.RawMessage, error) {
	if trimmed := bytes.TrimSpace(args); len(trimmed) == 0 || string(trimmed) == "null" {
		return json.RawMessage("{}"), nil
	}
	if bytes.TrimSpace(args)[0] != '{' {
		return nil, fmt.Errorf("args must be an object")
	}
	out, err := compact(args)
	if err != nil {
		return nil, fmt.Errorf("args are not JSON")
	}
	return out, nil
}

// HashArgs is [Frame.ArgsSHA256] of canonical arguments.
func HashArgs(canonical json.RawMessage) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

const retryPrefix = "retry_after_ms="

// RetryReason is the reason in the close frame of a relay that stops: how long the
// device shall wait at least before it dials again.
func RetryReason(d time.Duration) string {
	return retryPrefix + strconv.FormatInt(d.Milliseconds(), 10)
}

// maxRetry bounds what a relay can ask a device to wait.
const maxRetry = 5 * time.Minute

// ParseRetry reads [RetryReason]; at most 5 minutes come back.
func ParseRetry(reason string) (time.Duration, bool) {
	digits, found := strings.CutPrefix(reason, retryPrefix)
	ms, err := strconv.ParseUint(digits, 10, 31)
	if !found || err != nil {
		return 0, false
	}
	return min(time.Duration(ms)*time.Millisecond, maxRetry), true
}

// shown is a name of the other side as it may be repeated: short printable ASCII.
func shown(s string) string {
	const most = 80
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' {
			return '?'
		}
		return r
	}, s)
	if cut {
		s += "..."
	}
	return s
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return shown(word)
}
