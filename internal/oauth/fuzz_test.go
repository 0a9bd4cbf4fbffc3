package oauth

import (
	"net/url"
	"strings"
	"testing"
)

func FuzzParseForm(f *testing.F) {
	for _, seed := range [][2]string{
		{"application/x-www-form-urlencoded", "grant_type=refresh_token&refresh_token=x"},
		{"", "a=1&a=2&resource=x&resource=y&b="},
		{"application/json", `{"grant_type":"refresh_token","b":null}`},
		{"application/json; charset=utf-8", `{"a":"b","a":"c"}`},
		{"text/plain", "%"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, contentType, body string) {
		form, refusal := parseForm(contentType, []byte(body))
		if refusal != nil {
			if refusal.Code != "invalid_request" || refusal.Message == "" {
				t.Fatalf("%+v", refusal)
			}
			return
		}
		for name, values := range form {
			if name != "resource" && (len(values) != 1 || values[0] == "") {
				t.Fatalf("%q: %q", name, values)
			}
		}
	})
}

// FuzzRedirect checks that no state or description can break out of its
// parameter or change where the browser goes.
func FuzzRedirect(f *testing.F) {
	f.Add("https://a.test/cb?x=1", "s", "why")
	f.Add("cursor://host/cb", "&iss=https://evil.test", "a#b\r\n")
	f.Add("https://a.test/cb&", "s", "why")
	f.Fuzz(func(t *testing.T, redirectURI, state, description string) {
		u, err := url.Parse(redirectURI)
		if err != nil || u.Fragment != "" || strings.Contains(redirectURI, "#") || u.Host == "" {
			return
		}
		if _, err := url.ParseQuery(u.RawQuery); err != nil || u.Query().Has("state") || u.Query().Has("iss") || u.Query().Has("error_description") {
			return
		}
		s := &Server{issuer: testBase}
		got, err := url.Parse(s.errorRedirect(&authorization{redirectURI: redirectURI, state: state}, "access_denied", description))
		if err != nil {
			t.Fatal(err)
		}
		q := got.Query()
		if got.Host != u.Host || got.Scheme != u.Scheme || got.Path != u.Path || got.Fragment != "" ||
			q.Get("state") != state || q.Get("iss") != testBase || q.Get("error_description") != description {
			t.Fatalf("%s", got)
		}
	})
}
