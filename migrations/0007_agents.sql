-- +goose Up
-- Agents that may come over a host's channel. An agent belongs to one owner. Rows
-- are never deleted: a revoked agent must not come back by itself.
CREATE TABLE agents (
    host_id      TEXT NOT NULL,
    agent_id     TEXT NOT NULL,
    owner        TEXT NOT NULL,
    source       TEXT NOT NULL CHECK (source IN ('dispatch', 'adopted')),
    created_at   INTEGER NOT NULL, -- milliseconds UTC
    key_hash     BLOB,             -- SHA-256 of the capability; NULL until it is issued, and once revoked
    issued_at    INTEGER,          -- when that capability was made
    revoked_at   INTEGER,          -- NULL while it may come
    last_seen_at INTEGER,          -- to the minute
    PRIMARY KEY (host_id, agent_id),
    CHECK (key_hash IS NULL OR (length(key_hash) = 32 AND revoked_at IS NULL AND issued_at IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX agents_key ON agents (key_hash) WHERE key_hash IS NOT NULL;

-- +goose Down
DROP TABLE agents;
