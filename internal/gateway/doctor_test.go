package gateway

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/admin"
)

func TestTicketTellsWhatArrived(t *testing.T) {
	h := start(t, testConfig(t))
	k, err := h.tickets.begin()
	if err != nil {
		t.Fatal(err)
	}
	body := strings.Repeat("x", maxBody)
	resp, text := h.do(t, request{path: "/mcp?doctor=" + k.Ticket, body: body, header: legacy("Mcp-Name", "n", "Host", "localhost")})
	var e DoctorEcho
	if err := json.Unmarshal([]byte(text), &e); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %.200s", resp.StatusCode, text)
	}
	auth := sha256.Sum256([]byte("Bearer " + goodToken))
	if e.Proof != k.Proof || e.Bytes != maxBody || e.Host != "localhost" || e.Headers["Mcp-Name"] != "n" || e.Authorization != hex.EncodeToString(auth[:]) || e.Named {
		t.Errorf("got %+v", e)
	}
	if strings.Contains(h.log.String(), k.Ticket) || strings.Contains(h.log.String(), k.Proof) {
		t.Error("the log has the ticket")
	}

	resp, _ = h.do(t, request{path: "/mcp?doctor=" + k.Ticket, body: body + "x"})
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a longer body: %d", resp.StatusCode)
	}
}

func TestWithoutATicketTheEndpointIsAsEver(t *testing.T) {
	h := start(t, testConfig(t))
	late := time.Now()
	h.tickets.now = func() time.Time { return late }
	ended, _ := h.tickets.begin()
	h.tickets.end(ended.Ticket)
	expired, _ := h.tickets.begin()
	late = late.Add(ticketLife)
	for name, query := range map[string]string{"none": "", "empty": "?doctor=", "wrong": "?doctor=x", "unreadable": "?doctor=%zz", "ended": "?doctor=" + ended.Ticket, "expired": "?doctor=" + expired.Ticket} {
		if resp, body := h.do(t, request{path: "/mcp" + query, body: "{}"}); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	live, _ := h.tickets.begin()
	if resp, _ := h.do(t, request{method: http.MethodGet, path: "/mcp?doctor=" + live.Ticket}); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("GET with a ticket: %d", resp.StatusCode)
	}
	for range maxTickets {
		if _, err := h.tickets.begin(); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := h.tickets.find(live.Ticket); ok {
		t.Error("more tickets are open than may be")
	}
}

func TestTicketHoldsAStreamOpen(t *testing.T) {
	h := start(t, testConfig(t))
	k, _ := h.tickets.begin()
	resp := h.open(t, t.Context(), request{path: "/mcp?doctor=" + k.Ticket + "&hold=350&tick=100"})
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers %v", resp.Header)
	}
	var ticks []DoctorTick
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if raw, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var tick DoctorTick
			if err := json.Unmarshal([]byte(raw), &tick); err != nil {
				t.Fatal(err)
			}
			ticks = append(ticks, tick)
		}
	}
	if n := len(ticks); n < 3 || !ticks[n-1].Done || ticks[n-1].Ms < 350 || ticks[0].Ms > 100 {
		t.Errorf("ticks %+v", ticks)
	}
}

func TestFacts(t *testing.T) {
	c := testConfig(t)
	c.AllowedRoots = []string{filepath.Dir(c.StateDir)}
	h := start(t, c)
	f := doctored{h.Gateway}.Facts(t.Context())
	if f.PID != os.Getpid() || f.Program == "" || f.Replaced || len(f.Projects) != 0 {
		t.Errorf("got %+v", f)
	}
	if len(f.Daemons) != 1 || f.Daemons[0].Up || f.Daemons[0].Code == "" {
		t.Errorf("daemons %+v", f.Daemons)
	}
	copied := filepath.Join(t.TempDir(), "gateway")
	for _, text := range []string{"a", "b"} {
		if err := os.WriteFile(copied+"."+text, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(copied + ".a")
	if err != nil {
		t.Fatal(err)
	}
	if p := (program{copied + ".a", info}); p.replaced() {
		t.Error("it is the same file")
	}
	if err := os.Rename(copied+".b", copied+".a"); err != nil {
		t.Fatal(err)
	}
	if p := (program{copied + ".a", info}); !p.replaced() {
		t.Error("an update is not seen")
	}
	var _ admin.Doctor = doctored{}
}
