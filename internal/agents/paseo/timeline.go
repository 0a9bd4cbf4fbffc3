package paseo

import (
	"context"
	"encoding/json"
	"slices"
)

// Item is what a timeline row says. Only the fields of its type are set; types
// unknown to this package have only Type, and Raw.
type Item struct {
	// Type is user_message, assistant_message, reasoning, tool_call, todo, error,
	// compaction, or newer.
	Type string
	// Text is the text of messages, reasoning and errors.
	Text string
	// MessageID of user messages, and from 0.5 of assistant messages.
	MessageID string
	// ClientMessageID is the sender's own id of a user message (from 0.5, while
	// the daemon lives).
	ClientMessageID string
	// CallID, Name and Status of tool calls: running, completed, failed, canceled.
	CallID, Name, Status string
	// Raw is the item as the daemon sent it; nil in an [Entry], whose Raw has it.
	Raw json.RawMessage
}

// Cursor is a place in one epoch of a timeline. It means nothing in another
// epoch: an agent's epoch changes with a restart, a rewind and an archiving.
type Cursor struct {
	Epoch string `json:"epoch"`
	Seq   int64  `json:"seq"`
}

// Direction is where a page lies.
type Direction string

// The directions: the newest rows, or those before or after a cursor.
const (
	Tail   Direction = "tail"
	Before Direction = "before"
	After  Direction = "after"
)

// TimelineQuery asks for one page.
type TimelineQuery struct {
	AgentID string
	// Direction defaults to Tail. Before and After need Cursor; Tail takes none.
	Direction Direction
	Cursor    *Cursor
	// Limit is the number of rows, 1 to 200; 0 is 200.
	Limit int
	// Canonical asks for every row as it was written; by default the rows of one
	// message or one tool call are merged.
	Canonical bool
}

// TimelinePage is one page of a timeline.
type TimelinePage struct {
	AgentID string
	// Agent is the snapshot after the read, which may have loaded it; nil if the
	// daemon sent none.
	Agent      *Agent
	Direction  Direction
	Projection string
	Epoch      string
	// Reset and StaleCursor: the cursor's epoch is gone and this is a tail page of
	// the new one. Gap: rows between the cursor and this page are missing. After
	// any of them nothing may be concluded from rows that aren't here.
	Reset, StaleCursor, Gap bool
	// MinSeq, MaxSeq and NextSeq are the daemon's window over the whole timeline.
	MinSeq, MaxSeq, NextSeq int64
	StartCursor, EndCursor  *Cursor // nil on an empty page
	HasOlder, HasNewer      bool
	Entries                 []Entry
}

// Entry is one row of a page.
type Entry struct {
	Provider  string
	Timestamp string // by the daemon's clock; of the reload, after a restart
	// TurnID is "" from daemons without turn ids, and for rows that a provider
	// replayed after a restart.
	TurnID           string
	SeqStart, SeqEnd int64
	Item             Item
	// Raw is the entry as the daemon sent it.
	Raw json.RawMessage
}

// Timeline reads one page. It loads the agent: after a restart, reading turns a
// record that says running or closed into idle, so take a [Client.FetchAgent]
// first where that matters. The daemon keeps timelines in memory only.
func (c *Client) Timeline(ctx context.Context, q TimelineQuery) (TimelinePage, error) {
	if q.Direction == "" {
		q.Direction = Tail
	}
	if (q.Direction == Tail) != (q.Cursor == nil) {
		return TimelinePage{}, refuse("A page before or after needs a cursor, and a tail page takes none.")
	}
	if q.Limit < 0 || q.Limit > 200 {
		return TimelinePage{}, refuse("limit must be 1 to 200.")
	}
	if q.Limit == 0 {
		q.Limit = 200
	}
	projection := "projected"
	if q.Canonical {
		projection = "canonical"
	}
	payload, err := c.call(ctx, "fetch_agent_timeline_request", fields{
		"agentId": q.AgentID, "direction": q.Direction, "cursor": omitZero(q.Cursor), "limit": q.Limit, "projection": projection,
	})
	if err != nil {
		return TimelinePage{}, notFoundAs(err)
	}
	return decodePage(payload)
}

