package tool

import (
	"strconv"
	"unicode/utf16"
)

// cutCharacter reports whether valid JSON has half of a surrogate pair in an
// escape: a character that its sender cut in two. Decoding replaces it without a
// word (encoding/json, as RFC 8259 section 8.2 allows), and a text must be stored
// as it was sent or not at all.
func cutCharacter(json []byte) bool {
	for i := 0; i < len(json); i++ {
		if json[i] != '\\' {
			continue
		}
		i++
		if r := escaped(json, i); r >= 0 && utf16.IsSurrogate(r) {
			if utf16.DecodeRune(r, escaped(json, i+6)) == '\uFFFD' {
				return true
			}
			i += 10
		}
	}
	return false
}

// escaped is the code unit of the escape u0000 at i, or -1.
func escaped(json []byte, i int) rune {
	if i+5 > len(json) || json[i] != 'u' || json[i-1] != '\\' {
		return -1
	}
	unit, err := strconv.ParseUint(string(json[i+1:i+5]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(unit)
}
