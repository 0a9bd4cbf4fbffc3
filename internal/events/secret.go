package events

import (
	"encoding/base64"
	"strings"
)

// The length of a signing key in bytes (Standard Webhooks; the OpenAI guide).
const (
	minSecret = 24
	maxSecret = 64
)

const secretPrefix = "whsec_"

// parseSecret returns the signing key of a whsec_ secret: standard base64, with
// or without padding, of 24 to 64 bytes. The library takes less, an empty key
// even.
func parseSecret(secret string) (key []byte, ok bool) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok || strings.ContainsAny(text, "\r\n") { // which the decoder would skip
		return nil, false
	}
	encoding := base64.RawStdEncoding
	if len(text)%4 == 0 {
		encoding = base64.StdEncoding
	}
	key, err := encoding.Strict().DecodeString(text)
	return key, err == nil && len(key) >= minSecret && len(key) <= maxSecret
}
