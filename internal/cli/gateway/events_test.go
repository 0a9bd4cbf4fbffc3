package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/config"
	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/sealing"
	"agentrelay/internal/store"
	"agentrelay/internal/wake"
)

// brokenReceiver passes challenges and answers deliveries with 500.
type brokenReceiver struct{}

func (brokenReceiver) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{StatusCode: 500, Body: http.NoBody, Header: http.Header{}, Request: r}
	if strings.Contains(string(body), `"verification"`) {
		resp.StatusCode, resp.Body = 200, io.NopCloser(strings.NewReader(string(body)))
	}
	return resp, nil
}

// withEvents has two subscriptions, one of which ended, and an event that died.
// Their client is not known to the gateway, so nothing is ever sent from here.
func withEvents(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	h.init()
	h.editConfig(`"peerWakeTargets": [{"owner": "local-owner:shared", "peerId": "grok-bot", "generation": 1, "routineId": "mailbox", "credentialFile": "/nowhere/key.json"}]`)
	ctx := context.Background()
	at := func() time.Time { return now.Add(-2 * time.Hour) }
	s, err := store.Open(ctx, store.Options{Dir: h.stateDir(), Now: at})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, err := events.OpenKey(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(h.configPath(), h.env(nil, nil).Getenv)
	if err != nil {
		t.Fatal(err)
	}
	o := wake.EventsOptions(c)
	o.Store, o.Key, o.Client, o.Mailbox, o.Now, o.Offer = s, key, &http.Client{Transport: brokenReceiver{}}, wake.Mailbox{}, at, nil
	e, err := events.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "chatgpt", Permissions: principal.Full()}
	box := mailbox.New(mailbox.Options{Store: s, Now: at, Wake: wake.New(e, nil)})
	defer box.Close()
	for _, id := range []string{"chat-main", "grok-bot"} {
		if _, err := box.RegisterPeer(ctx, who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat}); err != nil {
			t.Fatal(err)
		}
		in := events.SubscribeIn{
			Name: events.PeerMessage, Arguments: json.RawMessage(`{"peerId":"` + id + `"}`), Mode: "webhook",
			URL: "https://connectors.example.com/webhook/very-private-path", Secret: "whsec_" + strings.Repeat("A", 43) + "=",
		}
		if _, err := e.Subscribe(ctx, who, in); err != nil {
			t.Fatal(err)
		}
		if id == "grok-bot" {
			if _, err := e.Unsubscribe(ctx, who, events.UnsubscribeIn{Name: in.Name, Arguments: in.Arguments, URL: in.URL}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = box.SendPeerMessage(ctx, who, mailbox.SendPeerMessageIn{MessageID: "00000000-0000-4000-8000-000000000001", FromPeerID: "grok-bot", ToPeerID: "chat-main", Text: secretText})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first attempt has failed", func() bool {
		out, err := e.Deliveries(ctx, events.DeliveriesIn{})
		return err == nil && len(out.Deliveries) == 1 && len(out.Deliveries[0].Attempts) == 1 && out.Deliveries[0].Attempts[0].Outcome != ""
	})
	e.Close(ctx)
	err = store.Exec(ctx, s, func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE event_deliveries SET state = 'failed', tries = 5`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// editConfig puts a member in front of the config's others.
func (h *home) editConfig(member string) {
	h.t.Helper()
	raw, err := os.ReadFile(h.configPath())
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.configPath(), []byte(strings.Replace(string(raw), "{", "{"+member+",", 1)), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func TestEventsOfANewGateway(t *testing.T) {
	bothWays(t, fresh, func(t *testing.T, h *home) {
		h.golden("events-empty", h.ok("events", "list")+h.ok("events", "list", "--dead")+h.ok("events", "subscriptions")+h.ok("events", "subscriptions", "--all"))
	})
}

func TestEvents(t *testing.T) {
	eventID := regexp.MustCompile(`evt_[0-9a-f]{32}`)
	bothWays(t, withEvents, func(t *testing.T, h *home) {
		shown := h.ok("events", "subscriptions") + h.ok("events", "subscriptions", "--all") + h.ok("events", "list", "--dead")
		h.golden("events", shown)
		if strings.Contains(shown, "very-private-path") || strings.Contains(shown, secretText) {
			t.Errorf("shown: %s", shown)
		}
		subs := decode[events.SubscriptionsOut](t, h.ok("events", "subscriptions", "--json"))
		if len(subs.Subscriptions) != 1 || subs.Subscriptions[0].ClientID != "chatgpt" || len(subs.Targets) != 1 {
			t.Errorf("%+v", subs)
		}
		dead := decode[events.DeliveriesOut](t, h.ok("events", "list", "--dead", "--json"))
		if len(dead.Deliveries) != 1 || dead.Deliveries[0].Attempts[0].Status != 500 {
			t.Errorf("%+v", dead)
		}
		id := eventID.FindString(shown)
		if out := h.ok("events", "resend", id); !strings.Contains(out, id+" is sent again, to 1 receiver") {
			t.Errorf("resending: %s", out)
		}
		if r := h.run("events", "resend", "evt_none"); r.code != ExitFailed || !strings.Contains(r.stderr, "gateway events list") {
			t.Errorf("an unknown event: %+v", r)
		}
		if r := h.run("events", "resend"); r.code != ExitUsage {
			t.Errorf("without an id: %+v", r)
		}
		if r := h.run("events", "list", "--limit", "0"); r.code != ExitUsage && r.code != ExitFailed {
			t.Errorf("a bad limit: %+v", r)
		}
	})
}

func TestResendingTwice(t *testing.T) {
	h := withEvents(t) // and no gateway that would send it
	id := decode[events.DeliveriesOut](t, h.ok("events", "list", "--json")).Deliveries[0].EventID
	h.ok("events", "resend", id)
	if r := h.run("events", "resend", id); r.code != ExitFailed || !strings.Contains(r.stderr, "on its way") {
		t.Errorf("again: %+v", r)
	}
}

func TestLostSealingKey(t *testing.T) {
	h := withEvents(t)
	path := filepath.Join(h.stateDir(), sealing.FileName)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r := h.run("serve")
	if r.code != ExitConfig || !strings.Contains(r.stderr, path) || !strings.Contains(r.stderr, "gateway events forget-secrets") {
		t.Errorf("without the key: %+v", r)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("a new key was made")
	}
	if r := h.run("events", "forget-secrets"); r.code != ExitUsage {
		t.Errorf("without --yes: %+v", r)
	}
	if out := h.ok("events", "forget-secrets", "--yes"); !strings.Contains(out, "1 subscription ended") {
		t.Errorf("forgetting: %s", out)
	}
	h.serve()
	if out := h.ok("status"); !strings.Contains(out, "0 subscriptions") {
		t.Errorf("status: %s", out)
	}
}
