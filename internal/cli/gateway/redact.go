package gateway

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// redactor takes out of text what a stranger should not read. What it does not know
// to be harmless it takes out.
type redactor struct {
	home  string
	names map[string]string // of clients and the like, as they are called here
}

// harmless are the keys of the config whose words tell nothing of their owner.
var harmless = []string{
	"defaultTtl", "minTtl", "maxTtl", "errorCodes", "level", "format", "every", "linkLife", "commandMode", "transport", "scheme",
	"publicBaseUrl", "trustedProxies", "passEnvironment",
}

// config is a config without names, commands and places: numbers and switches stay,
// paths keep their last element.
func (r *redactor) config(raw []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(r.value("", v), "", "  ")
	return append(out, '\n'), err
}

func (r *redactor) value(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = r.value(k, v[k])
		}
		return v
	case []any:
		if key == "argv" {
			return fmt.Sprintf("%d words", len(v))
		}
		for i := range v {
			v[i] = r.value(key, v[i])
		}
		return v
	case string:
		switch {
		case v == "" || slices.Contains(harmless, key):
			return v
		case strings.HasPrefix(v, "/"):
			return r.path(v)
		}
		return r.name(v)
	}
	return v
}

// path is the last element of a path, and whether it lies at home.
func (r *redactor) path(p string) string {
	if p == "/" {
		return p
	}
	if r.home != "" && (p == r.home || strings.HasPrefix(p, r.home+"/")) {
		if p == r.home {
			return "~"
		}
		return "~/…/" + path.Base(p)
	}
	return "/…/" + path.Base(p)
}

// name stands for a word, the same for the same word.
func (r *redactor) name(word string) string {
	if r.names == nil {
		r.names = map[string]string{}
	}
	if r.names[word] == "" {
		r.names[word] = fmt.Sprintf("name-%d", len(r.names)+1)
	}
	return r.names[word]
}

// logKeys are the members of a log line that are the gateway's own words.
var logKeys = []string{"time", "level", "msg", "id", "http", "path", "status", "ms", "rpc", "tool", "refused", "gone", "sweep", "warning", "schema", "surface", "tools", "version", "from", "to", "steps", "bytes", "backup", "after", "functions", "key", "line"}

// nameKeys are those that are names.
var nameKeys = []string{"client", "client_id", "grant", "address", "host", "project", "peer", "commandId"}

// logLine is a line of the log. Of one that is not the gateway's JSON nothing stays
// but its length.
func (r *redactor) logLine(line string) string {
	var members map[string]any
	if json.Unmarshal([]byte(line), &members) != nil {
		return fmt.Sprintf(`{"other":%d}`, len(line))
	}
	for k, v := range members {
		s, isText := v.(string)
		switch {
		case slices.Contains(logKeys, k):
			if isText {
				members[k] = r.text(s)
			}
		case slices.Contains(nameKeys, k) && isText:
			members[k] = r.name(s)
		case (k == "cause" || k == "error") && isText:
			members[k] = r.text(s)
		default:
			delete(members, k)
		}
	}
	out, err := json.Marshal(members)
	if err != nil {
		return `{"other":0}`
	}
	return string(out)
}

var (
	urls   = regexp.MustCompile(`[a-z][a-z0-9+.-]*://[^\s"'<>]+`)
	places = regexp.MustCompile(`(^|[\s"'=(:,])(/[^\s"'<>:,)]+)`)
	quotes = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	tokens = regexp.MustCompile(`[A-Za-z0-9_+/=-]*[A-Za-z0-9_+/=.@-]{20,}|[^\s]*@[^\s]*|\b[0-9]+(\.[0-9]+){3}\b|\b[0-9A-Fa-f]{0,4}(:[0-9A-Fa-f]{0,4}){3,}\b`)
)

// text is a sentence without what was put into it: quoted words, addresses, paths,
// and whatever is as long as a key.
func (r *redactor) text(s string) string {
	s = quotes.ReplaceAllString(s, `"…"`)
	s = urls.ReplaceAllString(s, "<url>")
	s = places.ReplaceAllStringFunc(s, func(m string) string {
		at := strings.IndexByte(m, '/')
		return m[:at] + "<path>"
	})
	return tokens.ReplaceAllString(s, "<…>")
}
