-- Notifications that are to be delivered, have been, or could not be: one for each transition and target. A process that delivers one claims
-- it: `due_at` is the end of its lease then, and else the time of the next try.
CREATE TABLE outbox (
    id           text COLLATE "C" PRIMARY KEY,
    position     bigint NOT NULL,
    origin       text NOT NULL CHECK (origin IN ('settings', 'flow')),
    target       text COLLATE "C" NOT NULL,
    method       text NOT NULL CHECK (method IN ('command', 'webhook')),
    tenant       text COLLATE "C" NOT NULL,
    run_id       text COLLATE "C",
    event        text NOT NULL,
    subject      text NOT NULL,
    body         text NOT NULL CHECK (body IS JSON OBJECT),
    created_at   instant NOT NULL,
    due_at       instant,
    claimed_by   text,
    tries        integer NOT NULL CHECK (tries >= 0),
    error        text,
    delivered_at instant,
    dead_at      instant,
    UNIQUE (position, origin, target),
    CONSTRAINT outbox_is_due_delivered_or_dead
        CHECK ((due_at IS NOT NULL)::integer + (delivered_at IS NOT NULL)::integer + (dead_at IS NOT NULL)::integer = 1),
    CONSTRAINT outbox_is_claimed_while_due CHECK (claimed_by IS NULL OR due_at IS NOT NULL)
);

CREATE INDEX outbox_due ON outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

-- Up to which position of the event stream the outbox has everything for a target.
CREATE TABLE outbox_cursor (
    origin   text NOT NULL CHECK (origin IN ('settings', 'flow')),
    target   text COLLATE "C" NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    PRIMARY KEY (origin, target)
);
