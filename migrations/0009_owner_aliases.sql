-- +goose Up
-- Owners whose rows another owner has taken over. What hosts keep of commands is
-- named by the owner of that time, so it stays known.
CREATE TABLE owner_aliases (
    former TEXT PRIMARY KEY,
    owner  TEXT NOT NULL,
    since  INTEGER NOT NULL -- milliseconds UTC
) STRICT, WITHOUT ROWID;

-- What a host knows the placement of an import by, when it is not what owner and
-- request_id of now say; '' when it is.
ALTER TABLE transfers ADD COLUMN placement_id TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE transfers DROP COLUMN placement_id;
DROP TABLE owner_aliases;
