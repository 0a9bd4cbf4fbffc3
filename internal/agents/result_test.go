package agents

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
	"agentrelay/internal/store"
)

// TestHowRunsEnd: what is said of each end is what was seen, told once.
func TestHowRunsEnd(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		for _, c := range []struct {
			prompt, status, kind string
			act                  func(r *rig, agentID string)
		}{
			{"hello", "idle", "result", nil},
			{"fail", "error", "error", nil},
			{"crash", "error", "error", nil},
			{"sleep 30", "canceled", "canceled", func(r *rig, agentID string) {
				r.running(agentID)
				out, err := r.s.CancelAgent(r.t.Context(), r.who, AgentIn{OnHost{here}, agentID})
				if err != nil || !out.Success {
					r.t.Errorf("%+v, %v", out, err)
				}
			}},
		} {
			t.Run(c.prompt, func(t *testing.T) {
				r := started(t, version)
				in := r.createIn("warm", "hi")
				r.subs.subscribe(in.WorkspaceID, "chat")
				if _, err := r.s.CreateAgent(t.Context(), r.who, in); err != nil {
					t.Fatal(err)
				}
				agentID := r.receipt("warm").AgentID
				r.wait("warm", agentID)
				r.send("one", agentID, c.prompt)
				if c.act != nil {
					c.act(r, agentID)
				}
				out := r.wait("one", agentID)
				if out.Status != c.status && (c.status != "idle" || out.Status != "result_available") || out.TerminalKind == nil || !out.SavedResult {
					t.Errorf("%s", asJSON(t, out))
				}
				r.tells("one", c.kind)
				r.again()
				if again := r.result("one"); again.Status != out.Status {
					t.Errorf("later: %s", asJSON(t, again))
				}
				r.tells("one", c.kind)
			})
		}
	})
}

// TestRestartsHideOutcomes: a daemon that was restarted while an agent ran says
// that the agent is idle, or runs. Neither is believed.
func TestRestartsHideOutcomes(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		for _, how := range []string{"kill", "terminate", "read by another client"} {
			for _, provider := range []string{"fake/echo", "fake-replay/echo"} {
				t.Run(how+" "+provider, func(t *testing.T) {
					r := started(t, version)
					in := r.createIn("lost", "sleep 30")
					in.Provider = provider
					r.subs.subscribe(in.WorkspaceID, "chat")
					receipt, err := r.s.CreateAgent(t.Context(), r.who, in)
					if err != nil || receipt.State != Submitted {
						t.Fatalf("%+v, %v", receipt, err)
					}
					r.running(receipt.AgentID)
					eventually(t, "the prompt in the timeline", func() bool {
						row, _, err := r.s.read(t.Context(), byKey, r.who.Owner, here, "lost")
						return err == nil && row.epoch != ""
					})
					if how != "read by another client" {
						restart(t, r, how)
					} else {
						r.halt()
						restart(t, r, "kill")
						other := paseo.New(paseo.Options{HostID: here, Dial: r.daemon[here].Dial})
						runAside(t, other)
						if _, err := other.Timeline(t.Context(), paseo.TimelineQuery{AgentID: receipt.AgentID}); err != nil {
							t.Fatal(err)
						}
						r.again()
					}
					out := r.wait("lost", receipt.AgentID)
					if out.Status != "unknown" || out.TerminalKind != nil || out.TerminalSeen != nil || out.ReceiptState != Submitted {
						t.Errorf("%s", asJSON(t, out))
					}
					r.tells("lost", "error")
					if n := r.ran("lost"); n != 1 {
						t.Errorf("ran %d times", n)
					}
				})
			}
		}
	})
}

func restart(t *testing.T, r *rig, how string) {
	t.Helper()
	if r.stop != nil {
		before := r.clients[here].Status().Generation
		defer eventually(t, "another connection", func() bool {
			st := r.clients[here].Status()
			return st.Generation > before && st.State == paseo.Up
		})
	}
	if how == "kill" {
		r.daemon[here].Kill()
	} else {
		r.daemon[here].Terminate()
	}
	if err := r.daemon[here].Restart(); err != nil {
		t.Fatal(err)
	}
}

// TestAResultOutlivesItsTimeline: what ended before the daemon died is kept.
func TestAResultOutlivesItsTimeline(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		agentID := r.create("kept", "hello")
		r.wait("kept", agentID)
		restart(t, r, "kill")
		if _, err := r.s.GetAgentResult(t.Context(), r.who, GetAgentResultIn{OnHost: OnHost{here}, AgentID: agentID}); err != nil {
			t.Fatal(err)
		}
		if out := r.result("kept"); !strings.Contains(text(out.LastMessage), "hello") || out.Status == "unknown" {
			t.Errorf("%s", asJSON(t, out))
		}
	})
}

