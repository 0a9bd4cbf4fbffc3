// Package callerid is the form of the ids that callers choose: of peers, agents,
// requests, inputs and routes. It promises one form everywhere, so that an id which
// one tool takes is taken by all. It leaves to others what an id is for, in which
// scope it is used once, and ids that the gateway makes itself.
package callerid

import "regexp"

// Pattern is the form, as a regular expression of JSON Schema too.
const Pattern = `^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`

// Rule says it to a caller, after the name of the argument that broke it.
const Rule = "must be 1 to 128 characters: a letter or digit, then letters, digits or any of . _ : -"

// Form is Pattern, compiled once: one with a count takes tens of kilobytes.
var Form = regexp.MustCompile(Pattern)

// Valid reports whether an id has the form.
func Valid(id string) bool { return Form.MatchString(id) }
