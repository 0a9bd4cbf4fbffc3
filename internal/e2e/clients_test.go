package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"agentrelay/internal/client"
)

// refusalOf is the code of a tool's refusal, "" for success.
func refusalOf(t *testing.T, err error) string {
	t.Helper()
	var refused *client.ToolError
	if err != nil && !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if refused == nil {
		return ""
	}
	return refused.Code
}

// serveDocument serves a client's metadata document on loopback and returns its
// client id, which the document is given as its own.
func serveDocument(t *testing.T, document string) (clientID string) {
	t.Helper()
	members := object{}
	if err := json.Unmarshal([]byte(document), &members); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(members)
	}))
	t.Cleanup(s.Close)
	members["client_id"] = s.URL + "/oauth/client.json"
	return s.URL + "/oauth/client.json"
}