type pageWire struct {
	AgentID     text            `json:"agentId"`
	Agent       json.RawMessage `json:"agent"`
	Direction   text            `json:"direction"`
	Projection  text            `json:"projection"`
	Epoch       text            `json:"epoch"`
	Reset       lenient[bool]   `json:"reset"`
	StaleCursor lenient[bool]   `json:"staleCursor"`
	Gap         lenient[bool]   `json:"gap"`
	Window      lenient[struct {
		MinSeq  int64 `json:"minSeq"`
		MaxSeq  int64 `json:"maxSeq"`
		NextSeq int64 `json:"nextSeq"`
	}] `json:"window"`
	StartCursor lenient[*Cursor]           `json:"startCursor"`
	EndCursor   lenient[*Cursor]           `json:"endCursor"`
	HasOlder    lenient[bool]              `json:"hasOlder"`
	HasNewer    lenient[bool]              `json:"hasNewer"`
	Entries     lenient[[]json.RawMessage] `json:"entries"`
	Error       text                       `json:"error"`
}

// decodePage reads a page. Entries must be a list: a page without one would
// read as an empty timeline.
func decodePage(payload []byte) (TimelinePage, error) {
	var w pageWire
	if json.Unmarshal(payload, &w) != nil {
		return TimelinePage{}, unreadable("timeline page")
	}
	if w.Error != "" {
		return TimelinePage{}, rejected(string(w.Error), "")
	}
	if !w.Entries.set || w.Entries.v == nil {
		return TimelinePage{}, unreadable("timeline page")
	}
	page := TimelinePage{
		AgentID: string(w.AgentID), Direction: Direction(w.Direction), Projection: string(w.Projection),
		Epoch: string(w.Epoch), Reset: w.Reset.v, StaleCursor: w.StaleCursor.v, Gap: w.Gap.v,
		MinSeq: w.Window.v.MinSeq, MaxSeq: w.Window.v.MaxSeq, NextSeq: w.Window.v.NextSeq,
		StartCursor: w.StartCursor.v, EndCursor: w.EndCursor.v,
		HasOlder: w.HasOlder.v, HasNewer: w.HasNewer.v,
		Entries: make([]Entry, 0, len(w.Entries.v)),
	}
	if agent, ok := decodeAgent(w.Agent); ok {
		page.Agent = &agent
	}
	for _, raw := range w.Entries.v {
		page.Entries = append(page.Entries, decodeEntry(raw))
	}
	return page, nil
}

// decodeEntry keeps raw, which the caller must not change.
func decodeEntry(raw json.RawMessage) Entry {
	var w struct {
		Provider  text             `json:"provider"`
		Timestamp text             `json:"timestamp"`
		TurnID    text             `json:"turnId"`
		SeqStart  lenient[int64]   `json:"seqStart"`
		SeqEnd    lenient[int64]   `json:"seqEnd"`
		Item      lenient[rawFree] `json:"item"`
	}
	if json.Unmarshal(raw, &w) != nil {
		return Entry{Raw: raw}
	}
	return Entry{
		Provider: string(w.Provider), Timestamp: string(w.Timestamp), TurnID: string(w.TurnID),
		SeqStart: w.SeqStart.v, SeqEnd: w.SeqEnd.v, Item: w.Item.v.item(), Raw: raw,
	}
}

// rawFree is an item's known fields, without a second copy of tool output.
type rawFree struct {
	Type            text `json:"type"`
	Text            text `json:"text"`
	Message         text `json:"message"`
	MessageID       text `json:"messageId"`
	ClientMessageID text `json:"clientMessageId"`
	CallID          text `json:"callId"`
	Name            text `json:"name"`
	Status          text `json:"status"`
}

func (w rawFree) item() Item {
	item := Item{
		Type: string(w.Type), Text: string(w.Text), MessageID: string(w.MessageID), ClientMessageID: string(w.ClientMessageID),
		CallID: string(w.CallID), Name: string(w.Name), Status: string(w.Status),
	}
	if item.Type == "error" && item.Text == "" {
		item.Text = string(w.Message)
	}
	return item
}

// decodeItem reads an item that stands alone and keeps a copy of it.
func decodeItem(raw json.RawMessage) Item {
	var w lenient[rawFree]
	_ = json.Unmarshal(raw, &w)
	item := w.v.item()
	item.Raw = slices.Clone(raw)
	return item
}
