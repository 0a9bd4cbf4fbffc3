package paseo_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"agentrelay/internal/agents/paseo"
	"agentrelay/internal/agents/paseo/paseotest"
)

// BenchmarkFetchAgentUnderLoad reads agents while 20 of 100 stream and 50 calls
// wait, all over one connection. It reports the 99th percentile.
func BenchmarkFetchAgentUnderLoad(b *testing.B) {
	d := paseotest.Start(b, paseotest.Options{})
	f := connected(b, quick(d))
	cwd := b.TempDir()
	ids := make([]string, 100)
	for n := range ids {
		a, err := f.CreateAgent(within(b, patience), paseo.NewAgent{Provider: "fake", CWD: cwd, Title: fmt.Sprint("bench ", n)})
		if err != nil {
			b.Fatal(err)
		}
		ids[n] = a.ID
	}
	if err := f.Watch(within(b, patience), ids); err != nil {
		b.Fatal(err)
	}
	busy, stop := context.WithCancel(context.Background())
	defer stop()
	for n, id := range ids[:70] {
		text := "sleep 600"
		if n < 20 {
			text = "stream 100000 10ms"
		}
		if err := f.SendMessage(within(b, patience), paseo.Prompt{AgentID: id, Text: text}); err != nil {
			b.Fatal(err)
		}
	}
	var waiting sync.WaitGroup
	for _, id := range ids[20:70] {
		waiting.Go(func() { _, _ = f.WaitForFinish(busy, id, 10*time.Minute) })
	}
	waiting.Go(func() { // somebody reads the events
		for {
			if _, err := f.sub.Next(busy); err != nil {
				return
			}
		}
	})
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for n := range b.N {
		start := time.Now()
		if _, err := f.FetchAgent(within(b, patience), ids[n%len(ids)]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	b.ReportMetric(float64(p99.Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(d.Opened()), "connections")
	if p99 > 50*time.Millisecond && b.N >= 1000 {
		b.Errorf("p99 is %v", p99)
	}
	stop()
	waiting.Wait()
}

// BenchmarkMemoryOverEvents reads 10,000 rows and reports how much the heap grew.
func BenchmarkMemoryOverEvents(b *testing.B) {
	d := paseotest.Start(b, paseotest.Options{})
	f := connected(b, quick(d))
	a, err := f.CreateAgent(within(b, patience), paseo.NewAgent{Provider: "fake", CWD: b.TempDir(), Title: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Watch(within(b, patience), []string{a.ID}); err != nil {
		b.Fatal(err)
	}
	slow := f.Subscribe() // never read: it must not grow without limit either
	defer slow.Close()
	heap := func() uint64 {
		d.Replace(a.ID) // what the double remembers doesn't count
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	stream := func() {
		if err := f.SendMessage(within(b, patience), paseo.Prompt{AgentID: a.ID, Text: "stream 10000 0s"}); err != nil {
			b.Fatal(err)
		}
		f.turn(a.ID, paseo.TurnCompleted)
	}
	stream() // fills the queue of the slow one
	before := heap()
	b.ResetTimer()
	for range b.N {
		stream()
	}
	b.StopTimer()
	b.ReportMetric((float64(heap())-float64(before))/1024, "heap-KiB-grown")
}