// TestReplacedByAnotherClient: the run of a prompt that somebody else's prompt has
// replaced is not taken for done.
func TestReplacedByAnotherClient(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		agentID := r.create("ours", "sleep 30")
		r.running(agentID)
		if err := r.clients[here].SendMessage(t.Context(), paseo.Prompt{AgentID: agentID, Text: "theirs", MessageID: "theirs-1"}); err != nil {
			t.Fatal(err)
		}
		out := r.wait("ours", agentID)
		if out.Status != "canceled" && out.Status != "unknown" || strings.Contains(text(out.LastMessage), "theirs") {
			t.Errorf("%s", asJSON(t, out))
		}
	})
}

// TestAResultBehindLaterTurns is found although the gateway was away when it came.
func TestAResultBehindLaterTurns(t *testing.T) {
	versions(t, func(t *testing.T, version string) {
		r := started(t, version)
		agentID := r.create("early", "sleep 1.2")
		r.halt()
		aside := paseo.New(paseo.Options{HostID: here, Dial: r.daemon[here].Dial})
		runAside(t, aside)
		idle := func() bool {
			a, err := aside.FetchAgent(t.Context(), agentID)
			return err == nil && a.Status == paseo.AgentIdle
		}
		eventually(t, "the end", idle)
		r.start()
		out := r.wait("early", agentID)
		if out.Status != "result_available" || text(out.LastMessage) != "slept 1.2" {
			t.Errorf("%s", asJSON(t, out))
		}
	})
}

func runAside(t *testing.T, c *paseo.Client) {
	t.Helper()
	done := make(chan struct{})
	ctx, cancel := contextOf()
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "a connection", func() bool { _, ok := c.Info(); return ok })
}

// TestClocksDoNotMatter: a gateway whose clock is wrong finds the same.
func TestClocksDoNotMatter(t *testing.T) {
	for _, skew := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		versions(t, func(t *testing.T, version string) {
			r := newRig(t, version)
			r.o.Now = func() time.Time { return time.Now().Add(skew) }
			r.start()
			agentID := r.create("skewed", "hello")
			if out := r.wait("skewed", agentID); !strings.Contains(text(out.LastMessage), "hello") || out.Status == "unknown" {
				t.Errorf("%v: %s", skew, asJSON(t, out))
			}
		})
	}
}

func TestWaiting(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("slow", "sleep 3")
	ms := MinTimeoutMs
	in := WaitForAgentResultIn{OnHost: OnHost{here}, RequestID: "slow", AgentID: agentID, TimeoutMs: &ms}
	began := time.Now()
	out, err := r.s.WaitForAgentResult(t.Context(), r.who, in)
	if took := time.Since(began); err != nil || out.Status != "running" || out.Reason != reasonBudget || !out.WaitTimedOut || !out.RetrySafe || took < time.Second || took > 10*time.Second {
		t.Errorf("after %v: %s, %v", took, asJSON(t, out), err)
	}
	if out := r.wait("slow", agentID); out.Status != "idle" || time.Since(began) > 15*time.Second {
		t.Errorf("after %v: %s", time.Since(began), asJSON(t, out))
	}
	in.TurnID = "another"
	if out, err := r.s.WaitForAgentResult(t.Context(), r.who, in); err != nil || out.Reason != reasonTurnUnmatched || out.LastMessage != nil {
		t.Errorf("%+v, %v", out, err)
	}
	in.AgentID = "4e3e1f44-a387-4a8a-b927-bf88c3674964"
	if _, err := r.s.WaitForAgentResult(t.Context(), r.who, in); kindOf(err) != "agent_mismatch" {
		t.Error(err)
	}
	in.RequestID = "never"
	if _, err := r.s.WaitForAgentResult(t.Context(), r.who, in); kindOf(err) != "unknown_dispatch" {
		t.Error(err)
	}
}

