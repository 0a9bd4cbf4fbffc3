package devices

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"agentrelay/internal/devices/wire"
)

// offered is a tool of a connected device.
type offered struct {
	wire.ToolInfo

	once   sync.Once
	schema *wire.Schema // nil: it can't be checked here, and the device will
}

// offer sorts tools by name and makes what strangers wrote fit for a list.
func offer(tools []wire.ToolInfo) []*offered {
	out := make([]*offered, len(tools))
	for i, t := range tools {
		t.Requires = hints(t.Requires)
		if len(t.Schema) == 0 || string(t.Schema) == "null" {
			t.Schema = json.RawMessage(`{"type":"object"}`)
		}
		out[i] = &offered{ToolInfo: t}
	}
	slices.SortFunc(out, func(a, b *offered) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// hints keeps those that the specification knows.
func hints(requires []string) []string {
	out := []string{}
	for _, r := range requires {
		if (r == "net" || r == "fs" || r == "shell") && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// check says what is wrong with canonical arguments. A schema that can't be checked
// in bounded time, or is of a draft that is not known here, is left to the device.
func (o *offered) check(args json.RawMessage) error {
	o.once.Do(func() { o.schema, _ = wire.Compile(o.Schema) })
	if o.schema == nil {
		return nil
	}
	return o.schema.Check(args)
}

// Digest is a tool's arguments in short, as the specification has it.
type Digest struct {
	Device   string     `json:"device"`
	Tool     string     `json:"tool"`
	Desc     string     `json:"desc"`
	Requires []string   `json:"requires"`
	Args     []Argument `json:"args"`
	// Complex says that the schema has more than this digest: nested objects, lists or
	// unions.
	Complex bool `json:"complex"`
}

// Argument is one argument in a digest.
type Argument struct {
	Name     string          `json:"name"`
	Type     string          `json:"type"`
	Required bool            `json:"required"`
	Default  json.RawMessage `json:"default,omitempty"`
	Desc     *string         `json:"desc"`
}

// shape is the part of a schema that a digest reads.
type shape struct {
	Type        json.RawMessage            `json:"type"`
	Description *string                    `json:"description"`
	Default     json.RawMessage            `json:"default"`
	Properties  json.RawMessage            `json:"properties"`
	Required    []string                   `json:"required"`
	Rest        map[string]json.RawMessage `json:"-"`
}

// readShape reads what it can: a schema is a stranger's text.
func readShape(raw json.RawMessage) (s shape, ok bool) {
	if json.Unmarshal(raw, &s.Rest) != nil {
		return s, false
	}
	for name, into := range map[string]any{
		"type": &s.Type, "default": &s.Default, "properties": &s.Properties, "required": &s.Required,
	} {
		if value, there := s.Rest[name]; there {
			_ = json.Unmarshal(value, into)
		}
	}
	var text *string
	if s.Description = nil; json.Unmarshal(s.Rest["description"], &text) == nil {
		s.Description = text // not what is left of another type
	}
	return s, true
}

// unions are the keywords that a digest flattens.
var unions = []string{"oneOf", "anyOf", "allOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "dependentSchemas", "dependentRequired", "dependencies", "patternProperties", "propertyNames"}

func (s shape) flattened() bool {
	return slices.ContainsFunc(unions, func(name string) bool { _, there := s.Rest[name]; return there })
}

// kind is the type as a word; union says that it is no single one.
func (s shape) kind() (word string, union bool) {
	var one string
	if json.Unmarshal(s.Type, &one) == nil && one != "" {
		return one, false
	}
	var many []string
	if json.Unmarshal(s.Type, &many) == nil && len(many) > 0 {
		return strings.Join(many, "|"), true
	}
	return "any", false
}

// digest walks properties and required, one level deep, in the order of the schema.
func (o *offered) digest(device string) Digest {
	d := Digest{Device: device, Tool: o.Name, Desc: o.Desc, Requires: o.Requires, Args: []Argument{}}
	root, ok := readShape(o.Schema)
	if !ok {
		d.Complex = true
		return d
	}
	kind, union := root.kind()
	d.Complex = root.flattened() || union || (kind != "object" && kind != "any")
	for _, p := range members(root.Properties) {
		s, ok := readShape(p.value)
		kind, union := s.kind()
		if !ok || union || s.flattened() || kind == "object" || kind == "array" || len(s.Properties) > 0 {
			d.Complex = true
		}
		a := Argument{Name: p.name, Type: kind, Required: slices.Contains(root.Required, p.name), Desc: s.Description}
		if _, there := s.Rest["default"]; there {
			a.Default = s.Default
			if len(a.Default) == 0 {
				a.Default = json.RawMessage("null")
			}
		}
		d.Args = append(d.Args, a)
	}
	return d
}

type member struct {
	name  string
	value json.RawMessage
}

// members are those of a JSON object in their order; of anything else none.
func members(raw json.RawMessage) (out []member) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return out
		}
		if i := slices.IndexFunc(out, func(m member) bool { return m.name == name }); i >= 0 {
			out[i].value = value // the last one counts, as for all readers here
			continue
		}
		out = append(out, member{name, value})
	}
	return out
}

// cutText is at most n characters of s.
func cutText(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}

// oneLine is the first line of a description, cut.
func oneLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return cutText(strings.TrimSpace(line), maxLine)
}
