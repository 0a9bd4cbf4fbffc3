package e2e

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
	"agentrelay/internal/mailbox"
)

// A hundred identical sends at the same time, from two clients and in either
// case of the key, are one message.
func TestHundredIdenticalSends(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Serve()
	var sessions []*client.Session
	for _, name := range []string{"One", "Two"} {
		c := home.Authorize(name)
		s, err := c.Connect(t.Context(), name, c.Token.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sessions = append(sessions, s)
	}
	for _, peer := range []string{"a", "b"} {
		if err := sessions[0].Call(t.Context(), "register_peer", mailbox.RegisterPeerIn{PeerID: peer, Kind: mailbox.Chat}, nil); err != nil {
			t.Fatal(err)
		}
	}
	id := uuid.NewString()
	answers := make([]mailbox.SendPeerMessageOut, 100)
	var wg sync.WaitGroup
	for i := range answers {
		key := id
		if i%3 == 0 {
			key = strings.ToUpper(id)
		}
		wg.Go(func() {
			in := mailbox.SendPeerMessageIn{MessageID: key, FromPeerID: "a", ToPeerID: "b", Text: "once"}
			if err := sessions[i%2].Call(t.Context(), "send_peer_message", in, &answers[i]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	first := 0
	for _, a := range answers {
		if !a.Duplicate {
			first++
		}
		if a.Message != answers[0].Message || a.Message.MessageID != id {
			t.Errorf("one answer is %+v, another %+v", a.Message, answers[0].Message)
		}
	}
	if first != 1 {
		t.Errorf("%d of the calls were not called duplicates", first)
	}
	var inbox mailbox.ListPeerMessagesOut
	if err := sessions[1].Call(t.Context(), "list_peer_messages", mailbox.ListPeerMessagesIn{PeerID: "b"}, &inbox); err != nil || len(inbox.Messages) != 1 || inbox.UnprocessedCount != 1 {
		t.Errorf("the inbox is %+v, %v", inbox, err)
	}
}