// TestSearch gives each reason why a prompt is not found in a timeline.
func TestSearch(t *testing.T) {
	mark := func(id string) string { return marker(id) + "\nwork" }
	user := func(seq int64, turn, text, id string) paseo.Entry {
		return paseo.Entry{TurnID: turn, SeqStart: seq, SeqEnd: seq, Item: paseo.Item{Type: "user_message", Text: text, ClientMessageID: id}, Raw: []byte(`{}`)}
	}
	said := func(seq int64, turn, text string) paseo.Entry {
		return paseo.Entry{TurnID: turn, SeqStart: seq, SeqEnd: seq, Item: paseo.Item{Type: "assistant_message", Text: text}, Raw: []byte(fmt.Sprintf(`{"seq":%d}`, seq))}
	}
	r := row{requestID: "a", promptID: "p", agentID: "agent"}
	for name, c := range map[string]struct {
		entries       []paseo.Entry
		found, newer  bool
		reason, last  string
		older, ending bool
	}{
		"by id":              {entries: []paseo.Entry{user(1, "t", mark("a"), "p"), said(2, "t", "yes")}, found: true, last: "yes", ending: true},
		"by marker":          {entries: []paseo.Entry{user(1, "t", mark("a"), ""), said(2, "t", "yes")}, found: true, last: "yes", ending: true},
		"without turns":      {entries: []paseo.Entry{user(1, "", mark("a"), ""), said(2, "", "yes"), user(3, "", "next", ""), said(4, "", "no")}, found: true, newer: true, last: "yes", ending: true},
		"a later turn":       {entries: []paseo.Entry{user(1, "t", mark("a"), "p"), said(2, "t", "yes"), user(3, "u", "next", ""), said(4, "u", "no")}, found: true, newer: true, last: "yes", ending: true},
		"an earlier answer":  {entries: []paseo.Entry{said(1, "s", "old"), user(2, "t", mark("a"), "p")}, found: true, ending: true},
		"shared":             {entries: []paseo.Entry{user(1, "t", mark("a"), "p"), user(2, "t", "also", ""), said(3, "t", "yes")}, found: true, reason: reasonShared, last: "yes", ending: true},
		"none":               {entries: []paseo.Entry{said(1, "t", "yes")}, reason: reasonNoMarker, ending: true},
		"none yet":           {entries: []paseo.Entry{said(1, "t", "yes")}, reason: reasonNoMarker, older: true},
		"two":                {entries: []paseo.Entry{user(1, "s", mark("a"), ""), user(2, "t", mark("a"), "")}, reason: reasonAmbiguous, ending: true},
		"two, one by id":     {entries: []paseo.Entry{user(1, "s", mark("a"), ""), user(2, "t", mark("a"), "p"), said(3, "t", "yes")}, found: true, last: "yes", ending: true},
		"another's":          {entries: []paseo.Entry{user(1, "t", mark("ab"), "")}, reason: reasonNoMarker, ending: true},
		"in the middle":      {entries: []paseo.Entry{user(1, "t", "quote: "+mark("a"), "")}, reason: reasonNoMarker, ending: true},
		"merged by a replay": {entries: []paseo.Entry{user(1, "", "sleep 10"+mark("a"), "")}, reason: reasonNoMarker, ending: true},
	} {
		var got turn
		ending := got.match(c.entries, r, c.older)
		last := ""
		if m := got.lastMessage(); m != nil {
			last = *m
		}
		if got.found != c.found || got.newer != c.newer || got.reason != c.reason || last != c.last || ending != c.ending {
			t.Errorf("%s: %+v, %v", name, got, ending)
		}
	}
}

// TestStoredResultsAreBounded: the newest rows are kept, and what is left out is
// said.
func TestStoredResultsAreBounded(t *testing.T) {
	big := strings.Repeat("x", 64<<10)
	tr := turn{found: true, epoch: "e", marker: paseo.Entry{SeqEnd: 1}}
	for i := range 100 {
		tr.rows = append(tr.rows, paseo.Entry{SeqEnd: int64(i + 2), Item: paseo.Item{Type: "assistant_message", Text: fmt.Sprint("text ", i)}, Raw: []byte(fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, big))})
	}
	for name, tr := range map[string]turn{
		"many rows": tr,
		"one giant": {found: true, epoch: "e", rows: []paseo.Entry{{SeqEnd: 2, Item: paseo.Item{Type: "assistant_message", Text: strings.Repeat("ü", 2<<20)}, Raw: []byte(`{"x":"` + strings.Repeat("ü", 2<<20) + `"}`)}}},
		"escaped":   {found: true, epoch: "e", rows: []paseo.Entry{{SeqEnd: 2, Item: paseo.Item{Type: "assistant_message", Text: strings.Repeat("\x01", 256<<10)}, Raw: []byte(`{}`)}}},
	} {
		raw, _, err := savedResult(row{}, tr)
		var v saved
		if err != nil || len(raw) > maxOutput || json.Unmarshal(raw, &v) != nil || v.Reason != reasonOutput || v.ReadStatus != partialResult {
			t.Errorf("%s: %d bytes, %v, %s %s", name, len(raw), err, v.Reason, v.ReadStatus)
		}
		if name == "many rows" && (len(v.Entries) < 10 || v.EntriesOmitted != 100-len(v.Entries) || text(v.LastMessage) != "text 99" || v.EndCursor.Seq != 101 || v.MarkerCursor.Seq != 1) {
			t.Errorf("%d entries, %d omitted, %s", len(v.Entries), v.EntriesOmitted, text(v.LastMessage))
		}
	}
}

