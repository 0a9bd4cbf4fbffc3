package paseotest

import (
	"slices"
	"strings"
)

// row is one canonical timeline row.
type row struct {
	seq    int64
	turnID string
	at     string
	item   members
}

// addRow appends a row and streams it. Callers hold p.mu.
func (p *process) addRow(a *agent, turnID string, item members) {
	r := row{seq: a.nextSeq, turnID: turnID, at: stamp(), item: item}
	a.nextSeq++
	a.rows = append(a.rows, r)
	event := members{"type": "timeline", "item": item}
	if p.level >= middle && turnID != "" {
		event["turnId"] = turnID
	}
	p.stream(a, event, members{"seq": r.seq, "epoch": a.epoch})
}

// replaceTimeline gives an agent an empty timeline of a new epoch.
func (p *process) replaceTimeline(agentID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.agents[agentID]
	if a == nil {
		return
	}
	p.load(a)
	a.epoch, a.rows, a.nextSeq = newID("epoch_"), nil, 1
	p.broadcast("agent.timeline.replacement", members{"agentId": agentID, "epoch": a.epoch}, func(s *session) bool { return s.replacement })
}

// lastMessage is the text of the last assistant message, its rows together.
func (a *agent) lastMessage() string {
	var parts []string
	for _, r := range slices.Backward(a.rows) {
		if r.item["type"] != "assistant_message" {
			if len(parts) > 0 {
				break
			}
			continue
		}
		parts = append(parts, r.item["text"].(string))
	}
	slices.Reverse(parts)
	return strings.Join(parts, "")
}

// entry is a row as a page has it: one canonical row or several merged ones.
type entry struct {
	first, last int64
	turnID, at  string
	item        members
	ranges      [][2]int64
	collapsed   []string
}

// project merges the rows of one message and of one tool call.
func project(rows []row) []*entry {
	var out []*entry
	calls := map[any]*entry{}
	for _, r := range rows {
		if len(out) > 0 {
			before := out[len(out)-1]
			kind, merge := r.item["type"], ""
			switch {
			case kind != before.item["type"] || r.turnID != before.turnID:
			case kind == "assistant_message":
				merge = "assistant_merge"
			case kind == "reasoning":
				merge = "reasoning_merge"
			}
			if merge != "" {
				before.item["text"] = before.item["text"].(string) + r.item["text"].(string)
				before.take(r, merge)
				continue
			}
		}
		if call, ok := calls[r.item["callId"]]; ok && r.item["type"] == "tool_call" {
			call.item = r.item
			call.take(r, "tool_lifecycle")
			continue
		}
		e := single(r)
		if r.item["type"] == "tool_call" {
			calls[r.item["callId"]] = e
		}
		out = append(out, e)
	}
	return out
}

func single(r row) *entry {
	item := members{}
	for key, value := range r.item {
		item[key] = value
	}
	return &entry{first: r.seq, last: r.seq, turnID: r.turnID, at: r.at, item: item, ranges: [][2]int64{{r.seq, r.seq}}}
}

func (e *entry) take(r row, how string) {
	e.last = r.seq
	e.ranges = append(e.ranges, [2]int64{r.seq, r.seq})
	if !slices.Contains(e.collapsed, how) {
		e.collapsed = append(e.collapsed, how)
	}
}

func (p *process) entry(a *agent, e *entry) members {
	ranges := []members{}
	for _, r := range e.ranges {
		ranges = append(ranges, members{"startSeq": r[0], "endSeq": r[1]})
	}
	out := members{
		"provider": a.rec.Provider, "item": e.item, "timestamp": e.at, "seqStart": e.first, "seqEnd": e.last,
		"sourceSeqRanges": ranges, "collapsed": append([]string{}, e.collapsed...),
	}
	if p.level >= middle && e.turnID != "" {
		out["turnId"] = e.turnID
	}
	return out
}

type timelineRequest struct {
	AgentID   string `json:"agentId"`
	Direction string `json:"direction"`
	Cursor    *struct {
		Epoch string `json:"epoch"`
		Seq   int64  `json:"seq"`
	} `json:"cursor"`
	Limit      *int   `json:"limit"`
	Projection string `json:"projection"`
}

// page answers a timeline request; it loads the agent.
func (p *process) page(a *agent, q timelineRequest) members {
	p.load(a)
	direction, projection, limit := q.Direction, q.Projection, 200
	if direction == "" {
		direction = "tail"
	}
	if projection == "" {
		projection = "projected"
	}
	if q.Limit != nil {
		limit = *q.Limit
	}
	var all []*entry
	if projection == "projected" {
		all = project(a.rows)
	} else {
		for _, r := range a.rows {
			all = append(all, single(r))
		}
	}
	stale := direction != "tail" && (q.Cursor == nil || q.Cursor.Epoch != a.epoch)
	from, to := 0, len(all)
	switch {
	case stale || direction == "tail":
	case direction == "before":
		to, _ = slices.BinarySearchFunc(all, q.Cursor.Seq, func(e *entry, seq int64) int { return int(e.first - seq) })
	case direction == "after":
		from, _ = slices.BinarySearchFunc(all, q.Cursor.Seq+1, func(e *entry, seq int64) int { return int(e.last - seq) })
	}
	if limit > 0 && to-from > limit {
		if direction == "after" && !stale {
			to = from + limit
		} else {
			from = to - limit
		}
	}
	entries := []members{}
	for _, e := range all[from:to] {
		entries = append(entries, p.entry(a, e))
	}
	out := members{
		"agentId": a.rec.ID, "agent": p.snapshot(a), "direction": direction, "projection": projection, "epoch": a.epoch,
		"reset": stale, "staleCursor": stale, "gap": false,
		"window":      members{"minSeq": min(1, a.nextSeq-1), "maxSeq": a.nextSeq - 1, "nextSeq": a.nextSeq},
		"startCursor": nil, "endCursor": nil, "hasOlder": from > 0, "hasNewer": to < len(all), "entries": entries, "error": nil,
	}
	if to > from {
		out["startCursor"] = members{"epoch": a.epoch, "seq": all[from].first}
		out["endCursor"] = members{"epoch": a.epoch, "seq": all[to-1].last}
	}
	return out
}
