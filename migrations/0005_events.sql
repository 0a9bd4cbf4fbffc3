-- +goose Up
-- Where POSTs go. A row remembers how the receiver fares, over restarts.
CREATE TABLE event_receivers (
    id              INTEGER PRIMARY KEY,
    address         TEXT NOT NULL UNIQUE,       -- a callback's URL, or 'wake <owner> <peerId>' for a target of the config
    failures        INTEGER NOT NULL DEFAULT 0, -- since the last success
    failed_since    INTEGER,                    -- the first of them; milliseconds UTC, as all times
    last_error      TEXT NOT NULL DEFAULT '',   -- of the last of them
    probe_at        INTEGER NOT NULL DEFAULT 0, -- the next attempt while the breaker is open
    throttled_until INTEGER NOT NULL DEFAULT 0  -- the receiver asked for no attempt before (Retry-After)
) STRICT;

-- A row stays when its subscription ends, so that the same four values name the
-- same id for ever; the secrets do not.
CREATE TABLE event_subscriptions (
    id               TEXT PRIMARY KEY,        -- 'sub_' and 32 hex digits
    owner            TEXT NOT NULL,
    receiver         INTEGER NOT NULL REFERENCES event_receivers (id),
    name             TEXT NOT NULL,
    arguments        TEXT NOT NULL,           -- canonical JSON
    client_id        TEXT NOT NULL,           -- the OAuth client that last subscribed
    secret           BLOB NOT NULL,           -- sealed; empty once ended
    old_secret       BLOB,                    -- sealed; also signs until old_secret_until
    old_secret_until INTEGER,
    created_at       INTEGER NOT NULL,
    refreshed_at     INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    ended_at         INTEGER,                 -- NULL while active
    ended_reason     TEXT NOT NULL DEFAULT '',
    last_accepted_at INTEGER,
    UNIQUE (receiver, owner, name, arguments)
) STRICT;
CREATE INDEX event_subscriptions_match ON event_subscriptions (owner, name, arguments);
CREATE INDEX event_subscriptions_client ON event_subscriptions (client_id) WHERE ended_at IS NULL;

-- That a receiver answered a challenge for an owner.
CREATE TABLE event_verifications (
    owner       TEXT NOT NULL,
    url         TEXT NOT NULL,
    verified_at INTEGER NOT NULL,
    PRIMARY KEY (owner, url)
) STRICT, WITHOUT ROWID;

-- Something that happened while somebody was to be told.
CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    event_id   TEXT NOT NULL UNIQUE, -- 'evt_' and 32 hex digits
    owner      TEXT NOT NULL,
    name       TEXT NOT NULL,
    subject    TEXT NOT NULL,        -- what it is about, once per owner and name: a messageId
    peer_id    TEXT NOT NULL,        -- the peer that is woken; '' when it is none
    body       BLOB NOT NULL,        -- the bytes of every attempt
    created_at INTEGER NOT NULL,
    UNIQUE (owner, name, subject)
) STRICT;
CREATE INDEX events_created ON events (created_at);

-- The outbox: one event on its way to one receiver.
CREATE TABLE event_deliveries (
    id              INTEGER PRIMARY KEY,
    event           INTEGER NOT NULL REFERENCES events (id) ON DELETE CASCADE,
    receiver        INTEGER NOT NULL REFERENCES event_receivers (id),
    subscription    TEXT REFERENCES event_subscriptions (id), -- NULL for a wake-up target
    state           TEXT NOT NULL CHECK (state IN ('queued', 'submitting', 'accepted', 'failed', 'unknown', 'cancelled')),
    reason          TEXT NOT NULL DEFAULT '',                 -- why it is in this state; a word of internal/events
    attempts        INTEGER NOT NULL DEFAULT 0,               -- all of them
    tries           INTEGER NOT NULL DEFAULT 0,               -- of the present round; a resend begins a new one
    next_at         INTEGER NOT NULL,
    last_attempt_at INTEGER,
    UNIQUE (event, receiver)
) STRICT;
CREATE INDEX event_deliveries_due ON event_deliveries (receiver, state, next_at);
CREATE INDEX event_deliveries_subscription ON event_deliveries (subscription, state);
CREATE INDEX event_deliveries_submitting ON event_deliveries (id) WHERE state = 'submitting';
CREATE INDEX event_deliveries_dead ON event_deliveries (id) WHERE state IN ('failed', 'unknown');
CREATE INDEX event_deliveries_accepted ON event_deliveries (last_attempt_at) WHERE state = 'accepted';

-- Every POST, written before it is made.
CREATE TABLE event_attempts (
    delivery   INTEGER NOT NULL REFERENCES event_deliveries (id) ON DELETE CASCADE,
    attempt    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,                -- NULL while it runs
    status     INTEGER,                -- of HTTP; NULL without an answer
    outcome    TEXT NOT NULL DEFAULT '', -- 'accepted' or a reason; '' while it runs
    PRIMARY KEY (delivery, attempt)
) STRICT, WITHOUT ROWID;

-- The wake-up targets of the config that were activated.
CREATE TABLE event_wake_targets (
    owner           TEXT NOT NULL,
    peer_id         TEXT NOT NULL,
    generation      INTEGER NOT NULL,
    routine_id      TEXT NOT NULL,
    watermark       INTEGER NOT NULL, -- mail up to this mailbox_messages.id wakes nobody
    activated_at    INTEGER NOT NULL,
    disabled_at     INTEGER,          -- NULL while it may wake
    disabled_reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (owner, peer_id)
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE event_wake_targets;
DROP TABLE event_attempts;
DROP TABLE event_deliveries;
DROP TABLE events;
DROP TABLE event_verifications;
DROP TABLE event_subscriptions;
DROP TABLE event_receivers;
