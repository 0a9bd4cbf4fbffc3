package files

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A miss is explained by looking for oldText with everything that is easily
// overlooked left out of both: all white space, invisible characters, case, and
// the kinds of quotes and dashes. What is found is the nearest span, and the
// classes of difference are those without which it would not match.

// essence appends to out what of b is left for the comparison.
func essence(out, b []byte) []byte {
	for i := 0; i < len(b); {
		c := b[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c <= ' ':
			case 'A' <= c && c <= 'Z':
				out = append(out, c+'a'-'A')
			default:
				out = append(out, c)
			}
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		i += n
		out = appendEssence(out, r, b[i-n:i])
	}
	return out
}

func appendEssence(out []byte, r rune, raw []byte) []byte {
	if r == utf8.RuneError {
		return append(out, raw...)
	}
	if p := plainPunctuation(r); p != r {
		return append(out, byte(p))
	}
	decomposed := norm.NFKD.Properties(raw).Decomposition()
	if decomposed == nil {
		return appendInk(out, r)
	}
	for _, d := range string(decomposed) {
		out = appendInk(out, d)
	}
	return out
}

// appendInk appends a character that does not decompose, if it is seen.
func appendInk(out []byte, r rune) []byte {
	if unicode.IsSpace(r) || unicode.Is(unicode.Mn, r) || invisible(r) {
		return out
	}
	return utf8.AppendRune(out, unicode.ToLower(plainPunctuation(r)))
}

