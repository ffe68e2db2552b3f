-- How much unfinished work tenants may have at once; no row and NULL mean no limit.
CREATE TABLE quota (
    tenant    TEXT PRIMARY KEY REFERENCES tenant,
    max_runs  INTEGER CHECK (max_runs >= 0),
    max_tasks INTEGER CHECK (max_tasks >= 0),
    max_bytes INTEGER CHECK (max_bytes >= 0)
) STRICT, WITHOUT ROWID;

-- What counts towards a quota is read without the runs that have ended.
CREATE INDEX run_in_progress ON run (tenant) WHERE phase <> 'done';
