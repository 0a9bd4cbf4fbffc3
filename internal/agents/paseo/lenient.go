package paseo

import (
	"encoding/json"
	"maps"
)

// text is a string that may be null, absent, or another type in some version;
// what is no string is "".
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) != nil {
		s = ""
	}
	*t = text(s)
	return nil
}

// lenient is a value that is zero when the daemon sent another type, so that one
// odd field doesn't cost the whole answer.
type lenient[T any] struct {
	v   T
	set bool // the key was there, and had a T or null
}

func (l *lenient[T]) UnmarshalJSON(b []byte) error {
	var v T
	if json.Unmarshal(b, &v) == nil {
		l.v, l.set = v, true
	}
	return nil
}

// strings keeps the members of a JSON object that are strings.
func (l lenient[T]) strings() map[string]string {
	out := map[string]string{}
	members, _ := any(l.v).(map[string]any)
	for k, v := range maps.All(members) {
		if s, ok := v.(string); ok {
			out[k] = s
		}
	}
	return out
}
