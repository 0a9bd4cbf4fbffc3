package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

const (
	liveHosts, allHosts = 5, 20
	// listBound is what list_hosts may take while machines are being tried: the
	// budget of 2 s that it gives them, and the call itself.
	listBound = 2.2 // seconds
)

// deadHosts compares a gateway of which most machines are dead with one that has
// the live ones alone.
func deadHosts(ctx context.Context, b *bench) ([]row, error) {
	m, err := newMachine(b)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer silent.Close()
	var hosts []map[string]any
	for i := range allHosts {
		target := "ssh://far"
		switch {
		case i >= liveHosts && i%2 == 0:
			target = "ssh://" + silent.Addr().String() // takes connections and says nothing
		case i >= liveHosts:
			target = "ssh://127.0.0.1:9" // refuses them
		}
		hosts = append(hosts, m.host(fmt.Sprintf("host-%d", i), target))
	}
	w, err := m.served(ctx, b, hosts[:liveHosts]...)
	if err != nil {
		return nil, err
	}
	w.close()
	var began, trying, resting [2][]float64
	for range transferRounds {
		for i, n := range []int{allHosts, liveHosts} {
			t, err := m.started(ctx, b, hosts[:n], n-liveHosts)
			if err != nil {
				return nil, err
			}
			began[i], trying[i], resting[i] = append(began[i], t.ready), append(trying[i], t.trying), append(resting[i], t.resting)
		}
	}
	compared := func(name string, s [2][]float64, bound float64, text string) row {
		figures := samples(s[:])
		return ratioed(name, milli(figures.median(0)), "the live ones alone: "+milli(figures.median(1)), figures.ratio(0, 1)).atMost(figures.median(0), bound, text)
	}
	const are = "20 SSH hosts, 15 of them dead"
	return []row{
		compared("start to ready with "+are, began, 0.3, "300 ms"),
		compared("list_hosts right after such a start, at the most", trying, listBound, "2.2 s"),
		compared("list_hosts when the dead ones were given up, p50", resting, 0.1, "100 ms"),
	}, nil
}

// times are those of one start, in seconds.
type times struct{ ready, trying, resting float64 }

// started starts a gateway and lists its hosts: until all but the dead have a
// worker, and after the dead have been given up.
func (m *farMachine) started(ctx context.Context, b *bench, hosts []map[string]any, dead int) (t times, err error) {
	w, err := m.open(ctx, b, hosts...)
	if err != nil {
		return t, err
	}
	defer w.close()
	t.ready = w.program.ready.Seconds()
	for deadline := time.Now().Add(patience); ; {
		begun := time.Now()
		list, err := w.hosts(ctx)
		if err != nil {
			return t, err
		}
		t.trying = max(t.trying, time.Since(begun).Seconds())
		working, down := 0, 0
		for _, h := range list {
			if h.Worker != nil {
				working++
			}
			if strings.Contains(h.Reason, "(down since") {
				down++
			}
		}
		if working == len(hosts)-dead && down == dead {
			break
		}
		if time.Now().After(deadline) {
			return t, fmt.Errorf("%d hosts have a worker and %d are down: %+v", working, down, list)
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.resting, err = repeated(plainRuns, func() error { _, err := w.hosts(ctx); return err })()
	return t, err
}
