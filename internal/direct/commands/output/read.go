package output

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// Event is a piece of output of one source.
type Event struct {
	// Seq is the position in all output, in bytes, of the event's end. It grows
	// from event to event.
	Seq    int64  `json:"seq"`
	Source string `json:"source"` // stdout or stderr
	Text   string `json:"text"`
}

// Page is a part of a log.
type Page struct {
	Events []Event
	// Next continues after this page.
	Next int64
	// Lost is how many bytes between the cursor and Next are not in the log.
	Lost int64
	// More says that there is more in the log after Next.
	More bool
}

// Limits of a page.
const (
	// MaxEvents is the most events in a page.
	MaxEvents = 1000
	// eventBytes is the most text in an event that is made of several frames.
	eventBytes = frameBytes
	// pageBytes is the most text in a page, counted as JSON.
	pageBytes = 60 << 10
	// attempts is how often a page is read anew because its file was removed
	// meanwhile.
	attempts = 8
)

// Read answers the output after a cursor, which is a Seq or the Next of a page;
// 0 is the beginning. limit is the most events, at most MaxEvents. ended is the
// position after the last byte when the command has ended, else 0: then what is
// missing at the end is counted too. Neighbouring pieces of one source are
// joined.
func Read(dir string, cursor int64, limit int, ended int64) (Page, error) {
	for attempt := 1; ; attempt++ {
		r := reader{limit: min(limit, MaxEvents), page: Page{Events: []Event{}, Next: cursor}}
		err := r.read(dir)
		if errors.Is(err, fs.ErrNotExist) && attempt < attempts {
			continue
		}
		if err != nil {
			return Page{}, fmt.Errorf("reading the output of a command: %w", err)
		}
		if p := &r.page; !p.More && p.Next < ended {
			p.Lost += ended - p.Next
			p.Next = ended
		}
		return r.page, nil
	}
}

// reader collects one page.
type reader struct {
	limit int
	page  Page
	bytes int
	last  int64 // position after the last frame of the last event
}

func (r *reader) read(dir string) error {
	all, err := files(dir)
	if err != nil || len(all) == 0 {
		return err
	}
	first := 0
	for i, f := range all {
		if f.start <= r.page.Next {
			first = i
		}
	}
	for _, f := range all[first:] {
		if err := scan(filepath.Join(dir, f.name), r.frame); err != nil || r.page.More {
			return err
		}
	}
	return nil
}

// scan calls f with the frames of a file until it answers false. The bytes are
// valid during the call only.
func scan(name string, f frameFunc) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 64<<10)
	header, data := make([]byte, frameHeader), make([]byte, 1<<16)
	for {
		if _, err := io.ReadFull(in, header); err != nil {
			return torn(err)
		}
		p := data[:binary.BigEndian.Uint16(header[1:])]
		if _, err := io.ReadFull(in, p); err != nil {
			return torn(err)
		}
		if !f(Source(header[0]), int64(binary.BigEndian.Uint64(header[3:])), p) {
			return nil
		}
	}
}

// torn is nil for the end of a file, be it in the middle of a frame.
func torn(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

type frameFunc func(source Source, start int64, p []byte) (more bool)

func (r *reader) frame(source Source, start int64, p []byte) bool {
	end := start + int64(len(p))
	at := r.page.Next
	if end <= at {
		return true
	}
	if start < at { // the cursor points into the frame
		p, start = p[at-start:], at
	}
	text := Text(p)
	if text != "" && !r.add(source, start, end, text) {
		r.page.More = true
		return false
	}
	r.page.Lost += start - at
	r.page.Next = end
	return true
}

// add puts a piece on the page and reports whether there was room.
func (r *reader) add(source Source, start, end int64, text string) bool {
	size := jsonBytes(text)
	if n := len(r.page.Events); n > 0 && r.bytes+size > pageBytes {
		return false
	}
	if n := len(r.page.Events); n > 0 {
		e := &r.page.Events[n-1]
		if e.Source == source.String() && r.last == start && len(e.Text)+len(text) <= eventBytes {
			e.Text += text
			e.Seq, r.last = end, end
			r.bytes += size
			return true
		}
	}
	if len(r.page.Events) == r.limit {
		return false
	}
	r.page.Events = append(r.page.Events, Event{end, source.String(), text})
	r.bytes += size
	r.last = end
	return true
}

// jsonBytes is about how long s is as a JSON string.
func jsonBytes(s string) int {
	n := 0
	for _, c := range s {
		switch {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			n += 2
		case c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029:
			n += 6
		default:
			n += utf8.RuneLen(c)
		}
	}
	return n
}

// End is the position after the last byte in the log in dir; 0 when there is none.
func End(dir string) int64 {
	all, _ := files(dir)
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	end := last.start
	_ = scan(filepath.Join(dir, last.name), func(_ Source, start int64, p []byte) bool {
		end = start + int64(len(p))
		return true
	})
	return end
}