func TestTimelinePages(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("one", "tool")
	r.wait("one", agentID)
	limit := 2
	in := GetAgentResultIn{OnHost: OnHost{here}, AgentID: agentID, Limit: &limit}
	page, err := r.s.GetAgentResult(t.Context(), r.who, in)
	if err != nil || len(page.Entries) != 2 || !page.HasOlder || page.Gap || page.CompletionConfirmed || page.StartCursor == nil {
		t.Fatalf("%+v, %v", page, err)
	}
	in.Direction, in.Cursor = paseo.Before, page.StartCursor
	older, err := r.s.GetAgentResult(t.Context(), r.who, in)
	if err != nil || len(older.Entries) == 0 || older.EndCursor.Seq >= page.StartCursor.Seq {
		t.Errorf("%+v, %v", older, err)
	}
	in.Cursor = nil
	if _, err := r.s.GetAgentResult(t.Context(), r.who, in); kindOf(err) != "invalid_arguments" {
		t.Error(err)
	}
	in.Direction, in.Cursor = paseo.After, &paseo.Cursor{Epoch: "gone", Seq: 1}
	if stale, err := r.s.GetAgentResult(t.Context(), r.who, in); err != nil || !stale.StaleCursor || !stale.Reset {
		t.Errorf("%+v, %v", stale, err)
	}
	r.send("big", agentID, "bigtool")
	r.wait("big", agentID)
	all, err := r.s.GetAgentResult(t.Context(), r.who, GetAgentResultIn{OnHost: OnHost{here}, AgentID: agentID})
	if err != nil || len(asJSON(t, all)) > maxOutput {
		t.Errorf("%d bytes, %v", len(asJSON(t, all)), err)
	}
}

// TestPagesFit: an answer has what fits, from the end that was asked for, and its
// cursor goes on where it stops.
func TestPagesFit(t *testing.T) {
	var entries []paseo.Entry
	for i := range 40 {
		entries = append(entries, paseo.Entry{SeqStart: int64(i + 1), SeqEnd: int64(i + 1), Raw: []byte(`"` + strings.Repeat("x", 100_000) + `"`)})
	}
	for _, direction := range []paseo.Direction{paseo.Tail, paseo.Before, paseo.After} {
		p := TimelinePage{Direction: direction, Epoch: "e"}
		p.fit(entries)
		if !p.GatewayTruncated || len(asJSON(t, p)) > maxOutput || len(p.Entries) < 5 {
			t.Errorf("%s: %d entries", direction, len(p.Entries))
		}
		if direction == paseo.After && (!p.HasNewer || p.EndCursor.Seq != int64(len(p.Entries))) || direction != paseo.After && (!p.HasOlder || p.StartCursor.Seq != int64(41-len(p.Entries))) {
			t.Errorf("%s: %+v %+v", direction, p.StartCursor, p.EndCursor)
		}
	}
	p := TimelinePage{}
	p.fit([]paseo.Entry{{SeqEnd: 1, Raw: []byte(`{"seqEnd":1,"item":{"type":"assistant_message","text":"` + strings.Repeat("x", 2<<20) + `"}}`)}})
	if len(p.Entries) != 1 || len(asJSON(t, p)) > maxOutput || !strings.Contains(string(p.Entries[0]), "gatewayTruncated") {
		t.Errorf("a giant row: %d bytes", len(asJSON(t, p)))
	}
}

// openDispatches counts what is still followed.
func openDispatches(t *testing.T, r *rig) (n int) {
	t.Helper()
	err := store.Read(t.Context(), r.store, func(q *store.Reader) error {
		return q.QueryRow(`SELECT count(*) FROM dispatches WHERE closed_at IS NULL`).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNothingIsFollowedForEver(t *testing.T) {
	r := started(t, paseotest.V10)
	agentID := r.create("a", "hello")
	r.wait("a", agentID)
	for i := range 5 {
		id := fmt.Sprint("b", i)
		r.send(id, agentID, "hello")
		r.wait(id, agentID)
	}
	f := r.s.followers[here]
	eventually(t, "an end of following", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return openDispatches(t, r) == 0 && len(f.views) == 0 && len(f.agents) == 1
	})
}
