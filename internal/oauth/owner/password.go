package owner

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/crypto/argon2"
)

// The cost of a new hash: 19 MiB, 2 passes, 1 lane (OWASP's first choice for
// argon2id on a small machine).
const (
	argonMemory = 19 << 10 // KiB
	argonTime   = 2
	argonLanes  = 1
	saltLength  = 16
	keyLength   = 32
)

// The lengths of a password in bytes, without surrounding white space. Together
// with the pauses after wrong tries the shorter limit keeps even a password of
// the owner's own making out of reach.
const (
	MinPassword = 16
	MaxPassword = 1024
)

// alphabet is typed on a phone without changing its keyboard and read without
// doubt: lower-case letters, no l and no o. 28 of them carry 128.4 bits.
const (
	alphabet       = "abcdefghijkmnpqrstuvwxyz"
	groups         = 7
	lettersInGroup = 4
)

// GeneratePassword returns a random password of at least 128 bits, such as
// "abcd-efgh-…" with seven groups of four letters.
func GeneratePassword(rand io.Reader) (string, error) {
	var out strings.Builder
	// The largest multiple of the alphabet's length in a byte; what is above
	// would make some letters more likely.
	limit := byte(256 / len(alphabet) * len(alphabet))
	for n := 0; n < groups*lettersInGroup; {
		var b [1]byte
		if _, err := io.ReadFull(rand, b[:]); err != nil {
			return "", fmt.Errorf("making a password: %w", err)
		}
		if b[0] >= limit {
			continue
		}
		if n > 0 && n%lettersInGroup == 0 {
			out.WriteByte('-')
		}
		out.WriteByte(alphabet[int(b[0])%len(alphabet)])
		n++
	}
	return out.String(), nil
}

// checkLength refuses a password that no file may hold.
func checkLength(pw string) error {
	if n := len(clean(pw)); n < MinPassword || n > MaxPassword {
		return fmt.Errorf("the owner password must have %d to %d bytes, it has %d", MinPassword, MaxPassword, n)
	}
	return nil
}

// clean drops the white space that comes with a pasted password.
func clean(pw string) string { return strings.TrimSpace(pw) }

// HashPassword returns the argon2id hash of pw as a PHC string. It refuses a
// password outside [MinPassword] and [MaxPassword].
func HashPassword(pw string, rand io.Reader) (string, error) {
	if err := checkLength(pw); err != nil {
		return "", err
	}
	h := phc{memory: argonMemory, time: argonTime, lanes: argonLanes, salt: make([]byte, saltLength)}
	if _, err := io.ReadFull(rand, h.salt); err != nil {
		return "", fmt.Errorf("making a salt: %w", err)
	}
	h.key = make([]byte, keyLength)
	h.key = h.derive(pw)
	return h.String(), nil
}

// phc is a parsed argon2id string.
type phc struct {
	memory, time uint32
	lanes        uint8
	salt, key    []byte
}

func (h phc) derive(pw string) []byte {
	return argon2.IDKey([]byte(clean(pw)), h.salt, h.time, h.memory, h.lanes, uint32(len(h.key)))
}

func (h phc) matches(pw string) bool {
	return subtle.ConstantTimeCompare(h.derive(pw), h.key) == 1
}

func (h phc) String() string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.memory, h.time, h.lanes, b64.EncodeToString(h.salt), b64.EncodeToString(h.key))
}

// The most a hash in the file may cost. Every stranger's try costs it too.
const (
	maxArgonMemory = 256 << 10 // KiB
	maxArgonTime   = 10
	maxArgonLanes  = 16
)

// parsePHC reads an argon2id string of any reasonable cost.
func parsePHC(s string) (phc, error) {
	var h phc
	fields := strings.Split(s, "$")
	if len(fields) != 6 || fields[0] != "" || fields[1] != "argon2id" {
		return h, errors.New("it is not an argon2id PHC string ($argon2id$v=19$m=…,t=…,p=…$salt$hash)")
	}
	var err1, err2 error
	h.salt, err1 = base64.RawStdEncoding.Strict().DecodeString(fields[4])
	h.key, err2 = base64.RawStdEncoding.Strict().DecodeString(fields[5])
	if err1 != nil || err2 != nil || len(h.salt) < 8 || len(h.salt) > 64 || len(h.key) < 16 || len(h.key) > 64 {
		return h, errors.New("its salt or hash is not base64 of a usual length")
	}
	if _, err := fmt.Sscanf(fields[3], "m=%d,t=%d,p=%d", &h.memory, &h.time, &h.lanes); err != nil {
		return h, errors.New("its cost cannot be read")
	}
	if h.time < 1 || h.time > maxArgonTime || h.lanes < 1 || h.lanes > maxArgonLanes || h.memory < 8*uint32(h.lanes) || h.memory > maxArgonMemory {
		return h, errors.New("its cost is out of bounds")
	}
	if h.String() != s { // also another version, or spelling that would be lost
		return h, errors.New("it is not written in the standard form")
	}
	return h, nil
}

// plain is a password kept in the clear, the form of older owner files.
type plain string

func (p plain) matches(pw string) bool {
	want, got := sha256.Sum256([]byte(clean(string(p)))), sha256.Sum256([]byte(clean(pw)))
	return bytes.Equal(want[:], got[:]) // of hashes, so time tells nothing
}
