package events_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"agentrelay/internal/events"
)

// BenchmarkCommitToCallback measures how long after its commit a message rings at
// the receiver of its peer: 500 peers with a subscription each, 50 messages a
// second, and one receiver that never answers. It prints the 50th and 99th of a
// hundred, in milliseconds.
func BenchmarkCommitToCallback(b *testing.B) {
	const peers, pace = 500, time.Second / 50
	var mu sync.Mutex
	arrived := map[string]time.Time{}
	stop := make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"verification"`) {
			w.Write(body)
			return
		}
		if r.URL.Path == "/peer-0" {
			<-stop
			return
		}
		var m struct{ Data struct{ MessageID string } }
		_ = json.Unmarshal(body, &m)
		mu.Lock()
		arrived[m.Data.MessageID] = time.Now()
		mu.Unlock()
	}))
	defer receiver.Close()
	defer close(stop)
	var none *tlsReceiver
	dialer := none.dialer(true)
	o := events.Options{ChallengesPerMinute: 60 * peers, Client: dialer.Client(), CheckURL: dialer.CheckURL}
	defer o.Client.CloseIdleConnections()
	box := newBox(b, b.TempDir()+"/state", o)
	defer box.stop()
	for i := range peers {
		id := fmt.Sprintf("peer-%d", i)
		box.peers.peers[id] = events.Peer{Owner: box.who.Owner, PeerID: id, Generation: 1}
		box.subscribe(id, func(in *events.SubscribeIn) { in.URL = receiver.URL + "/" + id })
	}
	committed := map[string]time.Time{}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := 0; b.Loop(); i++ {
		<-tick.C
		if i%10 == 0 {
			box.send("peer-0") // the one that never answers
		}
		id := uuid.NewString()
		box.sendAs(id, fmt.Sprintf("peer-%d", 1+i%(peers-1)))
		committed[id] = time.Now()
	}
	var took []time.Duration
	for deadline := time.Now().Add(10 * time.Second); len(took) < len(committed); time.Sleep(10 * time.Millisecond) {
		took = took[:0]
		mu.Lock()
		for id, at := range committed {
			if ring, ok := arrived[id]; ok {
				took = append(took, ring.Sub(at))
			}
		}
		mu.Unlock()
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d messages rang", len(took), len(committed))
		}
	}
	slices.Sort(took)
	for _, share := range []int{50, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*share/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", share))
	}
}
