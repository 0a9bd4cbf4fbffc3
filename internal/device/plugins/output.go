package plugins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/google/renameio/v2"
)

// lastObject keeps the last line that is a JSON object, of any amount of output.
type lastObject struct {
	line []byte // the line that is being read
	over bool   // it is longer than maxLine
	last []byte // the last object
	any  bool   // something was printed
}

func (l *lastObject) Write(p []byte) (int, error) {
	n := len(p)
	l.any = l.any || n > 0
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		if !l.over && len(l.line)+len(part) > maxLine {
			l.over, l.line = true, nil
		}
		if !l.over {
			l.line = append(l.line, part...)
		}
		if ended {
			l.end()
		}
		p = rest
	}
	return n, nil
}

func (l *lastObject) end() {
	line := bytes.TrimSpace(l.line)
	if len(line) > 0 && line[0] == '{' && json.Valid(line) {
		l.last = append(l.last[:0], line...)
	}
	if cap(l.line) > 1<<20 {
		l.line = nil
	}
	l.line, l.over = l.line[:0], false
}

// result reads the object by the contract.
func (l *lastObject) result(errs *tail) Result {
	l.end() // a last line needs no newline
	if l.last == nil {
		what := "nothing"
		if l.any {
			what = "no line that is a JSON object"
		}
		return failure("the plugin answered %s%s", what, errs.quote())
	}
	var said struct {
		OK      *bool   `json:"ok"`
		Output  *string `json:"output"`
		Summary *string `json:"summary"`
	}
	if err := json.Unmarshal(l.last, &said); err != nil || said.OK == nil {
		return failure("the plugin answered an object without ok, or with output or summary that are no strings%s", errs.quote())
	}
	r := Result{OK: *said.OK}
	if said.Output != nil {
		r.Output = *said.Output
	}
	if said.Summary != nil {
		r.Summary = oneLine(*said.Summary)
	}
	return r
}

// oneLine is the begin of a text, on one line.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(clip(s, 8*maxSummary), "")), " ")
	if utf8.RuneCountInString(s) > maxSummary {
		return string([]rune(s)[:maxSummary-1]) + "…"
	}
	return s
}

// OneLine is the begin of a text as a summary has it.
func OneLine(s string) string { return oneLine(s) }

// tail keeps the end of what is written.
type tail struct {
	b   []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > maxStderr {
		t.cut, p = true, p[len(p)-maxStderr:]
	}
	t.b = append(t.b, p...)
	if len(t.b) > maxStderr {
		t.cut = true
		t.b = append(t.b[:0], t.b[len(t.b)-maxStderr:]...)
	}
	return n, nil
}

// quote is the tail as the end of a sentence.
func (t *tail) quote() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.b), "\uFFFD"))
	if text == "" {
		return ""
	}
	if t.cut {
		text = "..." + text
	}
	return "\nstderr: " + text
}

// The limits on an output in a frame.
const (
	maxOutput  = 64 << 10 // bytes; above, it goes to a file
	spillLines = 64       // at each end
	spillBytes = 24 << 10 // at each end
)

// Bound makes the result fit: an output above 64 KiB is written to a file, and its
// begin and end are left, with the file's path and size.
func (r Root) Bound(tool string, res Result) Result {
	res.Output = strings.ToValidUTF8(res.Output, "\uFFFD")
	if len(res.Output) <= maxOutput {
		return res
	}
	head, end := ends(res.Output)
	path := filepath.Join(r.Spill, r.Device+"-"+tool+".txt")
	note := fmt.Sprintf("all %d bytes are in %s on the device, until the next long output of %s", len(res.Output), path, tool)
	err := os.MkdirAll(r.Spill, 0o700)
	if err == nil {
		err = renameio.WriteFile(path, []byte(res.Output), 0o600, renameio.WithStaticPermissions(0o600))
	}
	if err != nil {
		note = fmt.Sprintf("the output had %d bytes; the rest is lost, it could not be written to a file: %v", len(res.Output), cause(err))
	}
	res.Spilled = err == nil
	res.Output = head + "\n[... " + note + " ...]\n" + end
	return res
}

// ends are the first and last lines of a text, cut where they are long.
func ends(s string) (head, end string) {
	head, end = s, s
	at := 0
	for range spillLines {
		i := strings.IndexByte(s[at:], '\n')
		if i < 0 {
			at = len(s)
			break
		}
		at += i + 1
	}
	head = strings.TrimSuffix(s[:at], "\n")
	if len(head) > spillBytes {
		head = strings.ToValidUTF8(head[:spillBytes], "") + " [line cut]"
	}
	from := len(strings.TrimSuffix(s, "\n"))
	for range spillLines {
		from = strings.LastIndexByte(s[:max(from, 0)], '\n')
		if from < 0 {
			break
		}
	}
	end = s[from+1:]
	if len(end) > spillBytes {
		end = "[line cut] " + strings.ToValidUTF8(end[len(end)-spillBytes:], "")
	}
	return head, end
}
