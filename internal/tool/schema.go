// Package tool is the tools of an MCP server as their clients see them: the
// language of their schemas, the check of arguments against them, the definition
// of a tool, and the form of its answers and refusals.
//
// It promises that a schema says no more than what is checked, that a refusal of
// arguments names path and rule and never the caller's value, that what decodes
// afterwards is what was checked, and that the same definitions are the same
// bytes at each start. It leaves to others which tools there are, what they do,
// who may call them, and the record of it: it knows no store, so that a worker on
// another machine serves the same tools as the gateway.
package tool

import (
	"bytes"
	"regexp"
	"strconv"

	"agentrelay/internal/callerid"
)

// Schema is the part of JSON Schema 2020-12 that our tools use, and its order on
// the wire. It has no combinators and no references, because some clients drop
// tools that have them (tools.md).
type Schema struct {
	Type        any      `json:"type"` // a name, or a name and "null"
	Description string   `json:"description,omitempty"`
	Enum        []string `json:"enum,omitempty"`
	MinLength   int      `json:"minLength,omitempty"` // in code points
	MaxLength   int      `json:"maxLength,omitempty"` // 0 is no limit
	Pattern     string   `json:"pattern,omitempty"`
	Minimum     *int64   `json:"minimum,omitempty"`
	Maximum     *int64   `json:"maximum,omitempty"`
	Default     any      `json:"default,omitempty"`
	Items       *Schema  `json:"items,omitempty"`
	MinItems    int      `json:"minItems,omitempty"`
	MaxItems    int      `json:"maxItems,omitempty"`
	Properties  Fields   `json:"properties,omitempty"`
	Required    []string `json:"required,omitempty"`
	Closed      *bool    `json:"additionalProperties,omitempty"` // points to false, or nil

	kind    string // Type without "null"
	null    bool
	pattern *regexp.Regexp
}

// Field is a property of an object.
type Field struct {
	Name     string
	Schema   *Schema
	Required bool
}

// Fields keeps the order in which properties were declared: it is the order in
// which models read them.
type Fields []Field

// MarshalJSON writes the object in its order.
func (f Fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, p := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(p.Name) + ":")
		b.Write(Encode(p.Schema))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func typed(kind, description string) *Schema {
	return &Schema{Type: kind, Description: description, kind: kind}
}

// Str is the schema of a string.
func Str(description string) *Schema { return typed("string", description) }

// Boolean is the schema of true or false.
func Boolean(description string) *Schema { return typed("boolean", description) }

// Integer is the schema of a whole number of 64 bits.
func Integer(description string) *Schema { return typed("integer", description) }

// List is the schema of a list.
func List(description string, items *Schema) *Schema {
	s := typed("array", description)
	s.Items = items
	return s
}

// Object is an open object, for results: clients keep a schema they once read,
// and a field that a later version adds must not fail against it.
func Object(description string, properties ...Field) *Schema {
	s := typed("object", description)
	s.Properties = properties
	return s
}

// Arguments is the closed root of a tool's input.
func Arguments(properties ...Field) *Schema {
	s := Object("", properties...)
	closed := false
	s.Closed = &closed
	for _, p := range properties {
		if p.Required {
			s.Required = append(s.Required, p.Name)
		}
	}
	return s
}

// Req is a property that must be there.
func Req(name string, s *Schema) Field { return Field{name, s, true} }

// Opt is a property that may be left out.
func Opt(name string, s *Schema) Field { return Field{name, s, false} }

// Length bounds a string, in code points; a most of 0 is no bound.
func (s *Schema) Length(least, most int) *Schema { s.MinLength, s.MaxLength = least, most; return s }

// Sized bounds the number of items of a list.
func (s *Schema) Sized(least, most int) *Schema { s.MinItems, s.MaxItems = least, most; return s }

// OneOf names the values that a string may have.
func (s *Schema) OneOf(values ...string) *Schema { s.Enum = values; return s }

// Standard names the value of a property that is left out.
func (s *Schema) Standard(v any) *Schema { s.Default = v; return s }

// Between bounds a number, both ends included.
func (s *Schema) Between(least, most int64) *Schema {
	s.Minimum, s.Maximum = &least, &most
	return s
}

// Kind is the type without null: string, integer, boolean, array or object.
func (s *Schema) Kind() string { return s.kind }

// OrNull also allows null.
func (s *Schema) OrNull() *Schema {
	s.Type, s.null = []string{s.kind, "null"}, true
	return s
}

// Matching bounds a string to a pattern.
func (s *Schema) Matching(pattern *regexp.Regexp) *Schema {
	s.Pattern, s.pattern = pattern.String(), pattern
	return s
}

// The forms of strings, for [Schema.Matching]. Each is compiled once: one with a count takes tens of
// kilobytes.
var (
	IDForm   = callerid.Form // of everything that callers name
	UUIDForm = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
	HashForm = regexp.MustCompile(`^[0-9A-Fa-f]{64}$`) // SHA-256
)
