-- +goose Up
-- The daemon that a host is known to have. Another one is sent nothing until the
-- owner accepts it.
CREATE TABLE daemon_identities (
    host_id   TEXT PRIMARY KEY,
    server_id TEXT NOT NULL,
    pinned_at INTEGER NOT NULL -- milliseconds UTC, as all times
) STRICT, WITHOUT ROWID;

-- What callers had a daemon do under a key of theirs. A row is the receipt of the
-- key and stays for ever. It holds no prompt.
CREATE TABLE dispatches (
    id             INTEGER PRIMARY KEY,
    owner          TEXT NOT NULL,
    host_id        TEXT NOT NULL,
    request_id     TEXT NOT NULL,
    client_id      TEXT NOT NULL,            -- the OAuth client that asked first
    tool           TEXT NOT NULL CHECK (tool IN ('create_agent', 'send_agent_prompt', 'create_workspace')),
    fingerprint    BLOB NOT NULL,
    content        BLOB NOT NULL,            -- fingerprint of a reply without requestId and route; empty for others
    state          TEXT NOT NULL CHECK (state IN ('submitting', 'submitted', 'rejected', 'not_sent', 'unknown')),
    stage          TEXT NOT NULL CHECK (stage IN ('prepared', 'creating', 'prompting')), -- what was last given to the daemon
    keyed          INTEGER NOT NULL DEFAULT 0, -- 1: the daemon runs this key once, so that asking again is safe
    error_code     TEXT NOT NULL DEFAULT '',
    error_message  TEXT NOT NULL DEFAULT '',
    error_hint     TEXT NOT NULL DEFAULT '',
    answer         TEXT NOT NULL DEFAULT '', -- what the daemon answered, as callers see it; JSON or ''
    agent_id       TEXT NOT NULL DEFAULT '', -- '' until known
    workspace_id   TEXT NOT NULL DEFAULT '',
    cwd            TEXT NOT NULL DEFAULT '', -- canonical
    prompt_id      TEXT NOT NULL,            -- UUID: the prompt's message id, and a label of a created agent
    route_id       TEXT NOT NULL DEFAULT '', -- '' tells nobody
    turn_id        TEXT NOT NULL DEFAULT '', -- of the daemon, once seen
    epoch          TEXT NOT NULL DEFAULT '', -- of the timeline in which the prompt was seen live
    marker_seq     INTEGER,                  -- where it stands there
    terminal_kind  TEXT NOT NULL DEFAULT '' CHECK (terminal_kind IN ('', 'turn_completed', 'turn_failed', 'turn_canceled', 'observed_idle', 'observed_error')),
    terminal_at    INTEGER,                  -- when we saw it
    terminal_text  TEXT NOT NULL DEFAULT '', -- the daemon's reason of a failed or canceled turn
    lost           TEXT NOT NULL DEFAULT '', -- why the outcome can't be known any more
    closed_at      INTEGER,                  -- NULL while there is something to follow
    submitted_at   INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    UNIQUE (owner, host_id, request_id)
) STRICT;
CREATE INDEX dispatches_agent ON dispatches (host_id, agent_id, id);
CREATE INDEX dispatches_open ON dispatches (host_id, agent_id, id) WHERE closed_at IS NULL;
CREATE INDEX dispatches_route ON dispatches (owner, host_id, workspace_id, route_id) WHERE route_id <> '';

-- What an agent wrote for a dispatch. Apart, so that following one writes no
-- megabyte again.
CREATE TABLE dispatch_results (
    dispatch INTEGER PRIMARY KEY REFERENCES dispatches (id),
    result   BLOB NOT NULL,  -- JSON, at most 1 MiB
    saved_at INTEGER NOT NULL
) STRICT;

-- Something that whoever dispatched is to be told once.
CREATE TABLE dispatch_notices (
    id            INTEGER PRIMARY KEY,
    dispatch      INTEGER NOT NULL REFERENCES dispatches (id),
    source_key    TEXT NOT NULL,   -- '<requestId>:<kind>', '<requestId>:permission:<id>' or 'message:<messageId>'
    kind          TEXT NOT NULL CHECK (kind IN ('message', 'needs_input', 'result', 'error', 'permission', 'canceled')),
    message_id    TEXT NOT NULL DEFAULT '',
    summary       TEXT NOT NULL,
    ready         INTEGER NOT NULL, -- 1: the agent is idle and waits
    terminal_kind TEXT NOT NULL DEFAULT '',
    created_at    INTEGER NOT NULL,
    published_at  INTEGER,          -- NULL while nobody subscribed
    moot          INTEGER NOT NULL DEFAULT 0, -- 1: over before anybody could be told
    UNIQUE (dispatch, source_key)
) STRICT;
CREATE INDEX dispatch_notices_owed ON dispatch_notices (dispatch) WHERE published_at IS NULL AND moot = 0;

