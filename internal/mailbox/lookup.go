package mailbox

import (
	"database/sql"
	"errors"
	"fmt"

	"agentrelay/internal/store"
)

// Lookup answers what the parts that wake readers ask of the mailbox. It reads
// through the transaction it is given, so it also works within those of the
// mailbox itself. The zero value is ready.
type Lookup struct{}

// Peer returns the present generation of a peer and whether it is active; found
// is false when this owner has none of that id.
func (Lookup) Peer(q store.Querier, owner, peerID string) (generation int64, active, found bool, err error) {
	p, found, err := findPeer(q, owner, peerID)
	return p.generation, found && !p.stopped(), found, err
}

// LastSeq is the [Mail.Seq] of the newest message of all owners; 0 when there is
// none.
func (Lookup) LastSeq(q store.Querier) (seq int64, err error) {
	if err := q.QueryRow(`SELECT coalesce(max(id), 0) FROM mailbox_messages`).Scan(&seq); err != nil {
		return 0, fmt.Errorf("reading the newest message: %w", err)
	}
	return seq, nil
}

// Unread reports whether a message waits for its recipient: neither read by it
// nor acknowledged nor purged. A message that does not exist waits for nobody.
func (Lookup) Unread(q store.Querier, owner, messageID string) (unread bool, err error) {
	err = q.QueryRow(`SELECT read_at IS NULL AND processed_at IS NULL AND purged_at IS NULL FROM mailbox_messages WHERE owner = ? AND message_id = ?`, owner, messageID).Scan(&unread)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, fmt.Errorf("asking whether a message was read: %w", err)
	}
	return unread, nil
}
