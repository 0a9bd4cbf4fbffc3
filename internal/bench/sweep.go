package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// percents are the values of GOGC that are compared. The first is Go's default.
var percents = []string{"100", "200", "400", "800"}

// collector compares gateways that collect garbage differently, under the same
// load. What a call costs is the processor time of the whole process, for that
// is what a busy machine changes least.
func collector(ctx context.Context, b *bench) ([]row, error) {
	type contender struct {
		program *program
		calls   int
		rss     float64
	}
	contenders := make([]*contender, len(percents))
	var sides []side
	for i, percent := range percents {
		h, p, err := b.loaded(ctx, "GOGC="+percent)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		c, err := gather(h.mcp, connections)
		if err != nil {
			return nil, err
		}
		defer c.close()
		me := &contender{program: p}
		contenders[i] = me
		next := always(listing(h.mcp.withVersion(modern)))
		sides = append(sides, func() (float64, error) {
			rate, times, err := c.during(b.slice, next)
			if err != nil {
				return 0, err
			}
			me.calls += len(times)
			rss, err := p.rss()
			me.rss = max(me.rss, rss)
			return rate, err
		})
	}
	s, err := inTurns(b.rounds, sides...)
	if err != nil {
		return nil, err
	}
	var rows []row
	base := 0.0
	for i, me := range contenders {
		me.program.stop()
		cost := me.program.processor() / float64(me.calls)
		if i == 0 {
			base = cost
			continue
		}
		rows = append(rows, ratioed(fmt.Sprintf("processor time of list_peers, GOGC=%s", percents[i]), micro(cost)+", "+perSecond(s.median(i))+", RSS "+megabytes(me.rss),
			fmt.Sprintf("GOGC=100: %s, %s, RSS %s", micro(base), perSecond(s.median(0)), megabytes(contenders[0].rss)), cost/base))
	}
	return rows, nil
}

// large is how many characters the text of a large call has: near the 4 MiB that
// a request may have.
const large = 3_900_000

// bursts compares the memory that large calls take, all at once, with the limit
// and without one. They are refused, for no text may be so long, but only once
// they have been read.
func bursts(ctx context.Context, b *bench) ([]row, error) {
	var rss, cost [2]float64
	for i, env := range [][]string{nil, {"GOMEMLIMIT=off"}} {
		h, p, err := b.loaded(ctx, env...)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		c, err := gather(h.mcp, connections/2)
		if err != nil {
			return nil, err
		}
		defer c.close()
		request := h.mcp.request("send_peer_message", map[string]any{
			"messageId": uuid.NewString(), "fromPeerId": peerID(0), "toPeerId": peerID(1), "text": strings.Repeat("x", large),
		})
		times, _, err := c.load(func(w *wire, _ int) error {
			_, _, err := w.exchange(request)
			return err
		}, func(calls int, _ time.Duration) bool { return calls == 2 })
		if err != nil {
			return nil, err
		}
		if rss[i], err = p.rss(); err != nil {
			return nil, err
		}
		p.stop()
		cost[i] = p.processor() / float64(len(times))
	}
	return []row{ratioed(fmt.Sprintf("RSS after %d calls of 3.9 MB at once, twice", connections/2), megabytes(rss[0])+", "+milli(cost[0])+" of processor time a call",
		"no memory limit: "+megabytes(rss[1])+", "+milli(cost[1]), rss[0]/rss[1])}, nil
}
