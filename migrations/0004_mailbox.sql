-- +goose Up
-- Peers are never deleted: an id keeps its mail and counts for ever.
CREATE TABLE mailbox_peers (
    id              INTEGER PRIMARY KEY,
    owner           TEXT NOT NULL,
    peer_id         TEXT NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('chat', 'dot', 'local')),
    display_name    TEXT NOT NULL,            -- '' when the peer has none
    host_id         TEXT NOT NULL,            -- '' unless local
    agent_id        TEXT NOT NULL,            -- '' unless local
    generation      INTEGER NOT NULL CHECK (generation >= 1),
    generation_from INTEGER NOT NULL,         -- mail of this generation has a greater mailbox_messages.id
    created_at      INTEGER NOT NULL,
    last_seen_at    INTEGER NOT NULL,
    stopped_at      INTEGER,                  -- NULL while active
    unprocessed     INTEGER NOT NULL DEFAULT 0 CHECK (unprocessed >= 0),
    unprocessed_now INTEGER NOT NULL DEFAULT 0 CHECK (unprocessed_now BETWEEN 0 AND unprocessed), -- of this generation
    UNIQUE (owner, peer_id),
    CHECK ((kind = 'local') = (host_id <> '' AND agent_id <> ''))
) STRICT;
-- An agent is at most one active peer, so that it knows its own mail.
CREATE UNIQUE INDEX mailbox_peers_agent ON mailbox_peers (owner, host_id, agent_id) WHERE kind = 'local' AND stopped_at IS NULL;

-- Rows are never deleted, so id is the order of arrival; a purged message loses
-- its text and keeps what the caller-key, reply and thread rules need.
CREATE TABLE mailbox_messages (
    id                   INTEGER PRIMARY KEY,
    owner                TEXT NOT NULL,
    message_id           TEXT NOT NULL,       -- UUID, lower case, chosen by the sender
    fingerprint          BLOB NOT NULL,       -- SHA-256 of the arguments
    from_peer            INTEGER NOT NULL REFERENCES mailbox_peers (id),
    to_peer              INTEGER NOT NULL REFERENCES mailbox_peers (id),
    recipient_generation INTEGER NOT NULL,
    thread               INTEGER NOT NULL REFERENCES mailbox_messages (id), -- the first message; itself on hop 1
    hop                  INTEGER NOT NULL CHECK (hop BETWEEN 1 AND 8),
    in_reply_to          INTEGER UNIQUE REFERENCES mailbox_messages (id),
    created_at           INTEGER NOT NULL,
    read_at              INTEGER,             -- NULL until the recipient itself read it
    processed_at         INTEGER,             -- NULL until acknowledged
    purged_at            INTEGER,             -- NULL while the text is here
    delivery_path        TEXT NOT NULL CHECK (delivery_path IN ('native', 'events', 'webhook', 'none')),
    delivery_reason      TEXT NOT NULL,       -- why nobody is woken; '' when the path says it all
    text_length          INTEGER NOT NULL,    -- code points
    UNIQUE (owner, message_id),
    CHECK ((hop = 1) = (thread = id) AND (hop = 1) = (in_reply_to IS NULL) AND from_peer <> to_peer)
) STRICT;
CREATE INDEX mailbox_messages_inbox ON mailbox_messages (to_peer) WHERE purged_at IS NULL;
CREATE INDEX mailbox_messages_unprocessed ON mailbox_messages (to_peer) WHERE processed_at IS NULL AND purged_at IS NULL;
CREATE INDEX mailbox_messages_thread ON mailbox_messages (thread);

-- Apart from the messages, so that marking one read or processed does not write
-- its text again, and in two parts, so that a list reads summaries without the
-- pages that hold the rest. BLOBs, because SQLite's TEXT functions stop at NUL,
-- which a text may contain.
CREATE TABLE mailbox_texts (
    id      INTEGER PRIMARY KEY REFERENCES mailbox_messages (id),
    summary BLOB NOT NULL, -- the first 200 code points
    rest    BLOB NOT NULL  -- the text after them
) STRICT;

-- One hour of sending, from its first message on. pair is the two peer ids in
-- byte order with a space between them, '' for the whole owner.
CREATE TABLE mailbox_budgets (
    owner      TEXT NOT NULL,
    pair       TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    PRIMARY KEY (owner, pair)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE mailbox_budgets;
DROP TABLE mailbox_texts;
DROP TABLE mailbox_messages;
DROP TABLE mailbox_peers;
