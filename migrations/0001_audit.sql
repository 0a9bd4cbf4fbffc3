-- +goose Up
CREATE TABLE audit_log (
    id         INTEGER PRIMARY KEY,
    at         INTEGER NOT NULL, -- milliseconds UTC
    owner      TEXT NOT NULL,    -- '' when nobody is authenticated yet
    client_id  TEXT NOT NULL,    -- the OAuth client, 'owner', or ''
    action     TEXT NOT NULL,    -- 'message.send', 'consent.allow', ...
    subject    TEXT NOT NULL,    -- the id acted on; never text, never a secret
    outcome    TEXT NOT NULL,    -- 'ok' or the refusal's code
    detail     TEXT NOT NULL     -- a JSON object of ids and numbers
) STRICT;
CREATE INDEX audit_log_at ON audit_log (at);

-- +goose Down
DROP TABLE audit_log;
