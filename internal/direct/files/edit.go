package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentrelay/internal/direct"
)

// EditDirectFile replaces oldText by newText in a file that has ExpectedSHA256.
// The match is exact, byte for byte, but for line ends: an oldText that is in
// the file with the other kind of line ends is taken to mean that, newText then
// has them too, and in a file with CRLF alone so has the newText for an oldText
// within a line. Occurrences that overlap count, and several are refused without
// ReplaceAll, which replaces from the start of the file those (at most a million) that don't
// overlap. A repeat within a week finds its result in place and answers it, with
// Duplicate.
//
// Refusals: invalid_arguments, hash_conflict, text_not_found, ambiguous_edit,
// read_only_file, privileged_file, file_too_large, and those of package direct.
func (s *Service) EditDirectFile(ctx context.Context, in EditDirectFileIn) (EditDirectFileOut, error) {
	expected, err := checkEdit(in)
	if err != nil {
		return EditDirectFileOut{}, err
	}
	t, err := s.host.Open(in.ProjectID, direct.Write)
	if err != nil {
		return EditDirectFileOut{}, err
	}
	defer t.Close()
	var out EditDirectFileOut
	err = s.locked(ctx, t, in.Path, direct.ToWrite, func(p *direct.Place) error {
		id := fingerprint(t.Dir(), p.Path, expected, in.OldText, in.NewText, strconv.FormatBool(in.ReplaceAll))
		r, data, err := s.load(ctx, t, p)
		if err != nil {
			return err
		}
		defer r.close()
		if r.sha != expected {
			if out, err = s.repeated(id, r.sha); err != nil {
				return err
			}
			out.Path, out.HostID = p.Path, t.HostID()
			if !t.Read {
				out.Diff = "" // it was allowed when the first call made it
			}
			return nil
		}
		if err := r.writable(); err != nil {
			return err
		}
		c, err := plan(data, in, t.Read)
		if err != nil {
			return err
		}
		edited := c.apply()
		out = EditDirectFileOut{
			Path: p.Path, SHA256: hashBytes(edited), Size: int64(len(edited)),
			Replacements: len(c.at), HostID: t.HostID(),
		}
		if t.Read {
			out.Diff = c.diff()
		}
		if err := s.results.keep(id, out); err != nil {
			return err
		}
		return r.put(ctx, edited, r.info.Mode().Perm())
	})
	if err != nil {
		return EditDirectFileOut{}, t.Fault(err, in.Path)
	}
	return out, nil
}

// Unseen takes the text of the file out of what [Service.EditDirectFile] returned,
// for a client that may not read files.
func Unseen(out EditDirectFileOut, err error) (EditDirectFileOut, error) {
	out.Diff = ""
	if errors.Is(err, TextNotFound) {
		err = notFoundUnseen()
	}
	return out, err
}

func notFoundUnseen() error {
	return TextNotFound.New("oldText is not in the file, and reading is not allowed, so that no more can be said.")
}

func checkEdit(in EditDirectFileIn) (expected string, err error) {
	if err := checkText("oldText", in.OldText); err != nil {
		return "", err
	}
	if err := checkText("newText", in.NewText); err != nil {
		return "", err
	}
	switch {
	case in.OldText == "":
		return "", direct.Invalid("oldText", "must not be empty; write_direct_file replaces a whole file")
	case in.OldText == in.NewText:
		return "", direct.Invalid("newText", "must differ from oldText")
	}
	return checkHash("expectedSha256", in.ExpectedSHA256)
}

