-- +goose Up
-- A transfer of a file out of a project (export) or into one (import). A row is
-- the receipt of its caller's key and stays for ever.
CREATE TABLE transfers (
    id              INTEGER PRIMARY KEY,
    owner           TEXT NOT NULL,
    host_id         TEXT NOT NULL,
    request_id      TEXT NOT NULL,
    client_id       TEXT NOT NULL,                -- the OAuth client that asked first
    direction       TEXT NOT NULL CHECK (direction IN ('export', 'import')),
    fingerprint     BLOB NOT NULL,
    project_id      TEXT NOT NULL,
    path            TEXT NOT NULL,
    expected_sha256 TEXT NOT NULL DEFAULT '',     -- of an import's target; '' creates it
    state           TEXT NOT NULL CHECK (state IN ('pending', 'ready', 'completed', 'failed', 'interrupted', 'outcome_unknown', 'expired', 'revoked')),
    placing         INTEGER NOT NULL DEFAULT 0,   -- 1 once the host may have been asked to place an import
    size            INTEGER,                      -- bytes, once known
    sha256          TEXT NOT NULL DEFAULT '',     -- once known
    file_name       TEXT NOT NULL DEFAULT '',
    mime_type       TEXT NOT NULL DEFAULT '',
    spool           TEXT NOT NULL DEFAULT '',     -- name of its file in the spool; '' when it has none
    expires_at      INTEGER,                      -- of an export's tickets; milliseconds UTC, as all times
    bytes_served    INTEGER NOT NULL DEFAULT 0,   -- over all downloads
    served          TEXT NOT NULL DEFAULT '[]',   -- which bytes were, as JSON [[from, to), ...]
    error_code      TEXT NOT NULL DEFAULT '',
    error_message   TEXT NOT NULL DEFAULT '',
    error_hint      TEXT NOT NULL DEFAULT '',
    created_at      INTEGER NOT NULL,
    ended_at        INTEGER,                      -- when it left pending
    UNIQUE (owner, host_id, request_id)
) STRICT;
CREATE INDEX transfers_by_owner ON transfers (owner, id);
CREATE INDEX transfers_spooled ON transfers (owner, client_id) WHERE spool <> '';
CREATE INDEX transfers_unsettled ON transfers (id) WHERE state IN ('pending', 'outcome_unknown');

-- What a download link holds, as a SHA-256.
CREATE TABLE transfer_tickets (
    hash     BLOB PRIMARY KEY,
    transfer INTEGER NOT NULL REFERENCES transfers (id)
) STRICT, WITHOUT ROWID;
CREATE INDEX transfer_tickets_transfer ON transfer_tickets (transfer);

-- +goose Down
DROP TABLE transfer_tickets;
DROP TABLE transfers;
