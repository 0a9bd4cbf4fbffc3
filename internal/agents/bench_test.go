package agents

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo/paseotest"
)

// crowd is a hundred agents, twenty of which run, and fifty calls that wait.
func crowd(b *testing.B) (*rig, []string) {
	b.Helper()
	r := newRig(b, paseotest.V10)
	r.start()
	ids := make([]string, 100)
	in := r.createIn("", "hello")
	for i := range ids {
		in.RequestID = fmt.Sprint("agent-", i)
		receipt, err := r.s.CreateAgent(b.Context(), r.who, in)
		if err != nil {
			b.Fatal(err)
		}
		ids[i] = receipt.AgentID
		r.wait(in.RequestID, ids[i])
	}
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	for i := range 20 {
		r.send(fmt.Sprint("busy-", i), ids[i], "stream 100000 20ms")
	}
	for i := range 50 {
		waiting.Go(func() {
			ms := MaxWaitMs
			for ctx.Err() == nil {
				_, _ = r.s.WaitForAgentResult(ctx, r.who, WaitForAgentResultIn{OnHost: OnHost{here}, RequestID: fmt.Sprint("busy-", i%20), AgentID: ids[i%20], TimeoutMs: &ms})
			}
		})
	}
	b.Cleanup(func() { cancel(); waiting.Wait() })
	return r, ids
}

// BenchmarkStatusInACrowd is the latency of get_agent_status among busy agents,
// over the one connection.
func BenchmarkStatusInACrowd(b *testing.B) {
	r, ids := crowd(b)
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		if _, err := r.s.GetAgentStatus(b.Context(), r.who, AgentIn{OnHost{here}, ids[i%len(ids)]}); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(r.daemon[here].Opened()), "connections")
}

// BenchmarkEventsOfBusyAgents is what a service keeps of events that it was told.
func BenchmarkEventsOfBusyAgents(b *testing.B) {
	crowd(b)
	b.ResetTimer()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	time.Sleep(time.Duration(min(b.N, 5)) * time.Second)
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/(1<<20), "MiB-more")
}
