package agents

import (
	"testing"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

// TestWhatAProviderSendsAgainIsProof: the daemon dies with a prompt whose row
// nobody saw. That it ran shows in the provider's own history; how it ended does
// not.
func TestWhatAProviderSendsAgainIsProof(t *testing.T) {
	for _, version := range []string{paseotest.V01, paseotest.V05} {
		t.Run(version, func(t *testing.T) {
			r := started(t, version)
			in := r.createIn("before", "hi")
			in.Provider = "fake-replay/echo"
			made, err := r.s.CreateAgent(t.Context(), r.who, in)
			if err != nil {
				t.Fatal(err)
			}
			r.wait("before", made.AgentID)
			// The row is not seen live: the gateway loses its connection before.
			d := r.daemon[here]
			d.Order(paseotest.Fault{Request: "send_agent_message_request", Act: paseotest.Cut})
			receipt, err := r.s.SendAgentPrompt(t.Context(), r.who, r.sendIn("odd", made.AgentID, "sleep 60"))
			if err != nil || receipt.State != Unknown {
				t.Fatalf("%+v, %v", receipt, err)
			}
			row, _, err := r.s.read(t.Context(), byKey, r.who.Owner, here, "odd")
			if err != nil {
				t.Fatal(err)
			}
			d.Order(paseotest.Fault{Request: "send_agent_message_request", Stage: paseotest.Done, Act: paseotest.Crash})
			r.halt()
			r.stranger(paseo.Prompt{AgentID: made.AgentID, Text: marker("odd") + "\nsleep 60", MessageID: row.promptID})
			if err := d.Restart(); err != nil {
				t.Fatal(err)
			}
			r.start()
			eventually(t, "the receipt", func() bool { return r.receipt("odd").State == Submitted })
			if out := r.wait("odd", made.AgentID); out.Status != "unknown" || out.TerminalKind != nil || out.ReceiptState != Submitted {
				t.Errorf("%s", asJSON(t, out))
			}
			if n := r.ran("odd"); n != 1 {
				t.Errorf("it ran %d times", n)
			}
		})
	}
}

// stranger gives a prompt over a connection of its own, which may be lost.
func (r *rig) stranger(p paseo.Prompt) {
	r.t.Helper()
	ctx, cancel := contextOf()
	c := paseo.New(paseo.Options{Dial: r.daemon[here].Dial})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	_ = c.SendMessage(ctx, p)
	cancel()
	<-ended
}
