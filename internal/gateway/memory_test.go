package gateway

import (
	"context"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestMemoryIsTunedUnlessTheEnvironmentSays(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	for _, c := range []struct {
		env     map[string]string
		percent int
		limit   int64
	}{
		{map[string]string{"GOGC": "100", "GOMEMLIMIT": "off"}, 100, math.MaxInt64},
		{map[string]string{"GOGC": "100"}, 100, memoryLimit},
		{nil, gcPercent, memoryLimit},
	} {
		TuneMemory(func(key string) string { return c.env[key] })
		got, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
		if got != c.percent || limit != c.limit {
			t.Errorf("with %v: %d percent and a limit of %d, want %d and %d", c.env, got, limit, c.percent, c.limit)
		}
	}
}

func TestMemoryIsGivenBackAfterWork(t *testing.T) {
	g := open(t, testConfig(t), io.Discard)
	defer g.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	garbage := make([]byte, 64<<20)
	for i := range garbage {
		garbage[i] = 1 // so that it is really there
	}
	runtime.KeepAlive(garbage)
	go func() {
		defer close(done)
		g.rest(ctx, 50*time.Millisecond)
	}()
	unused := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.HeapIdle - m.HeapReleased
	}
	for deadline := time.Now().Add(30 * time.Second); unused() > 48<<20; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of the heap are still held", unused())
		}
	}
	cancel()
	<-done
	if err := g.ping(t.Context()); err != nil {
		t.Errorf("the store after a rest: %v", err)
	}
}
