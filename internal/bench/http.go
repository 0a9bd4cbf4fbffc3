package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
)

// connections is how many clients call over HTTP at the same time, each on one
// kept connection.
const connections = 32

// agents is a busy house: field reports name thirty at once as where servers of
// this kind break down.
const agents = 30

// listing is the request for the five peers.
func listing(e endpoint) []byte { return e.request("list_peers", map[string]any{}) }

// sending makes a new message each time, between the peers in turn.
func sending(e endpoint) func(int) []byte {
	return func(conn int) []byte {
		return e.request("send_peer_message", map[string]any{
			"messageId": uuid.NewString(), "fromPeerId": peerID(conn), "toPeerId": peerID(conn + 1), "text": sentence,
		})
	}
}

// throughput compares sends with list_peers, in both eras of the protocol, and
// reads off how long the slowest took.
func throughput(ctx context.Context, b *bench) ([]row, error) {
	h, p, err := b.loaded(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	c, err := gather(h.mcp, connections)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var sides []side
	slow := make([][]float64, 4)
	for i, next := range []func(int) []byte{
		always(listing(h.mcp)), sending(h.mcp),
		always(listing(h.mcp.withVersion(modern))), sending(h.mcp.withVersion(modern)),
	} {
		sides = append(sides, func() (float64, error) {
			rate, times, err := c.during(b.slice, next)
			if err == nil {
				slow[i] = append(slow[i], percentile(seconds(times), 99))
			}
			return rate, err
		})
	}
	s, err := inTurns(b.rounds, sides...)
	if err != nil {
		return nil, err
	}
	var rows []row
	for i, version := range []string{legacy, modern} {
		list, send := 2*i, 2*i+1
		ratio := s.ratio(send, list)
		rows = append(rows, ratioed(fmt.Sprintf("send_peer_message over HTTP, %d clients, %s", connections, version), perSecond(s.median(send)),
			"list_peers with 5 peers: "+perSecond(s.median(list)), ratio).atLeast(ratio, 0.4, "0.4"))
	}
	return append(rows, row{
		name:     fmt.Sprintf("p99 of send_peer_message under that load, %s", legacy),
		measured: milli(percentile(slow[1], 50)), against: "list_peers: " + milli(percentile(slow[0], 50)),
	}), nil
}

// latency compares one small call at a time with the same call of a server that
// has nothing around it, and through a proxy that many people use.
func latency(ctx context.Context, b *bench) ([]row, error) {
	h, p, err := b.loaded(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	bare, plain, err := startBare()
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	proxy, proxied, err := startProxy(b.modules)
	if err != nil {
		return nil, err
	}
	defer proxy.stop()

	var sides []side
	for _, e := range []endpoint{h.mcp, plain, proxied, h.mcp.withVersion(modern), plain.withVersion(modern)} {
		c, err := gather(e, 1)
		if err != nil {
			return nil, err
		}
		defer c.close()
		sides = append(sides, b.median(c, always(listing(e))))
	}
	c, err := gather(h.mcp, 1)
	if err != nil {
		return nil, err
	}
	defer c.close()
	inbox := h.mcp.request("list_peer_messages", map[string]any{"peerId": peerID(1)})
	sides = append(sides, b.median(c, sending(h.mcp)), b.median(c, always(inbox)))
	s, err := inTurns(b.rounds, sides...)
	if err != nil {
		return nil, err
	}
	small := s.median(0)
	return []row{
		ratioed("list_peers, one call at a time, p50, "+legacy, milli(small), "bare SDK server: "+milli(s.median(1)), s.ratio(0, 1)).atMost(small, 2e-3, "2 ms"),
		ratioed("the same", milli(small), "mcp-proxy: "+milli(s.median(2)), s.ratio(0, 2)),
		ratioed("list_peers, one call at a time, p50, "+modern, milli(s.median(3)), "bare SDK server: "+milli(s.median(4)), s.ratio(3, 4)).atMost(s.median(3), 2e-3, "2 ms"),
		row{name: "send_peer_message, one call at a time, p50", measured: milli(s.median(5))}.atMost(s.median(5), 2e-3, "2 ms"),
		row{name: "list_peer_messages, one call at a time, p50", measured: milli(s.median(6))},
	}, nil
}

// median makes calls on one connection and returns the median time.
func (b *bench) median(c crowd, next func(int) []byte) side {
	return func() (float64, error) {
		times, err := c.calls(b.calls, next)
		return percentile(seconds(times), 50), err
	}
}

// house is thirty agents who look for mail, send and list peers as fast as they
// are answered.
func house(ctx context.Context, b *bench) ([]row, error) {
	h, p, err := b.loaded(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	c, err := gather(h.mcp, agents)
	if err != nil {
		return nil, err
	}
	defer c.close()
	list, send := listing(h.mcp), sending(h.mcp)
	inbox := h.mcp.request("list_peer_messages", map[string]any{"peerId": peerID(1)})
	turns := make([]int, agents)
	next := func(conn int) []byte {
		turns[conn]++
		switch turns[conn] % 3 {
		case 0:
			return send(conn)
		case 1:
			return inbox
		}
		return list
	}
	var slow, rates []float64
	for range b.rounds {
		rate, times, err := c.during(b.slice, next)
		if err != nil {
			return nil, err
		}
		slow, rates = append(slow, percentile(seconds(times), 99)), append(rates, rate)
	}
	p99 := percentile(slow, 50)
	return []row{row{
		name:     fmt.Sprintf("%d agents that look, send and list, p99 at %s", agents, perSecond(percentile(rates, 50))),
		measured: milli(p99),
	}.atMost(p99, 100e-3, "100 ms")}, nil
}
