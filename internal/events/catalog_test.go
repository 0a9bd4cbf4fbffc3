package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"agentrelay/internal/events"
	"agentrelay/internal/fault"
	"agentrelay/internal/store"
)

func TestAttention(t *testing.T) {
	o := events.Options{ResolveHost: func(id string) (string, error) {
		switch id {
		case "", "mac", "local":
			return "local", nil
		case "wsl":
			return "wsl", nil
		}
		return "", errors.New("no such host")
	}}
	inBubble(t, o, func(b *box) {
		publish := func(host, subject string) events.Published {
			t.Helper()
			out, err := store.Write(context.Background(), b.store, func(tx *store.Tx) (events.Published, error) {
				return b.PublishAttention(tx, events.Attention{
					Owner: b.who.Owner, Subject: subject, Kind: "result", RequestID: "req-1", AgentID: "agent-1", WorkspaceID: "wks", RouteID: "route",
					HostID: host, Summary: strings.Repeat("é", 3000), ReadyForReply: true,
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if out := publish("", "req-1:result"); out.Receivers != 0 || out.Duplicate {
			t.Errorf("nobody subscribed: %+v", out)
		}
		subscribe := func(arguments string) string {
			return b.subscribe("dot", func(in *events.SubscribeIn) {
				in.Name, in.Arguments = events.AgentAttention, json.RawMessage(arguments)
			}).ID
		}
		local := subscribe(`{"workspaceId":"wks","routeId":"route"}`)
		if subscribe(`{"routeId":"route","hostId":"mac","workspaceId":"wks"}`) != local {
			t.Error("the local host has two subscriptions")
		}
		if subscribe(`{"workspaceId":"wks","routeId":"route","hostId":"wsl"}`) == local {
			t.Error("two hosts share a subscription")
		}
		if out := publish("", "req-1:result"); out.Receivers != 1 || out.Duplicate {
			t.Errorf("what nobody got is a duplicate: %+v", out)
		}
		if out := publish("local", "req-1:result"); !out.Duplicate || out.Receivers != 1 {
			t.Errorf("published twice: %+v", out)
		}
		if out := publish("wsl", "req-1:result"); out.Receivers != 1 || out.Duplicate {
			t.Errorf("another host's request of the same id: %+v", out)
		}
		b.settled()
		got := b.world.deliveries()
		if len(got) != 2 {
			t.Fatalf("%d deliveries, want 2", len(got))
		}
		for i, host := range []any{nil, "wsl"} {
			data := got[i].member("data").(map[string]any)
			if _, ok := data["acceptancePassed"]; !ok || data["acceptancePassed"] != nil || data["hostId"] != host || len([]rune(data["summary"].(string))) != 2000 {
				t.Errorf("data %v", data)
			}
		}
		_, err := b.Subscribe(context.Background(), b.who, events.SubscribeIn{Name: events.AgentAttention, Mode: "webhook", URL: callbackURL, Secret: secretOf(1),
			Arguments: json.RawMessage(`{"workspaceId":"wks","routeId":"route","hostId":"nowhere"}`)})
		refused(t, err, fault.InvalidArguments)
	})
}

// TestDefinitionsAreSchemas checks what events/list promises: both schemas of
// each event are there and name every member that is sent.
func TestDefinitionsAreSchemas(t *testing.T) {
	inBubble(t, events.Options{}, func(b *box) {
		for _, d := range b.List(b.who) {
			if d.Name == "" || d.Description == "" || !slices.Equal(d.Delivery, []string{"webhook"}) {
				t.Errorf("definition %+v", d)
			}
			for _, raw := range []json.RawMessage{d.InputSchema, d.PayloadSchema} {
				var schema struct {
					Type                 string
					AdditionalProperties *bool
					Required             []string
					Properties           map[string]struct{ Description string }
				}
				if err := json.Unmarshal(raw, &schema); err != nil {
					t.Fatal(err)
				}
				if schema.Type != "object" || schema.AdditionalProperties == nil || *schema.AdditionalProperties {
					t.Errorf("%s: the schema is %s", d.Name, raw)
				}
				for name, p := range schema.Properties {
					if p.Description == "" {
						t.Errorf("%s: %s is not described", d.Name, name)
					}
				}
				for _, name := range schema.Required {
					if _, ok := schema.Properties[name]; !ok {
						t.Errorf("%s: %s is required and not described", d.Name, name)
					}
				}
			}
		}
	})
}

func TestOnlyWhatIsOfferedIsThere(t *testing.T) {
	inBubble(t, events.Options{Offer: []string{events.PeerMessage}}, func(b *box) {
		if list := b.List(b.who); len(list) != 1 || list[0].Name != events.PeerMessage {
			t.Errorf("listed: %v", list)
		}
		in := subscribeTo("dot")
		in.Name, in.Arguments = events.AgentAttention, json.RawMessage(`{"workspaceId":"w","routeId":"r"}`)
		_, err := b.Subscribe(context.Background(), b.who, in)
		refused(t, err, events.UnknownEvent)
	})
}

func TestArgumentOrderDoesNotMatter(t *testing.T) {
	names := []string{"workspaceId", "routeId", "hostId"}
	values := map[string]string{"workspaceId": `"w\u00e9"`, "routeId": `"r"`, "hostId": `"local"`}
	dir := t.TempDir() + "/state"
	synctest.Test(t, func(t *testing.T) {
		b := newBox(t, dir, events.Options{})
		defer b.stop()
		var id string
		for seed := range 6 {
			order := rapid.Permutation(names).Example(seed)
			var members []string
			for _, n := range order {
				members = append(members, `"`+n+`" : `+values[n])
			}
			got := b.subscribe("dot", func(in *events.SubscribeIn) {
				in.Name, in.Arguments = events.AgentAttention, json.RawMessage("{"+strings.Join(members, " , ")+"}")
			}).ID
			if id != "" && got != id {
				t.Errorf("%v gives another id", order)
			}
			id = got
		}
	})
}

func TestNumbers(t *testing.T) {
	for _, k := range append(events.Kinds(), fault.InvalidArguments, fault.NotPermitted, fault.Internal) {
		a, b := events.Sketch.Number(k), events.SEP.Number(k)
		standard := k.Code == fault.InvalidArguments.Code || k.Code == fault.Internal.Code || k.Code == events.UnknownDelivery.Code || k.Code == events.NotResendable.Code
		if a == 0 || b == 0 || (a == b) != standard {
			t.Errorf("%s is %d and %d", k.Code, a, b)
		}
	}
	if events.Sketch.Number(events.CallbackFailed) != -32015 || events.SEP.Number(events.CallbackFailed) != -32027 {
		t.Error("a failed callback has another number than ChatGPT knows")
	}
}
