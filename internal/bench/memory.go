package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// restTime is how long a gateway is quiet before its memory counts as that
	// of an idle one. It gives unused memory back after 30 to 60 seconds.
	restTime = 65 * time.Second
	// grown is how much more memory after the last burst counts as growth, in
	// bytes: the sum of what SQLite keeps and of what the system rounds up moves
	// by less between two looks.
	grown = 1e6
)

// idler is one gateway that is looked at again and again in a run: it works for
// some seconds, then is quiet while other things are measured.
type idler struct {
	home    *home
	program *program
	quiet   time.Time // since when
	rss     []float64 // bytes, fresh and after each burst
}

// idleBegin starts the gateway, looks at it before anybody has called, and lets
// it work for the first time.
func idleBegin(ctx context.Context, b *bench) ([]row, error) {
	h, err := newHome(b.gateway, b.dir)
	if err != nil {
		return nil, err
	}
	p, err := h.serve()
	if err != nil {
		return nil, err
	}
	b.idler = &idler{home: h, program: p}
	time.Sleep(2 * time.Second)
	if err := b.idler.look(); err != nil {
		return nil, err
	}
	if err := h.populate(ctx); err != nil {
		return nil, err
	}
	return nil, b.idler.work(b)
}

func (i *idler) look() error {
	time.Sleep(time.Until(i.quiet.Add(restTime)))
	rss, err := i.program.rss()
	i.rss = append(i.rss, rss)
	return err
}

// work makes a burst of calls, of which every tenth is a send.
func (i *idler) work(b *bench) error {
	c, err := gather(i.home.mcp, connections)
	if err != nil {
		return err
	}
	defer c.close()
	list, send := listing(i.home.mcp), sending(i.home.mcp)
	turns := make([]int, connections)
	_, err = c.calls(b.burst/connections, func(conn int) []byte {
		turns[conn]++
		if turns[conn]%10 == 0 {
			return send(conn)
		}
		return list
	})
	i.quiet = time.Now()
	return err
}

// idleAgain looks after a burst that was long ago, and makes the next one.
func idleAgain(_ context.Context, b *bench) ([]row, error) {
	if err := b.idler.look(); err != nil {
		return nil, err
	}
	return nil, b.idler.work(b)
}

// idleEnd looks for the last time.
func idleEnd(_ context.Context, b *bench) ([]row, error) {
	i := b.idler
	if err := i.look(); err != nil {
		return nil, err
	}
	defer i.program.stop()
	last := len(i.rss) - 1
	fresh, busy := i.rss[0], slices.Max(i.rss[1:])
	growth := i.rss[last] - i.rss[last-1]
	return []row{
		row{name: "RSS, idle since the start", measured: megabytes(fresh)}.atMost(fresh, 40e6, "40 MB"),
		row{name: fmt.Sprintf("RSS, idle again after %d times %d calls, at the most", last, b.burst), measured: megabytes(busy)}.atMost(busy, 40e6, "40 MB"),
		row{name: fmt.Sprintf("RSS growth by the last %d calls", b.burst), measured: megabytes(growth)}.atMost(growth, grown, "1 MB"),
	}, nil
}

// starts measures the time to the ready line: with a state that is there, and
// for the first time, set-up included.
func starts(_ context.Context, b *bench) ([]row, error) {
	var first, again []float64
	for range b.rounds {
		h, err := newHome(b.gateway, b.dir)
		if err != nil {
			return nil, err
		}
		ready := make([]float64, 2)
		for i := range ready {
			p, err := h.serve()
			if err != nil {
				return nil, err
			}
			ready[i] = p.ready.Seconds()
			p.stop()
		}
		first, again = append(first, h.init.Seconds()+ready[0]), append(again, ready[1])
	}
	f, a := percentile(first, 50), percentile(again, 50)
	return []row{
		row{name: "start to ready", measured: milli(a)}.atMost(a, 0.3, "300 ms"),
		row{name: "start to ready for the first time, set-up included", measured: milli(f)}.atMost(f, 0.3, "300 ms"),
	}, nil
}
