-- +goose Up
CREATE TABLE oauth_clients (
    id            TEXT PRIMARY KEY, -- chosen by us, or the https URL of a metadata document
    kind          TEXT NOT NULL CHECK (kind IN ('dynamic', 'metadata', 'registered')),
    name          TEXT NOT NULL,    -- what the client calls itself; shown, never trusted
    redirect_uris TEXT NOT NULL,    -- JSON array, as registered
    grant_types   TEXT NOT NULL,    -- JSON array; with refresh_token when the client is given those
    secret_hash   BLOB,             -- SHA-256; registered clients only
    permissions   TEXT,             -- comma list; NULL until the owner decided
    created_at    INTEGER NOT NULL,
    fresh_until   INTEGER,          -- metadata documents only
    authorized_at INTEGER,          -- the last consent; NULL when there was none
    last_used_at  INTEGER           -- kept to the minute
) STRICT;
CREATE INDEX oauth_clients_waiting ON oauth_clients (created_at) WHERE authorized_at IS NULL AND kind <> 'registered';
CREATE INDEX oauth_clients_secret ON oauth_clients (id) WHERE secret_hash IS NOT NULL;

CREATE TABLE oauth_grants (
    id         TEXT PRIMARY KEY,
    client_id  TEXT NOT NULL REFERENCES oauth_clients (id) ON DELETE CASCADE,
    scope      TEXT NOT NULL,    -- space list
    resource   TEXT NOT NULL,    -- the canonical resource the tokens are for
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, -- when the last code or token of it ends
    revoked_at INTEGER
) STRICT;
CREATE INDEX oauth_grants_client ON oauth_grants (client_id);
CREATE INDEX oauth_grants_expires ON oauth_grants (expires_at);

-- Codes and tokens are kept as SHA-256 of what the client holds.
CREATE TABLE oauth_codes (
    hash         BLOB PRIMARY KEY,
    grant_id     TEXT NOT NULL REFERENCES oauth_grants (id) ON DELETE CASCADE,
    redirect_uri TEXT NOT NULL,
    challenge    TEXT NOT NULL, -- PKCE, S256
    expires_at   INTEGER NOT NULL,
    used_at      INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX oauth_codes_grant ON oauth_codes (grant_id);

CREATE TABLE oauth_access_tokens (
    hash       BLOB PRIMARY KEY,
    grant_id   TEXT NOT NULL REFERENCES oauth_grants (id) ON DELETE CASCADE,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX oauth_access_tokens_grant ON oauth_access_tokens (grant_id);
CREATE INDEX oauth_access_tokens_expires ON oauth_access_tokens (expires_at);

CREATE TABLE oauth_refresh_tokens (
    hash       BLOB PRIMARY KEY,
    grant_id   TEXT NOT NULL REFERENCES oauth_grants (id) ON DELETE CASCADE,
    expires_at INTEGER NOT NULL,
    rotated_at INTEGER,         -- when it was first used
    successor  BLOB,            -- hash of the token it was exchanged for
    answer     BLOB             -- that exchange's answer, sealed under the token itself
) STRICT, WITHOUT ROWID;
CREATE INDEX oauth_refresh_tokens_grant ON oauth_refresh_tokens (grant_id);
CREATE INDEX oauth_refresh_tokens_expires ON oauth_refresh_tokens (expires_at);

-- +goose Down
DROP TABLE oauth_refresh_tokens;
DROP TABLE oauth_access_tokens;
DROP TABLE oauth_codes;
DROP TABLE oauth_grants;
DROP TABLE oauth_clients;
