package gateway

import (
	"mime"
	"strconv"
	"strings"
)

// form is the kind of answer that a client gets from the MCP endpoint.
type form int

const (
	formNone form = iota // the client accepts neither
	formJSON
	formSSE
)

// negotiate chooses the form of an answer by the Accept lines of a request
// (RFC 9110 section 12.5.1). Clients send less than MCP asks for, so a missing
// header, "*/*" and either type alone all work. An event stream is chosen when
// the client names it and does not prefer JSON: only a stream can be kept alive
// while a call waits.
func negotiate(lines []string) form {
	json, sse := match{}, match{}
	ranges := 0
	for _, line := range lines {
		for _, item := range splitList(line) {
			ranges++
			kind, params, err := mime.ParseMediaType(item)
			if err != nil {
				continue
			}
			q := quality(params["q"])
			json.take(kind, "application/json", q)
			sse.take(kind, "text/event-stream", q)
		}
	}
	switch {
	case ranges == 0:
		return formJSON
	case sse.q > 0 && (sse.q > json.q || sse.q == json.q && sse.precision == exact):
		return formSSE
	case json.q > 0:
		return formJSON
	}
	return formNone
}

// How precisely a media range names a type; a more precise range overrules.
const (
	anyType = iota + 1
	anySubtype
	exact
)

// match is the best media range so far for one type.
type match struct {
	precision int
	q         float64
}

func (m *match) take(kind, want string, q float64) {
	precision := 0
	switch kind {
	case want:
		precision = exact
	case want[:strings.IndexByte(want, '/')] + "/*":
		precision = anySubtype
	case "*/*":
		precision = anyType
	}
	if precision > m.precision || precision != 0 && precision == m.precision && q > m.q {
		*m = match{precision, q}
	}
}

// quality reads a q parameter; without one, or with one that can't be read, the
// range counts fully.
func quality(s string) float64 {
	q, err := strconv.ParseFloat(s, 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return 1
	}
	return q
}

// splitList splits a header at the commas that are not in quotes, and drops
// empty items.
func splitList(line string) []string {
	var items []string
	quoted, start := false, 0
	add := func(end int) {
		if item := strings.TrimSpace(line[start:end]); item != "" {
			items = append(items, item)
		}
		start = end + 1
	}
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '"':
			quoted = !quoted
		case line[i] == '\\' && quoted:
			i++
		case line[i] == ',' && !quoted:
			add(i)
		}
	}
	add(len(line))
	return items
}
