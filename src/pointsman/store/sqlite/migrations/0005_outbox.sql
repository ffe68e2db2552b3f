-- Notifications that are to be delivered, have been, or could not be: one for each transition and target. A process that delivers one claims
-- it: `due_at` is the end of its lease then, and else the time of the next try.
CREATE TABLE outbox (
    id           TEXT PRIMARY KEY,
    position     INTEGER NOT NULL,
    origin       TEXT NOT NULL CHECK (origin IN ('settings', 'flow')),
    target       TEXT NOT NULL,
    method       TEXT NOT NULL CHECK (method IN ('command', 'webhook')),
    tenant       TEXT NOT NULL,
    run_id       TEXT,
    event        TEXT NOT NULL,
    subject      TEXT NOT NULL,
    body         TEXT NOT NULL CHECK (json_valid(body) AND json_type(body) = 'object'),
    created_at   INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    due_at       INTEGER CHECK (due_at BETWEEN 0 AND 253402300799999999),
    claimed_by   TEXT,
    tries        INTEGER NOT NULL CHECK (tries >= 0),
    error        TEXT,
    delivered_at INTEGER CHECK (delivered_at BETWEEN 0 AND 253402300799999999),
    dead_at      INTEGER CHECK (dead_at BETWEEN 0 AND 253402300799999999),
    UNIQUE (position, origin, target),
    CHECK ((due_at IS NOT NULL) + (delivered_at IS NOT NULL) + (dead_at IS NOT NULL) = 1),
    CHECK (claimed_by IS NULL OR due_at IS NOT NULL)
) STRICT;

CREATE INDEX outbox_due ON outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

-- Up to which position of the event stream the outbox has everything for a target.
CREATE TABLE outbox_cursor (
    origin   TEXT NOT NULL CHECK (origin IN ('settings', 'flow')),
    target   TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0),
    PRIMARY KEY (origin, target)
) STRICT, WITHOUT ROWID;