func invisible(r rune) bool {
	return unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

// plainPunctuation maps typographic quotes and dashes to those of a keyboard.
func plainPunctuation(r rune) rune {
	switch r {
	case '\u2018', '\u2019', '\u201A', '\u201B', '\u2032', '\u00B4', '`', '\uFF07':
		return '\''
	case '\u201C', '\u201D', '\u201E', '\u201F', '\u2033', '\u00AB', '\u00BB', '\uFF02':
		return '"'
	case '\u2010', '\u2011', '\u2012', '\u2013', '\u2014', '\u2015', '\u2212', '\uFE63', '\uFF0D':
		return '-'
	}
	return r
}

// span is a part of a file.
type span struct{ from, to int }

// spanOf finds the bytes of data whose essence lies at [from, to) in the
// essence of data.
func spanOf(data []byte, from, to int) span {
	// The essence is made anew, in steps, until the wanted part is reached.
	const step = 4096
	var s span
	var buf []byte
	seek := func(at, done, want int) (int, int) { // the offset behind which want bytes of essence have been made
		for {
			end := min(at+step, len(data))
			for end < len(data) && !utf8.RuneStart(data[end]) {
				end++
			}
			buf = essence(buf[:0], data[at:end])
			if done+len(buf) > want || end == len(data) {
				break
			}
			at, done = end, done+len(buf)
		}
		return at, done
	}
	at, done := seek(0, 0, from)
	for at < len(data) && done <= from {
		_, n := utf8.DecodeRune(data[at:])
		buf = essence(buf[:0], data[at:at+n])
		if done+len(buf) > from {
			break
		}
		at, done = at+n, done+len(buf)
	}
	s.from = at
	at, done = seek(at, done, to)
	for at < len(data) && done < to {
		_, n := utf8.DecodeRune(data[at:])
		buf = essence(buf[:0], data[at:at+n])
		at, done = at+n, done+len(buf)
	}
	s.to = at
	return s
}

// notFound is the refusal of an edit whose oldText is not in the file.
func notFound(data []byte, old string, explain bool) error {
	if !explain {
		return notFoundUnseen()
	}
	all := essence(make([]byte, 0, len(data)), data)
	if s, ok := findAlike(all, data, old); ok {
		return TextNotFound.New(fmt.Sprintf("oldText is not in the file. Nearest is line %d, which differs only in: %s. The file has there: %s",
			lineOf(data, s.from), strings.Join(differences(data, s, old), ", "), quoted(data[s.from:s.to])))
	}
	if s, ok := findClosest(all, data, old); ok {
		return TextNotFound.New(fmt.Sprintf("oldText is not in the file. Nearest is line %d, which differs in its words. The file has there: %s",
			lineOf(data, s.from), quoted(data[s.from:s.to])))
	}
	return TextNotFound.New("oldText is not in the file, nor is anything like it.")
}

func lineOf(data []byte, at int) int { return bytes.Count(data[:at], lf) + 1 }

// quoted shows a span with its white space and invisible characters escaped.
func quoted(b []byte) string {
	text, cut := shown(b, maxLine)
	q := strconv.Quote(text)
	if cut {
		q += " and more"
	}
	return q
}

// findAlike finds the first span of data that has the essence of old. all is
// the essence of data.
func findAlike(all, data []byte, old string) (span, bool) {
	want := essence(nil, []byte(old))
	if len(want) == 0 {
		return span{}, false
	}
	i := bytes.Index(all, want)
	if i < 0 {
		return span{}, false
	}
	return spanOf(data, i, i+len(want)), true
}

// differences names the classes of difference between old and a span of data
// with the same essence.
func differences(data []byte, s span, old string) []string {
	var found []string
	note := func(class string) {
		if class != "" && !slices.Contains(found, class) {
			found = append(found, class)
		}
	}
	there, given := takeApart(string(data[s.from:s.to])), takeApart(old)
	note(startDiffers(string(data[:s.from]), given.gaps[0]))
	for _, at := range places(there.gaps, given.gaps) {
		if at > 0 && at < there.length {
			note(gapDiffers(there.gaps[at], given.gaps[at]))
		}
	}
	note(endDiffers(string(data[s.to:]), given.gaps[given.length]))
	for i, c := range inkClasses {
		a, b := there.ink, given.ink
		for j, other := range inkClasses {
			if j != i {
				a, b = other.drop(a), other.drop(b)
			}
		}
		if a != b {
			note(c.name)
		}
	}
	if len(found) == 0 {
		found = append(found, "Unicode form")
	}
	return found
}

// parts is a text as what is seen (ink) and what lies between (gaps). Texts
// with the same essence have gaps at the same places: each is named by how much
// essence stands before it.
type parts struct {
	ink    string
	gaps   map[int]string
	length int // of the essence
}

func takeApart(text string) parts {
	p := parts{gaps: map[int]string{}}
	var ink strings.Builder
	for i, r := range text {
		raw := text[i : i+max(1, runeLength(text[i:]))]
		e := len(essence(nil, []byte(raw)))
		if e == 0 && (unicode.IsSpace(r) || invisible(r) || r < ' ') {
			p.gaps[p.length] += raw
			continue
		}
		ink.WriteString(raw)
		p.length += e
	}
	p.ink = ink.String()
	return p
}

func runeLength(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// places are where either of two texts has a gap, in order.
func places(a, b map[int]string) []int {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// inkClasses are the ways in which texts differ that are seen, or nearly.
var inkClasses = []struct {
	name string
	drop func(string) string // makes texts equal that differ in this way only
}{
	{"quotes or dashes", func(s string) string { return strings.Map(plainPunctuation, s) }},
	{"case", strings.ToLower},
	{"Unicode form", norm.NFKC.String},
}

// gapDiffers classifies two gaps within a text.
func gapDiffers(a, b string) string {
	if a == b {
		return ""
	}
	for _, c := range gapClasses {
		if a, b = c.drop(a), c.drop(b); a == b {
			return c.name
		}
	}
	linesA, linesB := strings.Split(a, "\n"), strings.Split(b, "\n")
	switch {
	case len(linesA) != len(linesB):
		return "line breaks"
	case len(linesA) > 1 && linesA[len(linesA)-1] == linesB[len(linesB)-1]:
		return "trailing space"
	case strings.Contains(a, "\t") || strings.Contains(b, "\t"):
		return "tabs"
	case len(linesA) > 1:
		return "indentation"
	}
	return "spaces"
}

// gapClasses are applied one after the other until two gaps are equal.
var gapClasses = []struct {
	name string
	drop func(string) string
}{
	{"line ending", func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }},
	{"byte order mark", func(s string) string { return strings.ReplaceAll(s, "\uFEFF", "") }},
	{"invisible characters", func(s string) string {
		return strings.Map(func(r rune) rune {
			if invisible(r) || r < ' ' && !unicode.IsSpace(r) {
				return -1
			}
			return r
		}, s)
	}},
	{"NBSP", func(s string) string {
		return strings.Map(func(r rune) rune {
			if r > unicode.MaxASCII && unicode.IsSpace(r) {
				return ' '
			}
			return r
		}, s)
	}},
}

// startDiffers compares what oldText begins with to what stands before the span.
func startDiffers(before, head string) string {
	if strings.HasSuffix(before, head) {
		return ""
	}
	space := before[len(strings.TrimRightFunc(before, isGap)):]
	if !strings.Contains(head, "\n") {
		space = space[strings.LastIndexByte(space, '\n')+1:]
	}
	return gapDiffers("\n"+space, "\n"+head)
}

// endDiffers compares what oldText ends with to what stands behind the span.
func endDiffers(after, tail string) string {
	if strings.HasPrefix(after, tail) {
		return ""
	}
	rest := strings.TrimLeftFunc(after, isGap)
	space := after[:len(after)-len(rest)]
	n := strings.Count(tail, "\n")
	if rest == "" && n > strings.Count(space, "\n") {
		return "final newline"
	}
	if parts := strings.SplitAfter(space, "\n"); len(parts) > n {
		space = strings.Join(parts[:n], "")
	}
	if n == 0 {
		return "trailing space"
	}
	return gapDiffers(space, tail)
}

func isGap(r rune) bool { return unicode.IsSpace(r) || invisible(r) }

const (
	anchors     = 8 // lines of oldText that are looked for
	anchorBytes = 8 // of their essence, at least
)

// findClosest finds where oldText was probably meant to be: around one of its
// longest lines, or else at the line that shares most with its longest one.
func findClosest(all, data []byte, old string) (span, bool) {
	type anchor struct {
		line int
		text []byte
	}
	var lines []anchor
	for i, l := range strings.Split(old, "\n") {
		if e := essence(nil, []byte(l)); len(e) >= anchorBytes {
			lines = append(lines, anchor{i, e})
		}
	}
	slices.SortStableFunc(lines, func(a, b anchor) int { return len(b.text) - len(a.text) })
	height := strings.Count(strings.TrimSuffix(old, "\n"), "\n") + 1
	for _, a := range lines[:min(len(lines), anchors)] {
		if i := bytes.Index(all, a.text); i >= 0 {
			return around(data, spanOf(data, i, i+len(a.text)).from, a.line, height), true
		}
	}
	if len(lines) == 0 {
		return span{}, false
	}
	at, ok := mostShared(data, lines[0].text)
	if !ok {
		return span{}, false
	}
	return around(data, at, lines[0].line, height), true
}

// around is height lines of data, the given one of which holds the offset at.
func around(data []byte, at, line, height int) span {
	from := lineStart(data, at)
	for ; line > 0 && from > 0; line-- {
		from = lineStart(data, from-1)
	}
	to := from
	for ; height > 0 && to < len(data); height-- {
		to = lineEnd(data, to)
	}
	return span{from, len(bytes.TrimRight(data[:to], "\r\n"))}
}

// mostShared finds the line that has most groups of three bytes in common with
// text, at least half of its own and of the text's taken together.
func mostShared(data, text []byte) (at int, ok bool) {
	const bits = 15
	slot := func(b []byte) uint32 {
		return (uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])) * 2654435761 >> (32 - bits)
	}
	var wanted [1 << bits]bool
	for i := range len(text) - 2 {
		wanted[slot(text[i:])] = true
	}
	var best float64
	var line []byte
	for from := 0; from < len(data); {
		end := lineEnd(data, from)
		if n := end - from; n < 4*len(text)+64 {
			line = essence(line[:0], data[from:end])
			shared := 0
			for i := range max(0, len(line)-2) {
				if wanted[slot(line[i:])] {
					shared++
				}
			}
			if score := 2 * float64(shared) / float64(len(line)+len(text)-4); len(line) > 2 && score > best {
				best, at = score, from
			}
		}
		from = end
	}
	return at, best >= 0.5
}