// load opens the file at p and reads all of it.
func (s *Service) load(ctx context.Context, t *direct.Tree, p *direct.Place) (*replacement, []byte, error) {
	f, info, err := openFile(p, os.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	var data []byte
	if info.Size() <= MaxEdit {
		data, err = readUpTo(ctx, f, info.Size(), MaxEdit)
	}
	if info.Size() > MaxEdit || len(data) > MaxEdit {
		err = FileTooLarge.New("The file is larger than the 64 MiB that can be edited.")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return &replacement{s: s, t: t, p: p, old: f, info: info, sha: hashBytes(data)}, data, nil
}

// readUpTo reads a file of about size bytes, or its first limit+1 bytes when it
// has become longer.
func readUpTo(ctx context.Context, f io.ReaderAt, size, limit int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	_, err := b.ReadFrom(&ctxReader{ctx, io.NewSectionReader(f, 0, limit+1)})
	return b.Bytes(), err
}

// repeated is the answer to an edit of a file that has another hash than
// expected: that of the first call, if the file is what that left.
func (s *Service) repeated(id, sha string) (EditDirectFileOut, error) {
	out, ok := s.results.find(id)
	if !ok || out.SHA256 != sha {
		return EditDirectFileOut{}, HashConflict.New("The file's content is not the one with expectedSha256.")
	}
	out.Duplicate = true
	return out, nil
}

// edit is a planned edit: at each position in data, from is replaced by to.
type edit struct {
	data, from, to []byte
	at             []int
}

// maxShown is how many lines a refusal names.
const maxShown = 20

// plan finds what to replace. explain allows the refusal to show the file's
// text.
func plan(data []byte, in EditDirectFileIn, explain bool) (edit, error) {
	c, count := match(data, in)
	switch {
	case count == 0:
		return c, notFound(data, in.OldText, explain)
	case count > 1 && !in.ReplaceAll:
		return c, ambiguous(c, count)
	}
	if size := len(data) + len(c.at)*(len(c.to)-len(c.from)); size > MaxEdit {
		return c, FileTooLarge.New("The edited file would be larger than 64 MiB.")
	}
	if len(c.at) > maxReplacements {
		return c, direct.Invalid("oldText", fmt.Sprintf("must not occur more than %d times in the file; give more of the text around it", maxReplacements))
	}
	return c, nil
}

// match tries oldText as it is and then with the other line ends. It answers
// the positions of occurrences that do not overlap, and the count of all.
func match(data []byte, in EditDirectFileIn) (edit, int) {
	from, to := []byte(in.OldText), []byte(in.NewText)
	if at, count := occurrences(data, from); count > 0 {
		if !bytes.Contains(from, lf) && bytes.Contains(to, lf) && eolOf(data) == CRLF {
			to = withCRLF(to)
		}
		return edit{data, from, to, at}, count
	}
	for _, convert := range []func([]byte) []byte{withCRLF, withLF} {
		other := convert(from)
		if bytes.Equal(other, from) {
			continue
		}
		if at, count := occurrences(data, other); count > 0 {
			return edit{data, other, convert(to), at}, count
		}
	}
	return edit{data: data, from: from, to: to}, 0
}

var lf, crlf = []byte("\n"), []byte("\r\n")

func withLF(b []byte) []byte   { return bytes.ReplaceAll(b, crlf, lf) }
func withCRLF(b []byte) []byte { return bytes.ReplaceAll(withLF(b), lf, crlf) }

// maxReplacements is how many occurrences one call replaces, for each costs
// memory until the file is written.
const maxReplacements = 1_000_000

// occurrences finds text in data. at has those that do not overlap an earlier
// one, but not many more than may be replaced; count is of all. Where the text
// overlaps itself its borders say what of it has been read already (Knuth, Morris
// and Pratt), so that the time is that of reading data once.
func occurrences(data, text []byte) (at []int, count int) {
	var border []int
	free := 0
	for end, n := 0, 0; ; { // data[end-n:end] is text[:n]
		switch {
		case n == len(text):
			if count++; count == 1 {
				border = borders(text)
			}
			if start := end - n; start >= free && len(at) <= maxReplacements {
				at = append(at, start)
				free = end
			}
			n = border[n]
		case n == 0:
			i := bytes.Index(data[end:], text)
			if i < 0 {
				return at, count
			}
			end, n = end+i+len(text), len(text)
		case end == len(data):
			return at, count
		case data[end] == text[n]:
			end, n = end+1, n+1
		default:
			n = border[n]
		}
	}
}

// borders answers, for each n, how long the longest text is with which text[:n]
// both begins and ends, not counting text[:n] itself.
func borders(text []byte) []int {
	b := make([]int, len(text)+1)
	for n := 2; n <= len(text); n++ {
		k := b[n-1]
		for k > 0 && text[k] != text[n-1] {
			k = b[k]
		}
		if text[k] == text[n-1] {
			k++
		}
		b[n] = k
	}
	return b
}

func (c edit) apply() []byte {
	out := make([]byte, 0, len(c.data)+len(c.at)*(len(c.to)-len(c.from)))
	done := 0
	for _, i := range c.at {
		out = append(append(out, c.data[done:i]...), c.to...)
		done = i + len(c.from)
	}
	return append(out, c.data[done:]...)
}

// ambiguous names the lines of the first occurrences, overlapping ones too.
func ambiguous(c edit, count int) error {
	var lines []string
	line, counted, from := 1, 0, 0
	for len(lines) < min(count, maxShown) {
		i := from + bytes.Index(c.data[from:], c.from)
		line += bytes.Count(c.data[counted:i], lf)
		lines = append(lines, strconv.Itoa(line))
		counted, from = i, i+1
	}
	more := ""
	if count > len(lines) {
		more = " and further on"
	}
	return AmbiguousEdit.New(fmt.Sprintf("oldText occurs %d times, beginning on lines %s%s.", count, strings.Join(lines, ", "), more))
}

// eolOf says how the lines of data end.
func eolOf(data []byte) EOL {
	return eolCount{bytes.Count(data, lf), bytes.Count(data, crlf)}.kind()
}

type eolCount struct{ lf, crlf int } // lf counts both

func (n eolCount) kind() EOL {
	switch {
	case n.lf == 0:
		return NoEOL
	case n.crlf == 0:
		return LF
	case n.crlf == n.lf:
		return CRLF
	}
	return Mixed
}

// shown makes bytes of a file fit for JSON, at most max characters of them.
func shown(b []byte, max int) (text string, cut bool) {
	n := 0
	for i := range string(b[:min(len(b), max*utf8.UTFMax)]) {
		if n == max {
			b, cut = b[:i], true
			break
		}
		n++
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), cut
}
