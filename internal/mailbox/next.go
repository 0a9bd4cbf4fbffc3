package mailbox

// Next is the literal next call: a tool of this server and its arguments, and
// one sentence that says why, and when not to. A model copies the two fields
// into a call as they are.
type Next struct {
	Tool      string        `json:"tool"`
	Arguments NextArguments `json:"arguments"`
	Why       string        `json:"why"`
}

// NextArguments is the arguments of get_peer_message or list_peer_messages.
type NextArguments struct {
	PeerID           string `json:"peerId"`
	MessageID        string `json:"messageId,omitempty"`
	IncludeProcessed bool   `json:"includeProcessed,omitempty"`
	ThreadID         string `json:"threadId,omitempty"`
	Limit            int    `json:"limit,omitempty"`
	Cursor           string `json:"cursor,omitempty"`
	WaitMs           int    `json:"waitMs,omitempty"`
}

// next chooses, in this order: read the oldest unprocessed message of the page;
// get the next page; look at mail outside this view; wait for mail, which is
// also where a reader without anything to wait for stops.
func (l inbox) next(page ListPeerMessagesOut) Next {
	for _, e := range page.Messages {
		if e.State != Unprocessed || e.ToPeerID != l.peerID {
			continue
		}
		n := Next{"get_peer_message", NextArguments{PeerID: l.peerID, MessageID: e.MessageID},
			"Read the oldest unprocessed message of this page. It stays unprocessed until you have handled it and call ack_peer_message with these arguments."}
		if !e.ReadAt.IsZero() {
			n.Why = "This message was read but not acknowledged. If it is handled, call ack_peer_message with these arguments instead; else read it again."
		}
		return n
	}
	list := NextArguments{PeerID: l.peerID}
	switch {
	case page.NextCursor != "":
		list.IncludeProcessed, list.ThreadID, list.Cursor = l.includeProcessed, l.threadID, page.NextCursor
		if l.limit != DefaultLimit {
			list.Limit = l.limit
		}
		return Next{"list_peer_messages", list, "There are more messages: this is the next page."}
	case page.UnprocessedCount > 0:
		return Next{"list_peer_messages", list, "This list ends here, but other messages wait unprocessed."}
	}
	list.WaitMs = MaxWaitMs
	return Next{"list_peer_messages", list, "No mail waits: nothing to do now. Make this call, which ends when mail arrives or after 20 seconds, only if you expect an answer."}
}
