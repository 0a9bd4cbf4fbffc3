package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

const (
	scanBuffer  = 256 << 10
	scanLine    = 1 << 20   // a line that is longer is looked at in pieces
	scanOverlap = 64 << 10  // of two pieces: a match longer than this may be missed
	binaryHead  = 8 << 10   // a NUL byte in it makes a file binary
	scanBudget  = 2 << 30   // bytes that one call scans
	aroundMatch = 100       // characters of a long line before the match
	contextRead = 128 << 10 // bytes that are looked at for the lines around a match
)

// scanner looks through files, one after the other.
type scanner struct {
	p       *pattern
	max     int // matches of one file
	context int
	buf     []byte
	scratch []byte
}

// scanner takes one that was used before, for its buffers.
func (s *Service) scanner(p *pattern, most, context int) *scanner {
	sc, ok := s.scanners.Get().(*scanner)
	if !ok {
		sc = &scanner{buf: make([]byte, scanBuffer)}
	}
	sc.p, sc.max, sc.context = p, most, context
	return sc
}

// putBack keeps a scanner, unless it has met a long line.
func (s *Service) putBack(sc *scanner) {
	if len(sc.buf) == scanBuffer {
		s.scanners.Put(sc)
	}
}

// hit is a match with where it lies.
type hit struct {
	Match
	from, next int64 // offsets of its line and of the next one
}

// maxMatch is at least the size of every match.
const maxMatch = direct.MaxPath + (1+2*MaxContext)*maxLine*utf8.UTFMax + 100

// size is about how many bytes the match has in an answer.
func (m *Match) size(path string) int {
	n := len(path) + len(m.Text) + 100
	for _, lines := range [][]string{m.Before, m.After} {
		for _, l := range lines {
			n += len(l)
		}
	}
	return n
}

// scanned is what is in one file.
type scanned struct {
	hits   []hit
	bytes  int64
	binary bool
	rest   *position // where to go on, when the budget ended the scan; without path
}

// file scans f, which has size bytes, from a position; limit is how many bytes it
// may read.
func (s *scanner) file(ctx context.Context, f *os.File, size int64, from position, limit int64) (out scanned, err error) {
	p := &piece{s: s, f: f, size: size, line: from.line + 1, base: from.offset, skip: from.line}
	if p.base > 0 && !p.lineStartsAt(p.base) { // the file was changed: count lines anew
		p.base, p.line = 0, 1
	}
	first := true
	for {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		n, last, err := p.fill()
		if err != nil {
			return out, err
		}
		if first {
			if bytes.IndexByte(s.buf[:min(n, binaryHead)], 0) >= 0 {
				return scanned{binary: true}, nil
			}
			first = false
		}
		p.have += n
		out.bytes += int64(n)
		p.advance(&out, last)
		switch {
		case last, len(out.hits) >= s.max, out.bytes >= limit && p.inLine:
			return out, s.addContext(f, out.hits) // no page can begin within a line
		case out.bytes >= limit:
			out.rest = &position{line: p.line - 1, offset: p.base}
			return out, s.addContext(f, out.hits)
		}
	}
}

// piece is the part of a file that is in the scanner's buffer.
type piece struct {
	s    *scanner
	f    *os.File
	size int64 // of the file
	base int64 // offset of the buffer in the file
	line int64 // the line in which the buffer begins, from 1
	have int   // bytes in the buffer
	skip int64 // lines up to this one were shown before

	inLine  bool  // the buffer begins within a line
	matched bool  // which has been found to match
	column  int64 // characters of it before the buffer
	start   int64 // offset of it
}

// fill reads on, up to where the file ended when it was opened. One that claims to
// be empty, as those of /proc do, is read until it ends.
func (p *piece) fill() (n int, last bool, err error) {
	at, buf := p.base+int64(p.have), p.s.buf[p.have:]
	if p.size > 0 {
		buf = buf[:min(int64(len(buf)), max(0, p.size-at))]
	}
	n, err = p.f.ReadAt(buf, at)
	if errors.Is(err, io.EOF) {
		return n, true, nil
	}
	return n, p.size > 0 && at+int64(n) >= p.size, err
}

func (p *piece) lineStartsAt(at int64) bool {
	var b [1]byte
	n, _ := p.f.ReadAt(b[:], at-1)
	return n == 1 && b[0] == '\n'
}

