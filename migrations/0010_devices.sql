-- +goose Up
-- Devices that are paired with this gateway. A token is a device: there is one, and
-- it is kept as its SHA-256.
CREATE TABLE devices (
    name         TEXT PRIMARY KEY,
    token_hash   BLOB NOT NULL UNIQUE,
    platform     TEXT NOT NULL DEFAULT '', -- as the device says
    paired_at    INTEGER NOT NULL,         -- milliseconds UTC, as all times
    connected_at INTEGER,                  -- its last hello; NULL: it never came back after pairing
    seen_at      INTEGER                   -- its last sign of life in an earlier link
) STRICT, WITHOUT ROWID;

-- Calls of devices. A row is the receipt of its request_id.
CREATE TABLE device_calls (
    id          INTEGER PRIMARY KEY,
    call_id     TEXT NOT NULL UNIQUE,
    owner       TEXT NOT NULL,
    client_id   TEXT NOT NULL,            -- the OAuth client that asked
    agent       TEXT NOT NULL,            -- what it calls itself, for the prompt
    device      TEXT NOT NULL,            -- no reference: a revoked device's calls stay
    tool        TEXT NOT NULL,
    request_id  TEXT NOT NULL,            -- the caller's key; call_id when there is none
    fingerprint BLOB NOT NULL,
    args        BLOB NOT NULL,            -- what has to be sent again; empty once the call ended
    args_hash   TEXT NOT NULL,            -- SHA-256 of args, hex
    reason      TEXT NOT NULL,            -- '' once the call ended
    state       TEXT NOT NULL CHECK (state IN ('queued', 'sent', 'done', 'failed')),
    created_at  INTEGER NOT NULL,
    sent_at     INTEGER,                  -- before it was first written to a link
    deadline_at INTEGER NOT NULL,
    ended_at    INTEGER,
    code        TEXT NOT NULL DEFAULT '', -- of the refusal; '' unless failed
    output      BLOB NOT NULL DEFAULT x'',
    summary     TEXT NOT NULL DEFAULT '',
    spilled     INTEGER NOT NULL DEFAULT 0,
    forgotten   INTEGER NOT NULL DEFAULT 0, -- 1: the output was removed by age
    late_at     INTEGER,                  -- when a result came that was no longer wanted
    late_ok     INTEGER,
    UNIQUE (owner, device, request_id),
    CHECK ((ended_at IS NULL) = (state IN ('queued', 'sent')))
) STRICT;
CREATE INDEX device_calls_open ON device_calls (device, id) WHERE ended_at IS NULL;
CREATE INDEX device_calls_withdrawn ON device_calls (device, deadline_at) WHERE state = 'failed' AND sent_at IS NOT NULL;
CREATE INDEX device_calls_output ON device_calls (ended_at) WHERE forgotten = 0 AND ended_at IS NOT NULL;

-- +goose Down
DROP TABLE device_calls;
DROP TABLE devices;
