package wake_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"agentrelay/internal/events"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
	"agentrelay/internal/safedial"
	"agentrelay/internal/store"
	"agentrelay/internal/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMailWakesAndIsRead joins both domains over one store and follows a message
// as its sender sees it.
func TestMailWakesAndIsRead(t *testing.T) {
	ctx := context.Background()
	bodies := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"verification"`) {
			w.Write(body) // it holds the challenge
			return
		}
		bodies <- string(body)
	}))
	defer receiver.Close()

	s, err := store.Open(ctx, store.Options{Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	key, err := events.OpenKey(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	dialer := safedial.New(safedial.Options{AllowLoopback: true})
	client := dialer.Client()
	defer client.CloseIdleConnections()
	e, err := events.New(events.Options{Store: s, Key: key, Client: client, CheckURL: dialer.CheckURL, Mailbox: wake.Mailbox{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer e.Close(ctx)
	box := mailbox.New(mailbox.Options{Store: s, Wake: wake.New(e, nil)})
	defer box.Close()

	who := principal.Principal{Owner: principal.SharedOwner, ClientID: "c", Permissions: principal.Full()}
	for _, id := range []string{"a", "b"} {
		out, err := box.RegisterPeer(ctx, who, mailbox.RegisterPeerIn{PeerID: id, Kind: mailbox.Chat})
		if err != nil || out.Peer.Notification.Path != mailbox.None || out.Peer.Notification.Reason == "" {
			t.Fatalf("%+v, %v", out.Peer.Notification, err)
		}
	}
	sub, err := e.Subscribe(ctx, who, events.SubscribeIn{
		Name: events.PeerMessage, Arguments: json.RawMessage(`{"peerId":"b"}`), Mode: "webhook", URL: receiver.URL, Secret: "whsec_" + strings.Repeat("A", 43) + "=",
	})
	if err != nil {
		t.Fatal(err)
	}
	peers, err := box.ListPeers(ctx, who, mailbox.ListPeersIn{})
	if n := peers.Peers[1].Notification; err != nil || n.Path != mailbox.Events || !n.ExpiresAt.Equal(sub.RefreshBefore.Time) {
		t.Errorf("%+v, %v", n, err)
	}
	sent, err := box.SendPeerMessage(ctx, who, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "a", ToPeerID: "b", Text: "hello"})
	if err != nil || sent.Delivery.Path != mailbox.Events || sent.Delivery.State != mailbox.Queued {
		t.Fatalf("%+v, %v", sent.Delivery, err)
	}
	var got struct {
		Data struct{ MessageID, PeerID string }
	}
	body := <-bodies
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.Data.MessageID != sent.Message.MessageID || got.Data.PeerID != "b" || strings.Contains(body, "hello") {
		t.Errorf("the callback is %s, %v", body, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		out, err := box.GetPeerMessage(ctx, who, mailbox.GetPeerMessageIn{MessageID: sent.Message.MessageID})
		if err != nil {
			t.Fatal(err)
		}
		if d := out.Delivery; d.State == mailbox.CallbackAccepted {
			if d.Attempts != 1 || d.LastAttemptAt.IsZero() || !out.Message.ReadAt.IsZero() {
				t.Errorf("accepted: %+v, read at %v", d, out.Message.ReadAt)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it stays %+v", out.Delivery)
		}
	}
	back, err := box.SendPeerMessage(ctx, who, mailbox.SendPeerMessageIn{MessageID: uuid.NewString(), FromPeerID: "b", ToPeerID: "a", Text: "hi"})
	if err != nil || back.Delivery.Path != mailbox.None || back.Delivery.State != mailbox.DeliveryNone || back.Delivery.Reason == "" {
		t.Errorf("to a peer that nothing wakes: %+v, %v", back.Delivery, err)
	}
	if _, err := box.StopPeer(ctx, who, mailbox.StopPeerIn{PeerID: "b"}); err != nil {
		t.Fatal(err)
	}
}
