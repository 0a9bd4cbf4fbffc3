// Package metrics counts what a process does and writes it in the text format of
// Prometheus (exposition format 0.0.4).
//
// It owns counters and histograms with labels, and the form of their text. It
// promises that counting is cheap and safe from any goroutine, that names and labels
// come out in one order, escaped, and that it holds no more series than its callers
// have names for: they keep the values of labels to a few that they know. What is
// worth a number, and who may read it, is left to those who count. It is
// here in place of the client library of Prometheus because text is all that is
// needed, and that library brings protocol buffers with it.
package metrics

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Registry is a set of metrics, written together.
type Registry struct {
	mu       sync.Mutex
	families []family
	collect  []func(context.Context, *Page)
}

// family is all series of one name.
type family interface {
	write(*Page)
}

// Page is one reading of a registry.
type Page struct {
	b    strings.Builder
	seen map[string]bool
}

// Counter is a number that only grows, for each combination of its labels.
type Counter struct {
	head
	mu     sync.Mutex
	series map[string]float64
}

type head struct {
	name, help string
	labels     []string
}

// Counter adds a counter. The name ends in _total.
func (r *Registry) Counter(name, help string, labels ...string) *Counter {
	c := &Counter{head: head{name, help, labels}, series: map[string]float64{}}
	r.add(c)
	return c
}

// Inc counts one more for these values of the labels.
func (c *Counter) Inc(values ...string) { c.Add(1, values...) }

// Add counts n more, n ≥ 0.
func (c *Counter) Add(n float64, values ...string) {
	key := c.key(values)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.series[key] += n
}

func (c *Counter) write(p *Page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.begin(c.head, "counter")
	for _, key := range sorted(c.series) {
		p.line(c.name, key, c.series[key])
	}
}

// Histogram counts values by how large they are, for each combination of its
// labels.
type Histogram struct {
	head
	bounds []float64
	mu     sync.Mutex
	series map[string]*distribution
}

type distribution struct {
	counts []uint64 // of each bound, not added up
	all    uint64
	sum    float64
}

// Histogram adds a histogram with these upper bounds, which rise.
func (r *Registry) Histogram(name, help string, bounds []float64, labels ...string) *Histogram {
	h := &Histogram{head: head{name, help, labels}, bounds: bounds, series: map[string]*distribution{}}
	r.add(h)
	return h
}

// Observe counts a value.
func (h *Histogram) Observe(v float64, values ...string) {
	key := h.key(values)
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.series[key]
	if d == nil {
		d = &distribution{counts: make([]uint64, len(h.bounds))}
		h.series[key] = d
	}
	d.all++
	d.sum += v
	if i, _ := slices.BinarySearch(h.bounds, v); i < len(h.bounds) {
		d.counts[i]++
	}
}

func (h *Histogram) write(p *Page) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.begin(h.head, "histogram")
	for _, key := range sorted(h.series) {
		d, total := h.series[key], uint64(0)
		for i, bound := range h.bounds {
			total += d.counts[i]
			p.line(h.name+"_bucket", join(key, `le="`+number(bound)+`"`), float64(total))
		}
		p.line(h.name+"_bucket", join(key, `le="+Inf"`), float64(d.all))
		p.line(h.name+"_sum", key, d.sum)
		p.line(h.name+"_count", key, float64(d.all))
	}
}

// Collect has f called at each reading, for numbers that are measured then.
func (r *Registry) Collect(f func(context.Context, *Page)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.collect = append(r.collect, f)
}

// Gauge writes a number of now. Pairs are names and values of labels; gauges of one
// name are written one after the other.
func (p *Page) Gauge(name, help string, v float64, pairs ...string) {
	p.single(name, help, "gauge", v, pairs)
}

// Total writes a number that only grows and that something else counts.
func (p *Page) Total(name, help string, v float64, pairs ...string) {
	p.single(name, help, "counter", v, pairs)
}

func (p *Page) single(name, help, kind string, v float64, pairs []string) {
	h := head{name: name, help: help}
	var values []string
	for i := 0; i+1 < len(pairs); i += 2 {
		h.labels, values = append(h.labels, pairs[i]), append(values, pairs[i+1])
	}
	p.begin(h, kind)
	p.line(name, h.key(values), v)
}

// Write writes all metrics.
func (r *Registry) Write(ctx context.Context, w io.Writer) error {
	r.mu.Lock()
	families, collect := slices.Clone(r.families), slices.Clone(r.collect)
	r.mu.Unlock()
	p := &Page{seen: map[string]bool{}}
	for _, f := range families {
		f.write(p)
	}
	for _, f := range collect {
		f(ctx, p)
	}
	_, err := io.WriteString(w, p.b.String())
	return err
}

// ContentType is that of what [Registry.Write] writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

func (r *Registry) add(f family) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.families = append(r.families, f)
}

func (p *Page) begin(h head, kind string) {
	if p.seen[h.name] {
		return
	}
	p.seen[h.name] = true
	fmt.Fprintf(&p.b, "# HELP %s %s\n# TYPE %s %s\n", h.name, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(h.help), h.name, kind)
}

func (p *Page) line(name, labels string, v float64) {
	p.b.WriteString(name)
	if labels != "" {
		p.b.WriteString("{" + labels + "}")
	}
	p.b.WriteString(" " + number(v) + "\n")
}

// key is the labels as they are written.
func (h head) key(values []string) string {
	if len(values) != len(h.labels) {
		panic(fmt.Sprintf("metrics: %s has the labels %v, not %d", h.name, h.labels, len(values)))
	}
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = h.labels[i] + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(strings.ToValidUTF8(v, "?")) + `"`
	}
	return strings.Join(parts, ",")
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
