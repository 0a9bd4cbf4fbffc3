package metrics

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestText(t *testing.T) {
	var r Registry
	c := r.Counter("calls_total", "Calls, \\ and\nlines.", "tool", "outcome")
	h := r.Histogram("call_seconds", "How long.", []float64{0.1, 1}, "tool")
	r.Counter("nothing_total", "Never counted.")
	plain := r.Histogram("plain_seconds", "No labels.", []float64{1})
	r.Collect(func(_ context.Context, p *Page) {
		p.Gauge("hosts", "Hosts.", 2, "state", "up")
		p.Gauge("hosts", "Hosts.", 0, "state", "down")
		p.Total("commits_total", "Commits.", 1e9)
	})
	c.Inc("b", "ok")
	c.Add(2.5, "a", "a \"quoted\" \\\n\xff")
	for _, v := range []float64{0.05, 0.1, 0.5, 3} {
		h.Observe(v, "a")
	}
	plain.Observe(0.5)
	var out strings.Builder
	if err := r.Write(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := `# HELP calls_total Calls, \\ and\nlines.
# TYPE calls_total counter
calls_total{tool="a",outcome="a \"quoted\" \\\n?"} 2.5
calls_total{tool="b",outcome="ok"} 1
# HELP call_seconds How long.
# TYPE call_seconds histogram
call_seconds_bucket{tool="a",le="0.1"} 2
call_seconds_bucket{tool="a",le="1"} 3
call_seconds_bucket{tool="a",le="+Inf"} 4
call_seconds_sum{tool="a"} 3.65
call_seconds_count{tool="a"} 4
# HELP nothing_total Never counted.
# TYPE nothing_total counter
# HELP plain_seconds No labels.
# TYPE plain_seconds histogram
plain_seconds_bucket{le="1"} 1
plain_seconds_bucket{le="+Inf"} 1
plain_seconds_sum 0.5
plain_seconds_count 1
# HELP hosts Hosts.
# TYPE hosts gauge
hosts{state="up"} 2
hosts{state="down"} 0
# HELP commits_total Commits.
# TYPE commits_total counter
commits_total 1e+09
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCountingFromManyGoroutines(t *testing.T) {
	var r Registry
	c, h := r.Counter("n_total", "N.", "l"), r.Histogram("h", "H.", []float64{1}, "l")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				c.Inc("x")
				h.Observe(1, "x")
				_ = r.Write(t.Context(), &strings.Builder{})
			}
		})
	}
	wg.Wait()
	var out strings.Builder
	_ = r.Write(t.Context(), &out)
	if !strings.Contains(out.String(), `n_total{l="x"} 8000`) || !strings.Contains(out.String(), `h_count{l="x"} 8000`) {
		t.Error(out.String())
	}
}
