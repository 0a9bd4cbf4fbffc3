package events

import (
	"net/http"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRetryDelayStaysInItsWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tries := rapid.IntRange(-3, 10).Draw(t, "tries")
		jitter := rapid.Float64Range(0, 1).Filter(func(j float64) bool { return j < 1 }).Draw(t, "jitter")
		wait, more := retryDelay(tries, jitter)
		if more != (tries >= 1 && tries <= 4) {
			t.Fatalf("after %d tries there is another: %v", tries, more)
		}
		if !more {
			return
		}
		base := []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 8 * time.Minute}[tries-1]
		if wait < base*8/10-1 || wait > base*12/10 {
			t.Fatalf("%s is not within a fifth of %s", wait, base)
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "120", "-1", "1e9", "Fri, 31 Dec 9999 23:59:59 GMT", "18446744073709551616"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if d := parseRetryAfter(http.Header{"Retry-After": {value}}, time.Unix(0, 0)); d < 0 || d > maxRetryAfter {
			t.Errorf("%q is %s", value, d)
		}
	})
}

func FuzzParseSecret(f *testing.F) {
	for _, s := range []string{"", "whsec_", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "whsec_AAAA\nAAAA"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, secret string) {
		if key, ok := parseSecret(secret); ok && (len(key) < minSecret || len(key) > maxSecret) {
			t.Errorf("%d bytes", len(key))
		}
	})
}

func FuzzParseCredential(f *testing.F) {
	for _, s := range []string{`{"url":"https://a.example/","token":"key"}`, `{"url":null,"token":"k"}`, `[]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if c, err := parseCredential(raw); err == nil && (c.url == "" || c.token == "") {
			t.Errorf("%+v", c)
		}
	})
}
