-- +goose Up
-- Wrong tries of the owner's password. The pause that follows from a row is
-- computed, so a row only counts.
CREATE TABLE owner_attempts (
    address        TEXT PRIMARY KEY, -- an IPv4 address, the /64 of an IPv6 one, or '*' for all together
    failures       INTEGER NOT NULL CHECK (failures >= 0),
    last_failed_at INTEGER NOT NULL, -- milliseconds UTC
    known_until    INTEGER NOT NULL  -- the owner signed in from here; 0 when never
) STRICT, WITHOUT ROWID;

-- Browsers in which the owner stays signed in.
CREATE TABLE owner_sessions (
    hash         BLOB PRIMARY KEY, -- SHA-256 of the cookie's token
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- +goose Down
DROP TABLE owner_sessions;
DROP TABLE owner_attempts;
