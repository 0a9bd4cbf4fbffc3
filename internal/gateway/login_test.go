package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"agentrelay/internal/client"
	"agentrelay/internal/mailbox"
	"agentrelay/internal/principal"
)

const callback = "http://127.0.0.1:9/callback"

// login registers a client and gets its tokens, with the owner's consent.
func login(t *testing.T, ctx context.Context, h *http.Client, mcpURL, name string) (server *client.Server, clientID, token string) {
	t.Helper()
	server, err := client.Discover(ctx, h, mcpURL)
	if err != nil {
		t.Fatal(err)
	}
	if clientID, err = server.Register(ctx, name, callback); err != nil {
		t.Fatal(err)
	}
	flow := server.Authorize(clientID, "", callback)
	back, err := flow.Consent(ctx, "correct horse battery staple 42", client.Allow)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := flow.Redeem(ctx, back)
	if err != nil {
		t.Fatal(err)
	}
	return server, clientID, tokens.AccessToken
}

// TestTwoClientsTalk is the main job with nothing in the place of another part.
func TestTwoClientsTalk(t *testing.T) {
	log := &logBuffer{}
	g := open(t, testConfig(t), log)
	g.oauth = g.oauth.(fakeTokens).authorizationServer
	r := run(t, g, log)
	transport := &http.Transport{}
	h := &http.Client{Transport: transport}
	ctx := t.Context()

	serverA, idA, tokenA := login(t, ctx, h, r.url+"/mcp", "A")
	serverB, _, tokenB := login(t, ctx, h, r.url+"/mcp", "B")
	a, err := serverA.Connect(ctx, "A", tokenA)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := serverB.Connect(ctx, "B", tokenB)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	call := func(s *client.Session, tool string, in, out any) {
		t.Helper()
		if err := s.Call(ctx, tool, in, out); err != nil {
			t.Fatalf("%s: %v", tool, err)
		}
	}
	call(a, "register_peer", map[string]any{"peerId": "a", "kind": "chat"}, nil)
	call(b, "register_peer", map[string]any{"peerId": "b", "kind": "chat"}, nil)
	call(a, "send_peer_message", map[string]any{"messageId": firstID, "fromPeerId": "a", "toPeerId": "b", "text": secretly}, nil)
	var read mailbox.GetPeerMessageOut
	call(b, "get_peer_message", map[string]any{"messageId": firstID, "peerId": "b"}, &read)
	if read.Message.Text != secretly {
		t.Errorf("B read %q", read.Message.Text)
	}

	// What the owner changes holds from the next request on.
	if _, err := g.clients.SetPermissions(ctx, idA, nil, principal.Set{principal.Mailbox}); err != nil {
		t.Fatal(err)
	}
	var refused *client.ToolError
	if err := a.Call(ctx, "list_peers", map[string]any{}, nil); !errors.As(err, &refused) || refused.Code != "not_permitted" || !strings.Contains(refused.Hint, "gateway clients allow "+idA+" mailbox") {
		t.Errorf("without the permission: %v", err)
	}
	if _, err := g.clients.Revoke(ctx, idA); err != nil {
		t.Fatal(err)
	}
	if resp, _ := r.do(t, request{path: "/mcp", header: legacy("Authorization", "Bearer "+tokenA), body: rpc(false, "ping", nil)}); resp.StatusCode != 401 || !strings.Contains(resp.Header.Get("WWW-Authenticate"), `error="invalid_token"`) {
		t.Errorf("after the revocation: %d", resp.StatusCode)
	}
	s, err := g.Status(ctx)
	if err != nil || s.Clients.Total != 2 || s.Clients.Authorized != 1 || s.Peers.Active != 2 || s.Peers.Unprocessed != 1 {
		t.Errorf("%+v, %v", s, err)
	}

	transport.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	r.stopIt()
	if err := within(t, "the stop", r.ended); err != nil {
		t.Error(err)
	}
	for _, secret := range []string{secretly, tokenA, tokenB, "correct horse"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q", secret)
		}
	}
}
