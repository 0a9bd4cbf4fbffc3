package gateway

import "io"

const (
	// idLetters are letters and digits that nobody confuses when reading an id
	// aloud: no 0 and o, no 1, i and l.
	idLetters = "23456789abcdefghjkmnpqrstuvwxyz"
	// idLength gives 8.5e11 ids: enough to find one line in a log.
	idLength = 8
)

// newID makes a short id that joins what a client was told to a log line. It is
// no secret.
func newID(rand io.Reader) string {
	var b [idLength]byte
	if _, err := io.ReadFull(rand, b[:]); err != nil {
		return "noid" // an error without a usable id is better than no answer
	}
	for i, c := range b {
		b[i] = idLetters[int(c)%len(idLetters)]
	}
	return string(b[:])
}
