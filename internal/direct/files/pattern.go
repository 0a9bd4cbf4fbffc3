package files

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

// pattern is what a search looks for within lines.
type pattern struct {
	literal []byte // every match contains it; empty when nothing is known
	folded  bool   // literal is lower-case ASCII and any case counts
	re      *regexp.Regexp
}

// parsePattern compiles query. Without regex and ignoreCase the literal is all
// there is to it; else re decides, on the lines that have the literal.
func parsePattern(query string, regex, ignoreCase bool) (*pattern, error) {
	n := utf8.RuneCountInString(query)
	switch {
	case n < 1 || n > MaxQuery:
		return nil, direct.Invalid("query", "must have 1 to 1024 characters")
	case strings.ContainsAny(query, "\r\n"):
		return nil, direct.Invalid("query", "must not contain line breaks: it is looked for within single lines")
	case !utf8.ValidString(query):
		return nil, direct.Invalid("query", "must be valid UTF-8")
	case !regex && !ignoreCase:
		return &pattern{literal: []byte(query)}, nil
	case !regex:
		query = regexp.QuoteMeta(query)
	}
	if ignoreCase {
		query = "(?i:" + query + ")"
	}
	re, err := regexp.Compile(query)
	if err != nil {
		rule := "must be an RE2 expression"
		if bad := new(syntax.Error); errors.As(err, &bad) {
			rule += ": " + string(bad.Code) // never the expression itself
		}
		return nil, direct.Invalid("query", rule)
	}
	p := &pattern{re: re}
	if tree, err := syntax.Parse(query, syntax.Perl); err == nil {
		p.literal, p.folded = required(tree)
	}
	return p, nil
}

// required finds the longest text that every match of the expression contains.
func required(re *syntax.Regexp) (literal []byte, folded bool) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return []byte(string(re.Rune)), false
		}
		return foldable(re.Rune), true
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if l, f := required(sub); len(l) > len(literal) {
				literal, folded = l, f
			}
		}
	}
	return literal, folded
}

// foldable is the longest part of a literal without regard to case that is
// equal to its matches in ASCII: K and S have equals beyond (U+212A, U+017F).
func foldable(runes []rune) []byte {
	var best []byte
	for from := 0; from < len(runes); from++ {
		to := from
		for to < len(runes) && runes[to] < utf8.RuneSelf && !strings.ContainsRune("kKsS", runes[to]) {
			to++
		}
		if to-from > len(best) {
			best = bytes.ToLower([]byte(string(runes[from:to])))
		}
		from = to
	}
	return best
}

// candidates goes through the lines of a text that may match.
type candidates struct {
	p    *pattern
	text []byte
	low  []byte // text in lower case, when the literal is
}

func (p *pattern) candidates(text, scratch []byte) (candidates, []byte) {
	c := candidates{p: p, text: text, low: text}
	if p.folded && len(p.literal) > 0 {
		scratch = lower(scratch, text)
		c.low = scratch
	}
	return c, scratch
}

func lower(out, text []byte) []byte {
	out = append(out[:0], text...)
	for i, b := range out {
		if b-'A' < 26 {
			out[i] = b + 'a' - 'A'
		}
	}
	return out
}

// next returns the offset of the next line from at, a line's start, that may
// match; -1 when there is none.
func (c candidates) next(at int) int {
	if at >= len(c.text) {
		return -1
	}
	if len(c.p.literal) == 0 {
		return at
	}
	i := bytes.Index(c.low[at:], c.p.literal)
	if i < 0 {
		return -1
	}
	return max(at, bytes.LastIndexByte(c.text[:at+i], '\n')+1)
}

// find returns where the first match in a line lies.
func (p *pattern) find(line []byte) (from, to int, ok bool) {
	if p.re == nil {
		i := bytes.Index(line, p.literal)
		return i, i + len(p.literal), i >= 0
	}
	loc := p.re.FindIndex(line)
	if loc == nil {
		return 0, 0, false
	}
	return loc[0], loc[1], true
}
