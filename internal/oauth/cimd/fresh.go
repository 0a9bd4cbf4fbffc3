package cimd

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// How long a document is used before it is asked for again. The bounds keep a
// site from making us ask at every request, and from being believed for ever.
const (
	minFresh     = 5 * time.Minute
	maxFresh     = 24 * time.Hour
	defaultFresh = time.Hour
)

// freshFor is the freshness lifetime of an answer (RFC 9111 section 4.2) within
// our bounds.
func freshFor(h http.Header, now time.Time) time.Duration {
	return min(max(lifetime(h, now), minFresh), maxFresh)
}

func lifetime(h http.Header, now time.Time) time.Duration {
	age := seconds(h.Get("Age"))
	directives := map[string]string{}
	for _, d := range strings.Split(strings.Join(h.Values("Cache-Control"), ","), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(d), "=")
		directives[strings.ToLower(name)] = strings.Trim(value, `"`)
	}
	for _, name := range []string{"no-store", "no-cache"} {
		if _, ok := directives[name]; ok {
			return 0
		}
	}
	if maxAge, ok := directives["max-age"]; ok {
		return seconds(maxAge) - age
	}
	if h.Get("Expires") == "" {
		return defaultFresh
	}
	expires, err := http.ParseTime(h.Get("Expires"))
	if err != nil {
		return 0 // RFC 9111 section 5.3: such as "0", in the past
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date // so that a wrong clock on either side does not matter
	}
	return expires.Sub(now) - age
}

// seconds reads delta-seconds; what can't be read is none.
func seconds(s string) time.Duration {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}
