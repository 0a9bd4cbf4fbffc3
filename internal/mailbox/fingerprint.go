package mailbox

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
)

// writeFields writes each field after its length, so that no two different
// lists of fields are the same bytes.
func writeFields(w io.Writer, fields ...string) {
	for _, f := range fields {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(f)))
		w.Write(n[:])
		io.WriteString(w, f)
	}
}

// fingerprint is stored with a messageId and tells a repeat from another
// message. It is taken over checked arguments: UUIDs in lower case, an absent
// inReplyTo as "". The owner is left out, so that it survives a change of owner.
func (m newMessage) fingerprint() []byte {
	h := sha256.New()
	writeFields(h, "send_peer_message", m.from, m.to, m.text, m.inReplyTo)
	return h.Sum(nil)
}
