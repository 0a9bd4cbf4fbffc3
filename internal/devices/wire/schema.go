package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Schema checks arguments of one tool. It is safe for concurrent use.
type Schema struct{ resolved *jsonschema.Resolved }

// MaxExpanded bounds a schema by the number of parts that it has when every
// reference is written out, so that a check takes bounded time and stack.
const MaxExpanded = 10_000

// Compile reads a JSON Schema (2020-12 or draft-07) with
// github.com/google/jsonschema-go. Absent means any object. What can't be checked
// is an error: another draft, references out of the schema, schemas that refer to
// themselves, more than [MaxExpanded] parts.
func Compile(raw json.RawMessage) (*Schema, error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage(`{"type":"object"}`)
	}
	if err := bounded(raw); err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, errors.New("the schema is not a JSON Schema")
	}
	if !drafts[strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(s.Schema, "#"), "http://"), "https://")] {
		return nil, errors.New("the schema is of another draft than 2020-12 or draft-07")
	}
	resolved, err := resolve(&s)
	if err != nil {
		return nil, fmt.Errorf("the schema can't be used: %s", shown(err.Error()))
	}
	return &Schema{resolved}, nil
}

// drafts are the values of $schema that the library can check, without scheme.
var drafts = map[string]bool{"": true, "json-schema.org/draft/2020-12/schema": true, "json-schema.org/draft-07/schema": true}

// resolve keeps a panic of the library inside: schemas come from strangers.
func resolve(s *jsonschema.Schema) (_ *jsonschema.Resolved, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it is not understood")
		}
	}()
	return s.Resolve(nil)
}

// Check returns what is wrong with canonical arguments, as a place and a rule of
// the schema without the caller's value, or nil.
func (s *Schema) Check(canonical json.RawMessage) (err error) {
	var v any
	if json.Unmarshal(canonical, &v) != nil {
		return errors.New("args are not JSON")
	}
	if _, ok := v.(map[string]any); !ok {
		return errors.New("args must be an object")
	}
	defer func() {
		if recover() != nil {
			err = errors.New("args can't be checked against the schema of this tool")
		}
	}()
	if err := s.resolved.Validate(v); err != nil {
		return errors.New(problem(err))
	}
	return nil
}

// problem says an error of the library without the values in it: the deepest
// place in the arguments, and the rule of the schema there.
func problem(err error) string {
	place, entered := "", map[string]string{} // where each definition was entered
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		at := strings.TrimSuffix(strings.TrimSuffix(err.Error(), inner.Error()), ": ")
		if pointer, ok := strings.CutPrefix(at, "validating /"); ok {
			parts := strings.Split(pointer, "/")
			base := ""
			if (parts[0] == "$defs" || parts[0] == "definitions") && len(parts) > 1 {
				if _, known := entered[parts[1]]; !known {
					entered[parts[1]] = place
				}
				base, parts = entered[parts[1]], parts[2:]
			}
			place = base + argumentPath(parts)
		}
		err = inner
	}
	return "args" + place + " " + rule(err.Error())
}

// argumentPath turns a pointer into a schema into the path of the argument.
func argumentPath(parts []string) string {
	path := ""
	for i := 0; i < len(parts); i++ {
		switch parts[i] {
		case "properties":
			if i++; i < len(parts) {
				path += "." + shown(strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i]))
			}
		case "items":
			path += "[]"
		}
	}
	return path
}

// rule is the innermost message of the library, cut to what comes from the schema.
func rule(message string) string {
	if names, ok := strings.CutPrefix(message, "unexpected additional properties "); ok {
		return "has unknown properties: " + shown(strings.Trim(names, "[]"))
	}
	keyword, rest, _ := strings.Cut(message, ": ")
	after := func(mark string) string {
		if i := strings.LastIndex(rest, mark); i >= 0 {
			return shown(strings.TrimRight(strings.TrimRight(rest[i+len(mark):], "0"), "."))
		}
		return "the schema says"
	}
	switch keyword {
	case "type":
		return "must be of type " + strings.ReplaceAll(after(", want "), "?", "")
	case "required":
		return "lacks " + strings.ReplaceAll(after("missing properties: "), "?", "")
	case "enum", "const":
		return "must be one of the values that the schema lists"
	case "minimum":
		return "must be at least " + after("less than ")
	case "maximum":
		return "must be at most " + after("greater than ")
	case "pattern":
		return "must match the pattern of the schema"
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems", "multipleOf", "exclusiveMinimum", "exclusiveMaximum":
		return "breaks the schema's rule " + keyword
	}
	return "does not fit the schema (" + firstWord(keyword) + ")"
}
