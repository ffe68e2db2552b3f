-- Templates of runs: flows as text, which a request names.
CREATE TABLE template (
    tenant    TEXT NOT NULL REFERENCES tenant,
    name      TEXT NOT NULL CHECK (name <> ''),
    text      TEXT NOT NULL,
    stored_at INTEGER NOT NULL CHECK (stored_at BETWEEN 0 AND 253402300799999999),
    stored_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

-- Tasks that people have deleted. Their rows and their audit trails stay; lists of tasks leave them out.
CREATE TABLE tombstone (
    task_id    TEXT PRIMARY KEY REFERENCES task,
    tenant     TEXT NOT NULL REFERENCES tenant,
    deleted_at INTEGER NOT NULL CHECK (deleted_at BETWEEN 0 AND 253402300799999999),
    deleted_by TEXT NOT NULL,
    reason     TEXT
) STRICT, WITHOUT ROWID;