-- What an agent wrote to the chat that dispatched it.
CREATE TABLE agent_messages (
    id         INTEGER PRIMARY KEY,
    owner      TEXT NOT NULL,
    host_id    TEXT NOT NULL,
    message_id TEXT NOT NULL,      -- UUID, lower case, chosen by the agent
    dispatch   INTEGER NOT NULL REFERENCES dispatches (id),
    kind       TEXT NOT NULL CHECK (kind IN ('message', 'needs_input')),
    text       BLOB NOT NULL,
    held       INTEGER NOT NULL DEFAULT 0, -- 1: needs_input of an agent that still runs
    created_at INTEGER NOT NULL,
    reply      INTEGER REFERENCES dispatches (id), -- the one reply to it
    UNIQUE (owner, host_id, message_id)
) STRICT;
CREATE INDEX agent_messages_dispatch ON agent_messages (dispatch);
CREATE INDEX agent_messages_reply ON agent_messages (reply) WHERE reply IS NOT NULL;

-- Answers to permissions, so that each is given once.
CREATE TABLE permission_answers (
    host_id       TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    permission_id TEXT NOT NULL,
    owner         TEXT NOT NULL,
    client_id     TEXT NOT NULL,
    fingerprint   BLOB NOT NULL,
    behavior      TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('submitting', 'submitted', 'unknown')),
    answered_at   INTEGER NOT NULL,
    PRIMARY KEY (host_id, agent_id, permission_id)
) STRICT, WITHOUT ROWID;

-- Prompts that tell an agent of its mail. It holds ids only.
CREATE TABLE native_prompts (
    id           INTEGER PRIMARY KEY,
    host_id      TEXT NOT NULL,
    agent_id     TEXT NOT NULL,
    prompt_id    TEXT NOT NULL UNIQUE, -- UUID: its message id, and what its first line says
    state        TEXT NOT NULL CHECK (state IN ('submitting', 'submitted', 'failed', 'unknown', 'not_sent')),
    reason       TEXT NOT NULL DEFAULT '',
    submitted_at INTEGER NOT NULL
) STRICT;
CREATE INDEX native_prompts_unknown ON native_prompts (host_id) WHERE state = 'unknown';

-- Mail for native agents. The state of a row with a prompt is the prompt's.
CREATE TABLE native_deliveries (
    id         INTEGER PRIMARY KEY,
    owner      TEXT NOT NULL,
    message_id TEXT NOT NULL,
    peer_id    TEXT NOT NULL,
    generation INTEGER NOT NULL,
    from_peer  TEXT NOT NULL,
    host_id    TEXT NOT NULL,
    agent_id   TEXT NOT NULL,
    prompt     INTEGER REFERENCES native_prompts (id), -- NULL while it waits
    attempts   INTEGER NOT NULL DEFAULT 0,
    cancelled  TEXT NOT NULL DEFAULT '', -- why it is not delivered any more
    queued_at  INTEGER NOT NULL,
    UNIQUE (owner, message_id)
) STRICT;
CREATE INDEX native_deliveries_waiting ON native_deliveries (host_id, agent_id, id) WHERE prompt IS NULL AND cancelled = '';
CREATE INDEX native_deliveries_peer ON native_deliveries (owner, peer_id, generation) WHERE prompt IS NULL AND cancelled = '';
CREATE INDEX native_deliveries_prompt ON native_deliveries (prompt) WHERE prompt IS NOT NULL;

-- +goose Down
DROP TABLE native_deliveries;
DROP TABLE native_prompts;
DROP TABLE permission_answers;
DROP TABLE agent_messages;
DROP TABLE dispatch_notices;
DROP TABLE dispatch_results;
DROP TABLE dispatches;
DROP TABLE daemon_identities;
