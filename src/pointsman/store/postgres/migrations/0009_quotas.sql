-- How much unfinished work tenants may have at once; no row and NULL mean no limit.
CREATE TABLE quota (
    tenant    text COLLATE "C" PRIMARY KEY REFERENCES tenant,
    max_runs  bigint CHECK (max_runs >= 0),
    max_tasks bigint CHECK (max_tasks >= 0),
    max_bytes bigint CHECK (max_bytes >= 0)
);

-- What counts towards a quota is read without the runs that have ended.
CREATE INDEX run_in_progress ON run (tenant) WHERE phase <> 'done';
