package devices

import (
	"fmt"
	"runtime"
	"testing"
)

// BenchmarkCall is a call to a device that answers at once: what the relay adds to a
// tool's own time, most of it three commits.
func BenchmarkCall(b *testing.B) {
	r := newRelay(b)
	d := r.connect("laptop", r.pairDevice("laptop"))
	go func() {
		for {
			f, err := d.next()
			if err != nil {
				return
			}
			_ = d.try(frame{"type": "tool_result", "ref": f["ref"], "ok": true, "output": "x"})
		}
	}()
	for b.Loop() {
		if _, err := r.Call(b.Context(), alice, echo("laptop")); err != nil {
			b.Fatal(err)
		}
	}
	d.conn.CloseNow()
}

// BenchmarkIdleDevices reports the memory of one connected device that does nothing,
// without the sockets and the other side.
func BenchmarkIdleDevices(b *testing.B) {
	const n = 1000
	for b.Loop() {
		r := newRelay(b)
		inUse := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapInuse + m.StackInuse
		}
		before := inUse()
		for i := range n {
			name := fmt.Sprintf("d-%d", i)
			r.pairs.tries.SetLimit(1e9)
			m := newMemory()
			token := r.pairDevice(name)
			r.Serve(m, func() {})
			raw := fmt.Sprintf(`{"type":"hello","proto":1,"device":%q,"token":%q,"platform":"linux","tools":[{"name":"run","desc":"Run a command.","schema":{"type":"object","properties":{"cmd":{"type":"string"}}}}]}`, name, token)
			m.in <- []byte(raw)
			<-m.out
		}
		b.ReportMetric(float64(inUse()-before)/n, "B/device")
	}
}