// advance looks at what is in the buffer, as far as its lines are whole, and
// makes room.
func (p *piece) advance(out *scanned, last bool) {
	buf := p.s.buf[:p.have]
	if len(buf) == 0 {
		return
	}
	end := bytes.LastIndexByte(buf, '\n') + 1
	if last {
		end = len(buf)
	}
	if end == 0 {
		p.longLine(out, buf)
		return
	}
	if p.inLine {
		first := lineEnd(buf, 0)
		p.fragment(out, buf[:first], true)
		p.drop(first)
		p.inLine, p.matched, p.column = false, false, 0
		if bytes.HasSuffix(buf[:first], lf) {
			p.line++
		}
		p.advance(out, last)
		return
	}
	p.lines(out, buf[:end])
	p.line += int64(bytes.Count(buf[:end], lf))
	p.drop(end)
}

// drop removes n bytes from the buffer's start.
func (p *piece) drop(n int) {
	copy(p.s.buf, p.s.buf[n:p.have])
	p.base += int64(n)
	p.have -= n
}

// lines looks through whole lines.
func (p *piece) lines(out *scanned, text []byte) {
	var c candidates
	c, p.s.scratch = p.s.p.candidates(text, p.s.scratch)
	line, counted := p.line, 0
	for at := 0; len(out.hits) < p.s.max; {
		if at = c.next(at); at < 0 {
			return
		}
		end := lineEnd(text, at)
		body := bytes.TrimSuffix(bytes.TrimSuffix(text[at:end], lf), []byte("\r"))
		if from, to, ok := p.s.p.find(body); ok {
			line += int64(bytes.Count(text[counted:at], lf))
			counted = at
			if line > p.skip {
				h := hit{Match: matchOf(body, from, to), from: p.base + int64(at), next: p.base + int64(end)}
				h.Line = line
				out.hits = append(out.hits, h)
			}
		}
		at = end
	}
}

// longLine takes in more of a line that does not fit into the buffer, or looks
// at what is there of it.
func (p *piece) longLine(out *scanned, buf []byte) {
	if len(p.s.buf) < scanLine {
		p.s.buf = append(p.s.buf, make([]byte, len(p.s.buf))...)
		return
	}
	if len(buf) < len(p.s.buf) {
		return
	}
	if !p.inLine {
		p.inLine, p.start = true, p.base
	}
	p.fragment(out, buf, false)
	done := len(buf) - scanOverlap
	done -= incomplete(buf[:done])
	p.column += int64(utf8.RuneCount(buf[:done]))
	p.drop(done)
}

// fragment looks at a part of a long line.
func (p *piece) fragment(out *scanned, text []byte, ends bool) {
	if p.matched || p.line <= p.skip || len(out.hits) >= p.s.max {
		return
	}
	from, to, ok := p.s.p.find(bytes.TrimSuffix(bytes.TrimSuffix(text, lf), []byte("\r")))
	if !ok || to == len(text) && !ends { // it may go on in the next piece, which has it too
		return
	}
	p.matched = true
	h := hit{Match: matchOf(text, from, to), from: p.start, next: p.base + int64(len(text))}
	h.Line, h.TextTruncated = p.line, true
	h.Column += p.column
	out.hits = append(out.hits, h)
}

// matchOf shows the part of a line around a match.
func matchOf(line []byte, from, to int) Match {
	m := Match{Column: int64(utf8.RuneCount(line[:from])) + 1}
	start := 0
	if utf8.RuneCount(line[:min(len(line), maxLine*utf8.UTFMax)]) > maxLine {
		start = from
		for range aroundMatch {
			_, n := utf8.DecodeLastRune(line[:start])
			start -= n
		}
	}
	var cut bool
	m.Text, cut = shown(line[start:], maxLine)
	m.TextTruncated = cut || start > 0
	return m
}

// addContext reads the lines around each hit.
func (s *scanner) addContext(f *os.File, hits []hit) error {
	if s.context == 0 {
		return nil
	}
	buf := make([]byte, contextRead)
	for i := range hits {
		h := &hits[i]
		from := max(0, h.from-contextRead)
		n, err := f.ReadAt(buf[:h.from-from], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		h.Before = lastLines(buf[:n], s.context)
		if n, err = f.ReadAt(buf, h.next); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		h.After = nextLines(buf[:n], s.context)
	}
	return nil
}

func contextLine(b []byte) string {
	text, _ := shown(bytes.TrimSuffix(bytes.TrimSuffix(b, lf), []byte("\r")), maxLine)
	return text
}

func lastLines(b []byte, n int) []string {
	var out []string
	for ; n > 0 && len(b) > 0; n-- {
		start := lineStart(b, len(b)-1)
		out = append([]string{contextLine(b[start:])}, out...)
		b = b[:start]
	}
	return out
}

func nextLines(b []byte, n int) []string {
	var out []string
	for ; n > 0 && len(b) > 0; n-- {
		end := lineEnd(b, 0)
		out = append(out, contextLine(b[:end]))
		b = b[end:]
	}
	return out
}
