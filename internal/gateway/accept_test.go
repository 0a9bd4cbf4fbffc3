package gateway

import (
	"mime"
	"testing"
)

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  form
	}{
		{"no line", nil, formJSON},
		{"only commas", []string{",, ,"}, formJSON},
		{"parameters", []string{`application/json; charset="utf-8, really"`}, formJSON},
		{"a quoted comma hides nothing", []string{`text/html;x="a,text/event-stream", application/json`}, formJSON},
		{"the exact range overrules the wildcard", []string{"text/event-stream;q=0.1, */*"}, formJSON},
		{"the wildcard follows", []string{"*/*, text/event-stream"}, formSSE},
		{"equal qualities", []string{"application/json;q=0.5, text/event-stream;q=0.5"}, formSSE},
		{"stream by wildcard only", []string{"application/json, text/*"}, formJSON},
		{"a quality that is none", []string{"application/json;q=zebra"}, formJSON},
		{"a quality above one", []string{"text/event-stream;q=7"}, formSSE},
		{"no quality left", []string{"*/*;q=0"}, formNone},
		{"an unbalanced quote", []string{`application/json;x="`}, formNone},
		{"other types", []string{"image/png, text/plain"}, formNone},
	} {
		if got := negotiate(c.lines); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func FuzzNegotiate(f *testing.F) {
	f.Add("application/json, text/event-stream", "")
	f.Add(`*/*;q=0.1,"`, `text/*;x="\",";q=1`)
	f.Add(";;;,,,", "q=0")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := negotiate([]string{a, b})
		if got != negotiate([]string{a + "," + b}) && countQuotes(a) {
			t.Errorf("two lines differ from one: %q, %q", a, b)
		}
		// What a client names alone is never refused.
		for _, line := range []string{a, b} {
			kind, params, err := mime.ParseMediaType(line)
			if err != nil || params["q"] != "" || len(splitList(line)) != 1 {
				continue
			}
			want := map[string]form{"application/json": formJSON, "text/event-stream": formSSE, "*/*": formJSON}[kind]
			if want != formNone && negotiate([]string{line}) != want {
				t.Errorf("%q is refused", line)
			}
		}
	})
}

// countQuotes reports whether no quote is left open at the end of s, so that a
// line can be joined with the next.
func countQuotes(s string) bool {
	open := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			open = !open
		case s[i] == '\\' && open:
			i++
		}
	}
	return !open
}
