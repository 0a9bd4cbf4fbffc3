package conformance

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// withBearer is the URL of a proxy that adds the token to each request, for the
// suite can't send one. All else passes unchanged, the Host header above all: a
// scenario forges it.
func withBearer(t *testing.T, mcpURL, token string) string {
	t.Helper()
	target, err := url.Parse(mcpURL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
			r.Out.Host = r.In.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
			// Read whole, the request is over before its answer begins. Else the
			// server's end of it races with the transport's and cuts the answer.
			body, err := io.ReadAll(r.In.Body)
			if err != nil {
				t.Errorf("reading what the suite sent: %v", err)
			}
			r.Out.Body = io.NopCloser(bytes.NewReader(body))
		},
		FlushInterval: -1, // notifications arrive one by one
		Transport:     transport,
		ErrorLog:      log.New(io.Discard, "", 0), // answers that the suite does not read to their end
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil { // the suite still waits
				t.Errorf("the gateway did not answer: %v", err)
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	})
	t.Cleanup(func() {
		proxy.Close()
		transport.CloseIdleConnections()
	})
	return strings.Replace(proxy.URL, "127.0.0.1", "localhost", 1) + target.Path
}
