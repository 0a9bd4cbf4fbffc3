package e2e

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"agentrelay/internal/client"
	"agentrelay/internal/e2e/rig"
)

// Nothing that must stay secret leaves through the log at its most talkative,
// the owner's commands or the gateway's errors; and what only needs checking is
// in the database as a hash alone.
func TestSecretsStayInside(t *testing.T) {
	home := rig.NewHome(t, binary)
	home.Configure("log", object{"level": "debug"})
	home.Configure("mailbox", object{"limits": object{"pairPerHour": 2}})
	gateway := home.Serve()
	const text, wrongPassword = "the-text-of-a-message", "not-the-password-of-the-owner"

	c := home.Authorize("Client")
	ctx := t.Context()
	session, err := c.Connect(ctx, "client", c.Token.AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	shown := "" // all that clients and the owner get to see of refusals and lists
	call := func(tool string, arguments object) {
		t.Helper()
		if err := session.Call(ctx, tool, arguments, nil); err != nil {
			shown += err.Error()
			var refused *client.ToolError
			if !errors.As(err, &refused) {
				t.Errorf("%s: %v", tool, err)
				return
			}
			shown += refused.Hint
		}
	}
	call("register_peer", object{"peerId": "a", "kind": "chat"})
	call("register_peer", object{"peerId": "b", "kind": "chat"})
	send := func(id string) {
		t.Helper()
		call("send_peer_message", object{"messageId": id, "fromPeerId": "a", "toPeerId": "b", "text": text + id})
	}
	id := uuid.NewString()
	send(id)
	call("get_peer_message", object{"messageId": id, "peerId": "b"})
	call("ack_peer_message", object{"messageId": id, "peerId": "b"})
	call("send_peer_message", object{"messageId": id, "fromPeerId": "a", "toPeerId": "b", "text": text + "another"}) // key_conflict
	call("send_peer_message", object{"messageId": text, "fromPeerId": text, "toPeerId": text + "!", "text": text})   // invalid_arguments
	call("list_peers", object{"cursor": text})                                                                       // invalid_cursor
	send(uuid.NewString())
	send(uuid.NewString()) // rate_limited

	// A wrong password, a code twice, a refresh and a revocation.
	flow := c.Authorize(c.ID, "", "http://127.0.0.1/callback")
	if _, err := flow.Consent(ctx, wrongPassword, client.Allow); err == nil {
		t.Error("a wrong password was taken")
	} else {
		shown += err.Error()
	}
	if _, err := flow.Redeem(ctx, &url.URL{RawQuery: "code=" + c.Code}); err == nil {
		t.Error("a redirect without state was taken")
	}
	next, err := c.Refresh(ctx, c.ID, c.Token.RefreshToken)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Refresh(ctx, c.ID, "ar_rt_"+wrongPassword); err == nil {
		t.Error("a made-up refresh token was taken")
	} else {
		shown += err.Error()
	}
	if err := c.Revoke(ctx, c.ID, next.RefreshToken); err != nil {
		t.Error(err)
	}
	if _, err := c.Connect(ctx, "revoked", next.AccessToken); err == nil {
		t.Error("a revoked token works")
	}
	for _, command := range [][]string{{"status", "--audit", "100"}, {"clients", "list"}, {"peers", "list"}, {"messages", "list"}, {"config", "check"}} {
		shown += home.OK(command...)
	}
	if code := gateway.Stop(); code != 0 {
		t.Errorf("the gateway ended with %d", code)
	}

	database := ""
	for _, name := range []string{"gateway.db", "gateway.db-wal"} {
		raw, err := os.ReadFile(filepath.Join(home.StateDir, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		database += string(raw)
	}
	if !strings.Contains(database, text+id) {
		t.Error("the database does not hold the message: the test shows nothing")
	}
	secrets := map[string]string{
		"the owner's password": home.Password, "a wrong password": wrongPassword, "the authorization code": c.Code,
		"the access token": c.Token.AccessToken, "the refresh token": c.Token.RefreshToken,
		"the refreshed access token": next.AccessToken, "the refreshed refresh token": next.RefreshToken,
	}
	for what, secret := range secrets {
		if len(secret) < 16 {
			t.Errorf("%s is %q", what, secret)
		}
		if strings.Contains(database, secret) {
			t.Errorf("the database holds %s", what)
		}
	}
	secrets["a message's text"] = text
	for what, secret := range secrets {
		for line := range strings.Lines(gateway.Output()) {
			if strings.Contains(line, secret) {
				t.Errorf("the log holds %s: %s", what, line)
			}
		}
		if strings.Contains(shown, secret) {
			t.Errorf("what is shown holds %s: %s", what, shown)
		}
	}
}
