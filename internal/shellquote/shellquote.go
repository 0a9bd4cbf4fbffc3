// Package shellquote writes words so that a POSIX shell reads them back.
//
// It owns the one quoting rule of the product: commands that a hint tells the
// owner to run hold ids and paths that others chose. It promises that the shell
// takes a quoted word as exactly one argument, whatever is in it but NUL. It
// leaves running anything to others.
package shellquote

import (
	"strings"
	"unicode"
)

// Word returns s as one word of a command line, without quotes where none are
// needed.
func Word(s string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+:,@%", r)
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
