-- Templates of runs: flows as text, which a request names.
CREATE TABLE template (
    tenant    text COLLATE "C" NOT NULL REFERENCES tenant,
    name      text COLLATE "C" NOT NULL CHECK (name <> ''),
    text      text NOT NULL,
    stored_at instant NOT NULL,
    stored_by text NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Tasks that people have deleted. Their rows and their audit trails stay; lists of tasks leave them out.
CREATE TABLE tombstone (
    task_id    text COLLATE "C" PRIMARY KEY REFERENCES task,
    tenant     text COLLATE "C" NOT NULL REFERENCES tenant,
    deleted_at instant NOT NULL,
    deleted_by text NOT NULL,
    reason     text
);
