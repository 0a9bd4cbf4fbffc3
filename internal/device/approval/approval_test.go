package approval

import (
	"encoding/json"
	"sync"
	"testing"
)

func question() Question {
	return Question{Device: "laptop", Tool: "run", Args: json.RawMessage(`{"cmd":"ls"}`), Reason: "to look"}
}

// TestOneWins lets all four ways to decide race a thousand times: one wins, and
// every party reads the same outcome.
func TestOneWins(t *testing.T) {
	wins := map[State]int{}
	for range 1000 {
		a := New(question())
		shown := a.Question.Hash()
		var start, end sync.WaitGroup
		start.Add(1)
		seen, won := make([]Outcome, 4), make([]bool, 4)
		for i, decide := range []func() (Outcome, bool){
			func() (Outcome, bool) { return a.Allow(shown, false) },
			func() (Outcome, bool) { return a.Decide(Outcome{State: Denied}) },
			func() (Outcome, bool) { return a.Decide(Outcome{State: Expired}) },
			func() (Outcome, bool) { return a.Decide(Outcome{State: Withdrawn, Why: "cancelled"}) },
		} {
			end.Go(func() {
				start.Wait()
				seen[i], won[i] = decide()
			})
		}
		start.Done()
		end.Wait()
		<-a.Done()
		winners := 0
		for i := range seen {
			if seen[i] != a.Outcome() {
				t.Fatalf("one party saw %+v, the outcome is %+v", seen[i], a.Outcome())
			}
			if won[i] {
				winners++
			}
		}
		if winners != 1 {
			t.Fatalf("%d parties won", winners)
		}
		wins[a.Outcome().State]++
	}
	t.Logf("won by %v", wins)
}

func TestOnlyWhatWasShownIsAllowed(t *testing.T) {
	shown := question()
	for name, change := range map[string]func(*Question){
		"args":   func(q *Question) { q.Args = json.RawMessage(`{"cmd":"rm -rf /"}`) },
		"tool":   func(q *Question) { q.Tool = "write-file" },
		"reason": func(q *Question) { q.Reason = "" },
		"digest": func(q *Question) { q.Digest = "another" },
	} {
		other := question()
		change(&other)
		if o, _ := New(other).Allow(shown.Hash(), true); o.State != Denied || o.Always {
			t.Errorf("%s: %+v", name, o)
		}
		a := New(question())
		change(&a.Question) // after the prompt appeared
		if o, _ := a.Allow(shown.Hash(), false); o.State != Denied {
			t.Errorf("%s changed meanwhile: %+v", name, o)
		}
	}
	a := New(question())
	if o, won := a.Allow(shown.Hash(), true); o.State != Allowed || !o.Always || !won {
		t.Errorf("%+v %v", o, won)
	}
}
