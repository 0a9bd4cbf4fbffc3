package output

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	escape = 0x1b
	bell   = 0x07
	// heldMax is the longest escape sequence that is kept in one piece. Longer
	// ones are no sequences of a sane program.
	heldMax = 4 << 10
)

// Splitter holds the end of one source's output back while it may be the
// beginning of a character or of an escape sequence, so that none is ever split
// between two frames. The zero value is ready.
type Splitter struct{ held []byte }

// Next adds what was read and returns what is complete, which may be a part
// of p.
func (s *Splitter) Next(p []byte) []byte {
	if len(s.held) > 0 {
		p = append(s.held, p...)
	}
	n := len(p) - heldBack(p)
	s.held = bytes.Clone(p[n:])
	return p[:n]
}

// Rest returns what was held back.
func (s *Splitter) Rest() []byte {
	out := s.held
	s.held = nil
	return out
}

// heldBack is how many bytes at the end of p may be the beginning of something.
func heldBack(p []byte) int {
	open := openSequence(p)
	if open >= heldMax {
		open = 0
	}
	return max(open, incompleteRune(p))
}

// incompleteRune is how many bytes at the end of p begin a character that does
// not end there.
func incompleteRune(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if b := p[len(p)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// openSequence is how many of the last heldMax bytes of p are an escape
// sequence that does not end there.
func openSequence(p []byte) int {
	p = p[max(0, len(p)-heldMax):]
	for {
		i := bytes.IndexByte(p, escape)
		if i < 0 {
			return 0
		}
		n, complete := sequence(p[i:])
		if !complete {
			return len(p) - i
		}
		p = p[i+n:]
	}
}

// sequence measures the escape sequence (ECMA-48) at the start of p, which
// begins with ESC.
func sequence(p []byte) (n int, complete bool) {
	if len(p) < 2 {
		return len(p), false
	}
	switch c := p[1]; {
	case c == '[':
		return control(p)
	case isString(p):
		return controlString(p)
	case c >= 0x20 && c <= 0x2f: // ESC, intermediates, final
		for n = 2; n < len(p); n++ {
			switch {
			case p[n] >= 0x30 && p[n] <= 0x7e:
				return n + 1, true
			case p[n] < 0x20 || p[n] > 0x2f:
				return n, true // broken off: what follows is text
			}
		}
		return n, false
	case c >= 0x30 && c <= 0x7e:
		return 2, true
	}
	return 1, true // ESC alone
}

func control(p []byte) (n int, complete bool) {
	for n = 2; n < len(p); n++ {
		switch c := p[n]; {
		case c >= 0x40 && c <= 0x7e:
			return n + 1, true
		case c < 0x20 || c > 0x3f:
			return n, true // broken off: what follows is text
		}
	}
	return n, false
}

// stringStart is the length of what begins a control string.
const stringStart = 2

// isString reports whether the sequence at the start of p is a control string
// (OSC, DCS, SOS, PM, APC).
func isString(p []byte) bool {
	return len(p) >= stringStart && bytes.IndexByte([]byte("]PX^_"), p[1]) >= 0
}

func controlString(p []byte) (n int, complete bool) {
	for n = 2; n < len(p); n++ {
		switch {
		case p[n] == bell:
			return n + 1, true
		case p[n] == escape && n+1 < len(p) && p[n+1] == '\\':
			return n + 2, true
		case p[n] == escape && n+1 < len(p):
			return stringStart, true // it never ends, so the rest may be text
		}
	}
	return n, false
}

// Text is output as readers get it: without escape sequences (colours, cursor
// moves, titles, links), each byte that is no UTF-8 as \xNN, everything else as
// it was printed, carriage returns too.
func Text(p []byte) string {
	if utf8.Valid(p) && bytes.IndexByte(p, escape) < 0 {
		return string(p)
	}
	var b strings.Builder
	for len(p) > 0 {
		if p[0] == escape {
			n, complete := sequence(p)
			if !complete && isString(p) {
				n = stringStart
			}
			p = p[n:]
			continue
		}
		r, n := utf8.DecodeRune(p)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, p[0])
		} else {
			b.Write(p[:n])
		}
		p = p[n:]
	}
	return b.String()
}
