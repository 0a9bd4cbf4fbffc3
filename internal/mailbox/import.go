package mailbox

// Fingerprint is what is stored with a message to tell a repeat of it from another
// one. It is for those who bring the messages of another gateway.
func Fingerprint(from, to, text, inReplyTo string) []byte {
	return newMessage{from: from, to: to, text: text, inReplyTo: inReplyTo}.fingerprint()
}
