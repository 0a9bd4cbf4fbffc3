package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// Ten thousand registrations from one address are stopped early, each with the
// time to wait, and the client that the owner allowed before does not notice.
func TestTenThousandRegistrations(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Serve()
	c := home.Authorize("Rightful")
	session, err := c.Connect(t.Context(), "Rightful", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()

	const flood, callers = 10_000, 16
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	defer transport.CloseIdleConnections()
	h := &http.Client{Transport: transport}
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range flood / callers {
				res, err := h.Post(c.Meta.RegistrationEndpoint, "application/json", strings.NewReader(`{"client_name":"Flood","redirect_uris":["https://claude.ai/api/mcp/auth_callback"]}`))
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				mu.Lock()
				statuses[res.StatusCode]++
				mu.Unlock()
				if wait, err := strconv.Atoi(res.Header.Get("Retry-After")); res.StatusCode == http.StatusTooManyRequests && (err != nil || wait < 1 || !strings.Contains(string(body), `"hint"`)) {
					t.Errorf("a 429 without a time to wait or a next step: %q, %s", res.Header.Get("Retry-After"), body)
				}
			}
		})
	}
	wg.Wait()
	if statuses[http.StatusCreated] > 60 || statuses[http.StatusCreated]+statuses[http.StatusTooManyRequests] != flood {
		t.Errorf("statuses: %v", statuses)
	}
	var list struct{ Clients []struct{ Name string } }
	if err := json.Unmarshal([]byte(home.OK("clients", "list", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Clients) != statuses[http.StatusCreated]+1 {
		t.Errorf("%d clients are stored, %d registrations were answered", len(list.Clients), statuses[http.StatusCreated])
	}
	if err := session.Call(t.Context(), "list_peers", mailbox.ListPeersIn{}, nil); err != nil {
		t.Errorf("the rightful client: %v", err)
	}
	if _, err := c.Refresh(t.Context(), c.ID, c.Token.RefreshToken); err != nil {
		t.Errorf("the rightful client: %v", err)
	}
}
