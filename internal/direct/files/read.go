package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

// ReadDirectFile answers one page of a file of any size: whole lines from a line
// or a byte, or the last lines. A line that is longer than a page is cut between
// characters, and NextByteOffset goes on within it.
//
// Refusals: invalid_arguments, file_too_large (a line beyond 4 GiB, a hash
// beyond 16 GiB), and those of package direct.
func (s *Service) ReadDirectFile(ctx context.Context, in ReadDirectFileIn) (ReadDirectFileOut, error) {
	limit, err := checkRead(in)
	if err != nil {
		return ReadDirectFileOut{}, err
	}
	t, err := s.host.Open(in.ProjectID, direct.Read)
	if err != nil {
		return ReadDirectFileOut{}, err
	}
	defer t.Close()
	out, err := readFile(ctx, t, in, limit)
	if err != nil {
		return ReadDirectFileOut{}, t.Fault(err, in.Path)
	}
	return out, nil
}

func checkRead(in ReadDirectFileIn) (limit int, err error) {
	starts := 0
	for _, given := range []bool{in.Offset != nil, in.ByteOffset != nil, in.Tail} {
		if given {
			starts++
		}
	}
	switch {
	case starts > 1:
		return 0, direct.Invalid("offset", "byteOffset and tail exclude each other: give one of them")
	case in.Offset != nil && *in.Offset < 0:
		return 0, direct.Invalid("offset", "must not be negative; tail reads the end of a file")
	case in.ByteOffset != nil && *in.ByteOffset < 0:
		return 0, direct.Invalid("byteOffset", "must not be negative; tail reads the end of a file")
	}
	return checkLimit(in.Limit, DefaultRead, MaxRead)
}

func checkLimit(limit *int, standard, most int) (int, error) {
	switch {
	case limit == nil:
		return standard, nil
	case *limit < 1 || *limit > most:
		return 0, direct.Invalid("limit", fmt.Sprintf("must be 1 to %d", most))
	}
	return *limit, nil
}

// source is the file that a read looks at: a copy when it is small, so that all
// parts of the answer are of one moment.
type source struct {
	io.ReaderAt
	ctx   context.Context
	size  int64
	whole bool // its facts are part of the answer
}

func readFile(ctx context.Context, t *direct.Tree, in ReadDirectFileIn, limit int) (ReadDirectFileOut, error) {
	p, err := t.Find(in.Path, direct.ToRead)
	if err != nil {
		return ReadDirectFileOut{}, err
	}
	defer p.Close()
	f, info, err := openFile(p, os.O_RDONLY)
	if err != nil {
		return ReadDirectFileOut{}, err
	}
	defer f.Close()
	src := source{f, ctx, info.Size(), in.Hash}
	if info.Size() <= MaxWhole {
		data, err := readUpTo(ctx, f, info.Size(), MaxWhole)
		if err != nil {
			return ReadDirectFileOut{}, err
		}
		if len(data) <= MaxWhole { // else it has grown just now
			src = source{bytes.NewReader(data), ctx, int64(len(data)), true}
		}
	}
	out := ReadDirectFileOut{Path: p.Path, Size: src.size, HostID: t.HostID()}
	pg, err := src.page(in, limit)
	if err != nil {
		return ReadDirectFileOut{}, err
	}
	if err := src.describe(&out, &pg); err != nil {
		return ReadDirectFileOut{}, err
	}
	pg.answer(&out, src.size)
	return out, nil
}

// page is a part of a file.
type page struct {
	from int64
	line int64 // in which from lies; -1 when that is not known
	data []byte
	text bool
}

func (src source) page(in ReadDirectFileIn, limit int) (page, error) {
	pg := page{line: -1}
	var err error
	switch {
	case in.Tail:
		return src.tail(limit)
	case in.ByteOffset != nil:
		pg.from, err = src.align(min(*in.ByteOffset, src.size))
	case in.Offset != nil:
		pg.line = *in.Offset
		pg.from, err = src.seekLine(*in.Offset)
	default:
		pg.line = 0
	}
	if err != nil {
		return page{}, err
	}
	data, err := src.read(pg.from, maxPage+utf8.UTFMax)
	if err != nil {
		return page{}, err
	}
	pg.data, pg.text = cutPage(firstLines(data, limit), pg.from+int64(len(data)) == src.size)
	return pg, nil
}

// read reads up to n bytes.
func (src source) read(at int64, n int) ([]byte, error) {
	data := make([]byte, max(0, min(int64(n), src.size-at)))
	got, err := src.ReadAt(data, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:got], err
}

// seekLine returns where a line begins; the end of the file when it has fewer.
func (src source) seekLine(line int64) (int64, error) {
	buf := make([]byte, 256<<10)
	for at := int64(0); at < src.size && line > 0; {
		if err := src.ctx.Err(); err != nil {
			return 0, err
		}
		if at >= MaxScan {
			return 0, FileTooLarge.New("The line lies beyond the first 4 GiB of the file.")
		}
		n, err := src.ReadAt(buf, at)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				return at, nil // it has shrunk
			}
			return 0, err
		}
		found := int64(bytes.Count(buf[:n], lf))
		if found < line {
			line -= found
			at += int64(n)
			continue
		}
		for i := 0; ; i++ {
			i += bytes.IndexByte(buf[i:n], '\n')
			if line--; line == 0 {
				return at + int64(i) + 1, nil
			}
		}
	}
	if line > 0 {
		return src.size, nil
	}
	return 0, nil
}

