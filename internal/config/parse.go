package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// maxDepth is deeper than any key of the config.
const maxDepth = 16

// node is a JSON value that knows its line.
type node struct {
	line    int
	kind    byte // '{', '[', or 0 for a scalar
	raw     json.RawMessage
	members []member
	items   []node
}

type member struct {
	name  string
	line  int
	value node
}

// parse reads one JSON value and nothing behind it.
func parse(raw []byte) (node, *Remark) {
	p := &parser{raw: raw, dec: json.NewDecoder(bytes.NewReader(raw))}
	p.dec.UseNumber()
	n, err := p.value(0)
	if err == nil {
		if _, more := p.dec.Token(); !errors.Is(more, io.EOF) {
			return node{}, &Remark{Line: p.line(p.start()), Text: "has something behind the last }: remove it"}
		}
		return n, nil
	}
	offset := p.dec.InputOffset()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	}
	text := "is not JSON: " + strings.TrimPrefix(err.Error(), "json: ")
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		offset, text = int64(len(raw)), "is not complete JSON: it ends too early"
	}
	return node{}, &Remark{Line: p.line(offset), Text: text}
}

type parser struct {
	raw []byte
	dec *json.Decoder
}

// start is where the next token begins: behind white space and separators.
func (p *parser) start() int64 {
	at := p.dec.InputOffset()
	for at < int64(len(p.raw)) && strings.IndexByte(" \t\r\n,:", p.raw[at]) >= 0 {
		at++
	}
	return at
}

func (p *parser) line(offset int64) int {
	return 1 + bytes.Count(p.raw[:min(max(offset, 0), int64(len(p.raw)))], []byte("\n"))
}

func (p *parser) value(depth int) (node, error) {
	if depth > maxDepth {
		return node{}, errors.New("it is nested too deeply")
	}
	start := p.start()
	n := node{line: p.line(start)}
	token, err := p.dec.Token()
	if err != nil {
		return n, err
	}
	switch token {
	case json.Delim('{'):
		n.kind = '{'
		for p.dec.More() {
			m := member{line: p.line(p.start())}
			name, err := p.dec.Token()
			if err != nil {
				return n, err
			}
			m.name, _ = name.(string) // the decoder refuses anything but a string here
			if m.value, err = p.value(depth + 1); err != nil {
				return n, err
			}
			n.members = append(n.members, m)
		}
	case json.Delim('['):
		n.kind = '['
		for p.dec.More() {
			item, err := p.value(depth + 1)
			if err != nil {
				return n, err
			}
			n.items = append(n.items, item)
		}
	default:
		n.raw = p.raw[start:p.dec.InputOffset()]
		return n, nil
	}
	_, err = p.dec.Token() // the closing delimiter
	return n, err
}

// decodeRoot fills c from the file's value.
func (r *reading) decodeRoot(n node, c *Config) {
	if n.kind != '{' {
		r.problems = append(r.problems, Remark{Line: n.line, Text: "must be one JSON object: { ... }"})
		return
	}
	r.object("", n, reflect.ValueOf(c).Elem())
}

// decode fills v from n. Keys are matched exactly, unlike encoding/json does.
func (r *reading) decode(key string, n node, v reflect.Value) {
	r.lines[key] = n.line
	switch {
	case string(n.raw) == "null":
		r.bad(key, "must not be null: remove the key to get its default")
	case v.Kind() == reflect.Struct && n.kind == '{':
		r.object(key, n, v)
	case v.Kind() == reflect.Slice && n.kind == '[':
		v.Set(reflect.MakeSlice(v.Type(), len(n.items), len(n.items)))
		for i, item := range n.items {
			e := v.Index(i)
			if d, ok := e.Addr().Interface().(interface{ setDefaults() }); ok {
				d.setDefaults()
			}
			r.decode(fmt.Sprintf("%s[%d]", key, i), item, e)
		}
	case n.kind != 0 || json.Unmarshal(n.raw, v.Addr().Interface()) != nil:
		r.bad(key, "must be %s", map[reflect.Kind]string{
			reflect.Struct: "an object: { ... }",
			reflect.Slice:  "a list: [ ... ]",
			reflect.String: "a string in double quotes",
			reflect.Bool:   "true or false",
			reflect.Int:    "a whole number",
		}[v.Kind()])
	}
}

func (r *reading) object(key string, n node, v reflect.Value) {
	fields, names := map[string]int{}, []string{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name != "" {
			fields[name], names = i, append(names, name)
		}
	}
	seen := map[string]bool{}
	for _, m := range n.members {
		path := strings.TrimPrefix(key+"."+printable(m.name), ".")
		i, known := fields[m.name]
		switch {
		case !known:
			r.problems = append(r.problems, Remark{path, m.line, "is not a key of this file" + suggestion(m.name, names)})
		case seen[m.name]:
			r.problems = append(r.problems, Remark{path, m.line, "appears a second time: keep one"})
		default:
			r.decode(path, m.value, v.Field(i))
		}
		seen[m.name] = true
	}
	for _, name := range names {
		tag := v.Type().Field(fields[name]).Tag.Get("jsonschema")
		if !seen[name] && slices.Contains(strings.Split(tag, ","), "required") {
			r.bad(strings.TrimPrefix(key+"."+name, "."), "is missing")
		}
	}
}

// printable is a key as it may be shown on a terminal.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted[1:len(quoted)-1] != name || name == "" {
		return quoted
	}
	return name
}

// suggestion names the key that was probably meant, else all of them.
func suggestion(name string, names []string) string {
	best, least := "", 1+max(2, len(name)/3)
	for _, n := range names {
		if d := distance(strings.ToLower(name), strings.ToLower(n)); d < least {
			best, least = n, d
		}
	}
	if best == "" {
		return ": remove it (the keys here are " + strings.Join(names, ", ") + ")"
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// distance is the Levenshtein distance of two strings, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
