package gateway

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How the garbage collector works, chosen by scripts/bench; docs/performance.md
// has the figures. A call makes about half a megabyte of garbage beside a live
// heap of a few, so Go's default of 100 percent spends a third of the processor
// on collecting. 400 percent spends little, for tens of megabytes under full
// load; 800 percent saves less than it costs in memory. The limit is for bursts
// of large requests, whose garbage 400 percent would let grow to gigabytes.
const (
	gcPercent   = 400
	memoryLimit = 256 << 20
)

// TuneMemory sets how this process collects garbage, but leaves what the
// environment sets with GOGC and GOMEMLIMIT.
func TuneMemory(getenv func(string) string) {
	if getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}

const (
	// restAfter is how long the process must be quiet before it gives unused
	// memory back to the system. By itself Go takes many minutes.
	restAfter = 30 * time.Second
	// restBelow is what a quiet process may still allocate in that time, in
	// bytes: a health check now and then, but no call.
	restBelow = 256 << 10
)

// rest gives memory back to the system when a time of work is over, once, until
// ctx ends.
func (g *Gateway) rest(ctx context.Context, after time.Duration) {
	tick := time.NewTicker(after)
	defer tick.Stop()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	before, worked := allocated[0].Value.Uint64(), true // it has started
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(allocated)
		now := allocated[0].Value.Uint64()
		quiet := now-before < restBelow
		if quiet && worked {
			if err := g.store.Shrink(ctx); err != nil && ctx.Err() == nil {
				g.log.Warn("the store could not give back memory", "error", err)
			}
			runtime.GC() // what pools keep goes with the second collection
			debug.FreeOSMemory()
			if err := releaseProgram(); err != nil {
				g.log.Warn("the program's own pages could not be given back", "error", err)
			}
		}
		before, worked = now, !quiet
	}
}
