// Package prompt asks a human at a terminal.
//
// It owns what is on the screen when a call waits for an answer, and the keys that
// answer it. It promises that no character of a caller can draw, hide, reorder or
// imitate: what isn't plainly visible is shown by its name in angle brackets, every
// row begins with our own margin and is shorter than the terminal is wide; that what
// doesn't fit is announced with its length and SHA-256 and must be paged through
// before it can be allowed; that keys typed before the question appeared don't
// answer it; and that the screen says what was decided, whoever decided. It leaves
// the decision itself to package approval.
package prompt

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// names of the control characters that have one people know.
var names = map[rune]string{
	0: "NUL", '\a': "BEL", '\b': "BS", '\t': "TAB", '\n': "LF", '\v': "VT", '\f': "FF", '\r': "CR", 0x1b: "ESC", 0x7f: "DEL", 0x9b: "CSI",
}

// maxMarks is how many combining marks may follow a character.
const maxMarks = 2

// piece is one character as it is shown, or the name of one that isn't.
type piece struct {
	text  string
	width int
	lf    bool // a new row follows
}

// pieces splits a text into what is shown. Every rune of what comes back is printable,
// of known width, and stands where it was written.
func pieces(s string) []piece {
	out := make([]piece, 0, len(s))
	marks := maxMarks // none at the start: there is nothing to combine with
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			out, marks = append(out, name(fmt.Sprintf("x%02X", s[i]), false)), maxMarks
			i++
			continue
		}
		i += n
		switch {
		case r >= ' ' && r <= '~':
			out, marks = append(out, piece{string(r), 1, false}), 0
		case unicode.Is(unicode.Mn, r) && marks < maxMarks && !invisible(r) && !rightToLeft(r):
			out, marks = append(out, piece{string(r), 0, false}), marks+1
		case plain(r):
			out, marks = append(out, piece{string(r), columns(r), false}), 0
		default:
			label, known := names[r]
			if !known {
				label = fmt.Sprintf("U+%04X", r)
			}
			out, marks = append(out, name(label, r == '\n')), maxMarks
		}
	}
	return out
}

func name(label string, lf bool) piece { return piece{"<" + label + ">", len(label) + 2, lf} }

// plain reports whether a character is seen as itself: letters, digits, punctuation
// and symbols of one direction, without those that are drawn as nothing.
func plain(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nd, unicode.Nl, unicode.No, unicode.P, unicode.S) && !invisible(r) && !rightToLeft(r)
}

// invisible are characters of visible categories that are drawn as nothing or as a
// space, or that change those beside them.
func invisible(r rune) bool {
	return unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r == 0x2800 || r == 0x115f || r == 0x1160 || r == 0x3164 || r == 0xffa0 || // blanks: Braille, Hangul fillers
		r == 0x1d159 || r >= 0x1f3fb && r <= 0x1f3ff || // null notehead; skin tones join to what is before them
		r >= 0x1f1e6 && r <= 0x1f1ff || // regional indicators join to flags
		r == 0xfffc || r == 0xfffd // stands for something else
}

// rightToLeft are the scripts that terminals may reorder with what is around them.
func rightToLeft(r rune) bool {
	return r >= 0x0590 && r <= 0x08ff || r >= 0xfb1d && r <= 0xfdff || r >= 0xfe70 && r <= 0xfeff ||
		r >= 0x10800 && r <= 0x10fff || r >= 0x1e800 && r <= 0x1efff
}

// columns is how many columns a terminal gives to a character. Where terminals
// differ it is the larger number, so that a row never comes out too long.
func columns(r rune) int {
	if r <= '~' {
		return 1
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth, width.EastAsianAmbiguous:
		return 2
	}
	if r >= 0x1f000 || unicode.Is(unicode.So, r) {
		return 2
	}
	return 1
}

// line is a text on one row, cut to so many columns; what was cut is said.
func line(s string, most int) string {
	all := pieces(s)
	var b strings.Builder
	used := 0
	for i, p := range all {
		rest := fmt.Sprintf("...<%d more>", len(all)-i)
		if used+p.width > most-len(rest) && total(all[i:]) > most-used {
			return b.String() + rest
		}
		b.WriteString(p.text)
		used += p.width
	}
	return b.String()
}

func total(all []piece) (n int) {
	for _, p := range all {
		n += p.width
	}
	return n
}

// rows is a text in rows of at most so many columns. A line feed is named and begins
// a new row.
func rows(s string, most int) (out []string) {
	var b strings.Builder
	used, open := 0, true
	flush := func() {
		out = append(out, b.String())
		b.Reset()
		used = 0
	}
	for _, p := range pieces(s) {
		if used+p.width > most {
			flush()
		}
		b.WriteString(p.text)
		used += p.width
		if open = !p.lf; p.lf {
			flush()
		}
	}
	if open {
		flush()
	}
	return out
}
