package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"agentrelay/internal/admin"
	"agentrelay/internal/client"
	"agentrelay/internal/oauth"
)

// trialRedirect is where the doctor's client would be sent back to. Nobody listens
// there: the redirect comes over the owner's socket.
const trialRedirect = "http://127.0.0.1/agent-relay-doctor"

func oauthChecks() []check {
	return []check{{
		id: "oauth.roundtrip", needs: needPublic, budget: time.Minute,
		why: "It is what every client does: find the gateway, register, show you the consent page, get tokens, call a tool, refresh, log out. The doctor does it with a client of its own that is allowed nothing and is removed.",
		run: checkRoundtrip,
	}}
}

// stepError says at which step of the round trip what went wrong.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }

// advice is what to do when a step of the round trip fails although the address leads
// to the gateway.
func advice(step string) string {
	switch step {
	case "discovery":
		return "See public.discovery; a proxy that answers 401 itself, or drops WWW-Authenticate, breaks this too."
	case "registration":
		return "Let the proxy hand on POST /register. After 30 registrations in 10 minutes from one address the gateway itself refuses more for a while."
	case "consent page":
		return "Let the proxy hand on /authorize as it is, with its headers and cookies, and put no page of its own in front."
	case "consent":
		return "Run the doctor again; if it stays so, restart the gateway."
	case "token", "refresh", "logout":
		return "Let the proxy hand on POST /token and /revoke with their bodies, and answer nothing itself."
	}
	return "The gateway's log says more: gateway service logs."
}

func checkRoundtrip(ctx context.Context, v *visit) []finding {
	tools, err := v.roundtrip(ctx)
	var at *stepError
	switch {
	case errors.As(err, &at):
		return one(fail(advice(at.step), "The step %q failed: %s", at.step, sentence(at.err)))
	case err != nil:
		return one(fail(advice(""), "%s", sentence(err)))
	}
	return one(pass("A client was registered, allowed, given tokens and %d tools, refreshed and logged out.", tools))
}

// roundtrip does what a client does, with a client of the doctor's own.
func (v *visit) roundtrip(ctx context.Context) (tools int, err error) {
	server, err := client.Discover(ctx, v.browser, v.config.MCPURL())
	if err != nil {
		return 0, &stepError{"discovery", err}
	}
	for _, endpoint := range []string{server.Meta.AuthorizationEndpoint, server.Meta.TokenEndpoint, server.Meta.RegistrationEndpoint} {
		if !strings.HasPrefix(endpoint, v.config.PublicBaseURL+"/") {
			return 0, &stepError{"discovery", errors.New("the documents name endpoints at another address than publicBaseUrl")}
		}
	}
	id, err := server.Register(ctx, oauth.TrialName, trialRedirect)
	if err != nil {
		return 0, &stepError{"registration", err}
	}
	v.trial(id)
	flow := server.Authorize(id, "", trialRedirect)
	if err := v.seeConsentPage(ctx, flow.URL); err != nil {
		return 0, &stepError{"consent page", err}
	}
	to, err := v.consent(ctx, flow.URL)
	if err != nil {
		return 0, &stepError{"consent", err}
	}
	token, err := flow.Redeem(ctx, to)
	if err != nil {
		return 0, &stepError{"token", withoutBody(err)}
	}
	if tools, err = useTools(ctx, server, token.AccessToken); err != nil {
		return 0, &stepError{"call of a tool", err}
	}
	if token, err = server.Refresh(ctx, id, token.RefreshToken); err != nil {
		return 0, &stepError{"refresh", withoutBody(err)}
	}
	if err := server.Revoke(ctx, id, token.RefreshToken); err != nil {
		return 0, &stepError{"logout", err}
	}
	if _, err := useTools(ctx, server, token.AccessToken); err == nil {
		return 0, &stepError{"logout", errors.New("a token works on after its end")}
	}
	return tools, nil
}

// seeConsentPage opens the page that the owner would see.
func (v *visit) seeConsentPage(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := v.browser.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("it comes with status %d", resp.StatusCode)
	case !strings.Contains(string(page), oauth.TrialName) || !strings.Contains(string(page), "<form"):
		return errors.New("another page comes in its place")
	case resp.Header.Get("Content-Security-Policy") == "":
		return errors.New("it comes without its Content-Security-Policy, which keeps other sites from framing it")
	}
	return nil
}

// consent asks the running gateway, over the owner's socket, for what pressing Allow
// would do.
func (v *visit) consent(ctx context.Context, address string) (*url.URL, error) {
	_, query, _ := strings.Cut(address, "?")
	out, err := admin.ConsentDoctor.Call(ctx, v.running(), admin.DoctorConsentIn{Query: query})
	if err != nil {
		return nil, err
	}
	return url.Parse(out.Redirect)
}

// useTools lists the tools, and calls one that needs no permission if it is there.
func useTools(ctx context.Context, server *client.Server, token string) (int, error) {
	session, err := server.Connect(ctx, "agent-relay-doctor", token)
	if err != nil {
		return 0, err
	}
	defer session.Close()
	names, err := session.Tools(ctx)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if name == "list_hosts" {
			return len(names), session.Call(ctx, name, map[string]any{}, nil)
		}
	}
	return len(names), nil
}

// withoutBody is an error of a token request without what the server answered, which
// may hold tokens when a proxy has changed it.
func withoutBody(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(text)
}
