package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxProblems is how many broken rules one refusal names.
const maxProblems = 5

// validation is one pass over a caller's arguments.
type validation struct {
	problems []string
	changed  bool // the value was put into the form that decoding needs
}

// Read checks raw against s and returns it in a form that decodes into Go types:
// an optional property that is null counts as left out (so do all arguments),
// and an integer may be written as 5.0. What it refuses it names by path and rule, never by value.
func (s *Schema) Read(raw json.RawMessage) (_ json.RawMessage, problems []string) {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, []string{"the arguments are not JSON"}
	}
	if name, found := repeated(json.NewDecoder(bytes.NewReader(raw))); found {
		return nil, []string{Shown(name, 64) + " is there twice"}
	}
	v := &validation{}
	value = v.check(s, "", value)
	if len(v.problems) > 0 {
		return nil, v.problems
	}
	if v.changed {
		raw = Encode(value)
	}
	return raw, nil
}

// repeated finds a name that an object has twice, at any depth of valid JSON.
// Readers differ in which of the two values counts, so what a person was shown
// before a call might not be what is done.
func repeated(d *json.Decoder) (name string, found bool) {
	token, _ := d.Token()
	if token != json.Delim('{') && token != json.Delim('[') {
		return "", false
	}
	names := map[string]bool{}
	for d.More() {
		if token == json.Delim('{') {
			t, _ := d.Token()
			if name, _ = t.(string); names[name] {
				return name, true
			}
			names[name] = true
		}
		if name, found := repeated(d); found {
			return name, true
		}
	}
	_, _ = d.Token() // the closing delimiter
	return "", false
}

func (v *validation) bad(path, rule string) {
	if path == "" {
		path = "the arguments"
	}
	if len(v.problems) < maxProblems {
		v.problems = append(v.problems, path+" "+rule)
	}
}

// typeRules says in words what a type wants.
var typeRules = map[string]string{
	"string": "must be a string", "integer": "must be a whole number", "boolean": "must be true or false",
	"array": "must be a list", "object": "must be an object",
}

func (v *validation) check(s *Schema, path string, value any) any {
	if value == nil && s.null {
		return nil
	}
	switch value := value.(type) {
	case string:
		if s.kind == "string" {
			v.text(s, path, value)
			return value
		}
	case bool:
		if s.kind == "boolean" {
			return value
		}
	case json.Number:
		if s.kind == "integer" {
			return v.number(s, path, value)
		}
	case []any:
		if s.kind == "array" {
			return v.items(s, path, value)
		}
	case map[string]any:
		if s.kind == "object" {
			return v.members(s, path, value)
		}
	}
	rule := typeRules[s.kind]
	if s.null {
		rule += " or null"
	}
	v.bad(path, rule)
	return value
}

func (v *validation) text(s *Schema, path, value string) {
	n := utf8.RuneCountInString(value)
	switch {
	case n < s.MinLength && s.MaxLength == 0:
		v.bad(path, fmt.Sprintf("must have at least %d characters", s.MinLength))
	case n < s.MinLength, s.MaxLength > 0 && n > s.MaxLength:
		v.bad(path, fmt.Sprintf("must have %d to %d characters, it has %d", s.MinLength, s.MaxLength, n))
	case len(s.Enum) > 0 && !slices.Contains(s.Enum, value):
		v.bad(path, "must be one of "+strings.Join(s.Enum, ", "))
	case s.pattern != nil && !s.pattern.MatchString(value):
		v.bad(path, "must match "+s.Pattern)
	}
}

func (v *validation) number(s *Schema, path string, value json.Number) any {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		// "5.0" and "5e1" are whole numbers too. A long exponent is not worth
		// expanding: no limit of ours is near it.
		r, ok := new(big.Rat), false
		if len(value) <= 32 && !bigExponent(string(value)) {
			_, ok = r.SetString(string(value))
		}
		if !ok || !r.IsInt() || !r.Num().IsInt64() {
			v.bad(path, "must be a whole number")
			return value
		}
		n = r.Num().Int64()
		v.changed = true
	}
	if s.Minimum != nil && (n < *s.Minimum || n > *s.Maximum) {
		v.bad(path, fmt.Sprintf("must be from %d to %d", *s.Minimum, *s.Maximum))
	}
	return n
}

// bigExponent reports an exponent of more than two digits.
func bigExponent(number string) bool {
	i := strings.IndexAny(number, "eE")
	return i >= 0 && len(strings.TrimLeft(number[i+1:], "+-0")) > 2
}

func (v *validation) items(s *Schema, path string, value []any) any {
	if len(value) < s.MinItems || s.MaxItems > 0 && len(value) > s.MaxItems {
		v.bad(path, fmt.Sprintf("must have %d to %d items", s.MinItems, s.MaxItems))
		return value
	}
	for i := range value {
		value[i] = v.check(s.Items, fmt.Sprintf("%s[%d]", path, i), value[i])
	}
	return value
}

func (v *validation) members(s *Schema, path string, value map[string]any) any {
	for _, p := range s.Properties {
		name := join(path, p.Name)
		member, there := value[p.Name]
		switch {
		case member == nil && there && !p.Schema.null && !p.Required:
			delete(value, p.Name)
			v.changed = true
		case !there && p.Required:
			v.bad(name, "is required")
		case there:
			value[p.Name] = v.check(p.Schema, name, member)
		}
	}
	if s.Closed == nil {
		return value
	}
	for _, name := range slices.Sorted(maps.Keys(value)) {
		if !slices.ContainsFunc(s.Properties, func(p Field) bool { return p.Name == name }) {
			v.bad(join(path, Shown(name, 64)), "is unknown; the known names are "+strings.Join(s.names(), ", "))
		}
	}
	return value
}

func (s *Schema) names() []string {
	names := make([]string, len(s.Properties))
	for i, p := range s.Properties {
		names[i] = p.Name
	}
	return names
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
