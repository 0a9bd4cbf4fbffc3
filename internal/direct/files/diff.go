package files

import (
	"bytes"
	"fmt"
	"strings"
)

const (
	diffContext  = 3        // lines
	diffMax      = 16 << 10 // bytes, roughly
	diffLines    = 60       // of one side of one change
	diffLineText = 400      // characters
)

// block is a change of whole lines: data[from:to] becomes text.
type block struct {
	from, to int
	text     []byte
}

// diff is the edit as a unified diff without file names. It is bounded: long
// lines, long blocks and what goes beyond are cut, and it says so.
func (c edit) diff() string {
	var b strings.Builder
	blocks := c.blocks()
	line, delta, counted := 1, 0, 0 // the old line at offset counted, and what the new one is ahead
	for len(blocks) > 0 {
		if b.Len() > diffMax {
			fmt.Fprintf(&b, "... and %d more changes\n", len(blocks))
			break
		}
		n := 1
		for n < len(blocks) && bytes.Count(c.data[blocks[n-1].to:blocks[n].from], lf) <= 2*diffContext {
			n++
		}
		h := c.hunk(blocks[:n])
		line += bytes.Count(c.data[counted:h.from], lf)
		counted = h.from
		fmt.Fprintf(&b, "@@ -%s +%s @@\n%s", lineRange(line, h.old), lineRange(line+delta, h.new), h.text)
		delta += h.new - h.old
		blocks = blocks[n:]
	}
	return b.String()
}

func lineRange(from, n int) string {
	if n == 0 {
		from--
	}
	return fmt.Sprintf("%d,%d", from, n)
}

// blocks widens the replaced spans to whole lines, joins those that touch and
// takes off the lines that stay equal.
func (c edit) blocks() []block {
	var out []block
	for n := 0; n < len(c.at); {
		from := lineStart(c.data, c.at[n])
		var text []byte
		done, to := from, from
		for n < len(c.at) && (done == from || c.at[n] <= to) {
			text = append(append(text, c.data[done:c.at[n]]...), c.to...)
			if done = c.at[n] + len(c.from); done >= to { // else the line's end is known
				to = lineEnd(c.data, done)
			}
			n++
		}
		out = append(out, trimEqual(c.data, block{from, to, append(text, c.data[done:to]...)}))
	}
	return out
}

func lineStart(data []byte, at int) int { return bytes.LastIndexByte(data[:at], '\n') + 1 }

func lineEnd(data []byte, at int) int {
	if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(data)
}

func trimEqual(data []byte, b block) block {
	for b.from < b.to && len(b.text) > 0 {
		end, first := lineEnd(data[:b.to], b.from), lineEnd(b.text, 0)
		if !bytes.Equal(data[b.from:end], b.text[:first]) {
			break
		}
		b.from, b.text = end, b.text[first:]
	}
	for b.from < b.to && len(b.text) > 0 {
		start, last := lineStart(data, b.to-1), lineStart(b.text, len(b.text)-1)
		if start < b.from || !bytes.Equal(data[start:b.to], b.text[last:]) {
			break
		}
		b.to, b.text = start, b.text[:last]
	}
	return b
}

// hunk is some blocks with the lines around them.
type hunk struct {
	from     int // offset of its first line
	old, new int // lines
	text     string
}

func (c edit) hunk(blocks []block) hunk {
	h := hunk{from: blocks[0].from}
	for range diffContext {
		if h.from > 0 {
			h.from = lineStart(c.data, h.from-1)
		}
	}
	to := blocks[len(blocks)-1].to
	for range diffContext {
		to = lineEnd(c.data, to)
	}
	var b strings.Builder
	at := h.from
	for _, x := range blocks {
		h.same(&b, c.data[at:x.from])
		h.old += side(&b, '-', c.data[x.from:x.to])
		h.new += side(&b, '+', x.text)
		at = x.to
	}
	h.same(&b, c.data[at:to])
	h.text = b.String()
	return h
}

func (h *hunk) same(b *strings.Builder, data []byte) {
	n := side(b, ' ', data)
	h.old += n
	h.new += n
}

// side writes lines with a sign before each and returns how many there are.
func side(b *strings.Builder, sign byte, data []byte) (lines int) {
	for len(data) > 0 {
		end := lineEnd(data, 0)
		if lines++; lines <= diffLines {
			text, cut := shown(bytes.TrimSuffix(data[:end], lf), diffLineText)
			b.WriteByte(sign)
			b.WriteString(text)
			if cut {
				b.WriteString("…")
			}
			b.WriteByte('\n')
			if data[end-1] != '\n' {
				b.WriteString("\\ No newline at end of file\n")
			}
		}
		data = data[end:]
	}
	if lines > diffLines {
		fmt.Fprintf(b, "... %d more lines with %q\n", lines-diffLines, sign)
	}
	return lines
}