// align moves an offset within a character to where that begins.
func (src source) align(at int64) (int64, error) {
	from := max(0, at-utf8.UTFMax+1)
	around, err := src.read(from, 2*utf8.UTFMax)
	if err != nil || int(at-from) >= len(around) {
		return at, err
	}
	i := int(at - from)
	for back := 0; back < utf8.UTFMax && i-back >= 0; back++ {
		if !utf8.RuneStart(around[i-back]) {
			continue
		}
		if r, n := utf8.DecodeRune(around[i-back:]); n > back && (r != utf8.RuneError || n > 1) {
			return at - int64(back), nil
		}
		break
	}
	return at, nil
}

// tail is the last lines, fewer when they do not fit into a page.
func (src source) tail(limit int) (page, error) {
	from := max(0, src.size-maxPage)
	data, err := src.read(from, maxPage)
	if err != nil {
		return page{}, err
	}
	begin := startOfLast(data, limit)
	if begin == 0 && from > 0 { // a part of a line
		for begin < min(len(data), utf8.UTFMax-1) && !utf8.RuneStart(data[begin]) {
			begin++
		}
	}
	for {
		rest := data[begin:]
		fits, text := cutPage(rest, true)
		if len(fits) == len(rest) {
			return page{from: from + int64(begin), line: -1, data: fits, text: text}, nil
		}
		next := begin + bytes.IndexByte(rest, '\n') + 1
		if next == begin || next == len(data) { // one line, longer than a page
			next = begin + len(rest) - len(fits)
			for next < len(data) && !utf8.RuneStart(data[next]) {
				next++
			}
		}
		begin = next
	}
}

// startOfLast is where the last lines of data begin; 0 when it has no more.
func startOfLast(data []byte, lines int) int {
	end := len(bytes.TrimSuffix(data, lf))
	for ; lines > 0; lines-- {
		if end = bytes.LastIndexByte(data[:end], '\n'); end < 0 {
			return 0
		}
	}
	return end + 1
}

// firstLines is the first lines of data.
func firstLines(data []byte, limit int) []byte {
	end := 0
	for range limit {
		if end = lineEnd(data, end); end == len(data) {
			break
		}
	}
	return data[:end]
}

// cutPage cuts data to what one answer may hold, at the end of a line if it can
// and never within a character. last says that the file ends behind data.
func cutPage(data []byte, last bool) (cut []byte, text bool) {
	whole := data
	if !last {
		whole = data[:len(data)-incomplete(data)]
	}
	end, text := 0, utf8.Valid(whole)
	if text {
		end = len(escapedPrefix(whole, maxPage))
	} else if end = len(data); end > maxPage*3/4 {
		end = maxPage * 3 / 4
		end -= incomplete(data[:end])
	}
	if end < len(data) {
		if i := bytes.LastIndexByte(data[:end], '\n'); i >= 0 {
			end = i + 1
		}
	}
	return data[:end], text
}

// escapedPrefix is as much of text as has at most size bytes in JSON.
func escapedPrefix(text []byte, size int) []byte {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t':
			size -= 2
		case r < ' ' || r == '\u2028' || r == '\u2029':
			size -= 6
		default:
			size -= n
		}
		if size < 0 {
			return text[:i]
		}
		i += n
	}
	return text
}

// describe adds what is known of the file as a whole.
func (src source) describe(out *ReadDirectFileOut, pg *page) error {
	head, err := src.read(0, 3)
	if err != nil {
		return err
	}
	out.BOM = bytes.Equal(head, []byte("\uFEFF"))
	if !src.whole {
		return nil
	}
	if src.size > MaxHash {
		return FileTooLarge.New("The file is larger than the 16 GiB that hash reads.")
	}
	h := sha256.New()
	var n eolCount
	var before int64 // lines that end before the page
	var last byte
	buf := make([]byte, 256<<10)
	for at := int64(0); at < src.size; {
		if err := src.ctx.Err(); err != nil {
			return err
		}
		got, err := src.ReadAt(buf[:min(int64(len(buf)), src.size-at)], at)
		b := buf[:got]
		if got == 0 {
			if errors.Is(err, io.EOF) {
				return direct.FileChanged.New("The file became shorter while it was read.")
			}
			return err
		}
		h.Write(b)
		if last == '\r' && b[0] == '\n' {
			n.crlf++
		}
		n.lf += bytes.Count(b, lf)
		n.crlf += bytes.Count(b, crlf)
		if at < pg.from {
			before += int64(bytes.Count(b[:min(int64(got), pg.from-at)], lf))
		}
		last = b[got-1]
		at += int64(got)
	}
	total := int64(n.lf)
	if src.size > 0 && last != '\n' {
		total++
	}
	out.SHA256, out.EOL, out.TotalLines = hex.EncodeToString(h.Sum(nil)), n.kind(), &total
	if pg.line < 0 {
		pg.line = before
	}
	return nil
}

func (pg page) answer(out *ReadDirectFileOut, size int64) {
	out.Content, out.Encoding = string(pg.data), UTF8
	if !pg.text {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(pg.data), Base64
	}
	out.ByteOffset = pg.from
	end := pg.from + int64(len(pg.data))
	lines := bytes.Count(pg.data, lf)
	out.ReturnedLines = lines
	if out.Truncated = end < size; out.Truncated {
		out.NextByteOffset = &end
	} else if len(pg.data) > 0 && !bytes.HasSuffix(pg.data, lf) {
		out.ReturnedLines++
	}
	if pg.line < 0 {
		return
	}
	out.Offset = &pg.line
	if out.Truncated && bytes.HasSuffix(pg.data, lf) {
		next := pg.line + int64(lines)
		out.NextOffset = &next
	}
}
