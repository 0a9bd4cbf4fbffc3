package prompt

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"agentrelay/internal/device/approval"
)

// The limits of what a question shows at first.
const (
	bodyRows   = 12
	otherRows  = 6
	reasonRows = 4
	minColumns = 40
	maxColumns = 160
)

// screen is a question as it is shown.
type screen struct {
	rows []string // without line ends
	all  []string // everything, for paging; nil when rows have it all
}

// body is the part of the arguments that the question is about, and the rest as
// compact JSON, "" when there is none.
func body(q approval.Question) (main, rest string) {
	var args map[string]json.RawMessage
	if json.Unmarshal(q.Args, &args) != nil {
		return string(q.Args), ""
	}
	hinted, there := args[q.Hint]
	if q.Hint == "" || !there || twice(q.Args) {
		return string(q.Args), ""
	}
	var text string
	if json.Unmarshal(hinted, &text) != nil {
		text = string(hinted)
	}
	delete(args, q.Hint)
	if len(args) == 0 {
		return text, ""
	}
	return text, compact(args)
}

func compact(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "<arguments that can't be shown>"
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// twice reports whether a name stands twice in the arguments: the tool could read
// the one that isn't shown.
func twice(args json.RawMessage) bool {
	d := json.NewDecoder(bytes.NewReader(args))
	d.UseNumber()
	if _, err := d.Token(); err != nil {
		return true
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok || seen[name] {
			return true
		}
		seen[name] = true
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return true
		}
	}
	return false
}

// plainAgent is the form of names that need no quotes to be told from our words.
var plainAgent = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/@:+()-]*( [A-Za-z0-9._/@:+()-]+){0,2}$`)

// agent is the caller's name for itself, or the device's.
func agent(q approval.Question) string {
	switch {
	case strings.TrimSpace(q.Agent) == "":
		return q.Device
	case len(q.Agent) <= 48 && plainAgent.MatchString(q.Agent) && !strings.Contains(q.Agent, "wants to"):
		return q.Agent
	}
	return `"` + line(q.Agent, 48) + `"`
}

// render lays a question out for a terminal with so many columns. It has the form
//
//	<agent> wants to run <device>:<tool>
//	  <the argument that matters>
//	  also: <other arguments>
//	  the caller's reason: <reason>
//	  needs: <shell, net, fs>
func render(q approval.Question, columns int) screen {
	columns = min(max(columns, minColumns), maxColumns) - 1 // the last one wraps in some terminals
	main, rest := body(q)
	var s, all screen
	head := agent(q) + " wants to run " + q.Device + ":" + q.Tool
	for i, row := range rows(head, columns-4) {
		if i > 0 {
			row = "  | " + row
		}
		s.rows, all.rows = append(s.rows, row), append(all.rows, row)
	}
	cut := false
	add := func(label, text string, most int) {
		if text == "" && label != "" {
			return
		}
		whole := block(label, text, columns)
		if text == "" {
			whole = []string{"  <nothing>"}
		}
		all.rows = append(all.rows, whole...)
		if len(whole) > most {
			cut = true
			whole = append(whole[:most:most], fmt.Sprintf("  ... %d of %d rows are not shown;", len(whole)-most, len(whole)),
				fmt.Sprintf("      all has %d bytes, SHA-256", len(text)), "      "+digest(text)[:32], "      "+digest(text)[32:])
		}
		s.rows = append(s.rows, whole...)
	}
	add("", main, bodyRows)
	add("also: ", rest, otherRows)
	add("the caller's reason: ", q.Reason, reasonRows)
	add("needs: ", strings.Join(q.Requires, ", "), 1)
	if cut {
		s.all = all.rows
	}
	return s
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// block is a labelled text. Rows after the first have a mark, so that none can look
// like a label of ours.
func block(label, text string, columns int) []string {
	const margin, further = "  ", "  | "
	out := rows(text, columns-len(further)-len(label))
	for i := range out {
		if i == 0 {
			out[i] = margin + label + out[i]
		} else {
			out[i] = further + strings.Repeat(" ", max(0, len(label)-2)) + out[i]
		}
	}
	return out
}
