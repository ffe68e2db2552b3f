-- Words by which runs are found.
ALTER TABLE run ADD COLUMN tags TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tags) AND json_type(tags) = 'array');

DROP TRIGGER run_keeps_what_it_began_with;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload, tags ON run
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
          new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload, new.tags)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
          old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload, old.tags) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its id, machine, tenant, payload and everything else that it was created with');
END;

-- The same words, for lists of the runs that have one, newest first.
CREATE TABLE run_tag (
    tenant     TEXT NOT NULL REFERENCES tenant,
    tag        TEXT NOT NULL CHECK (tag <> ''),
    created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    run_id     TEXT NOT NULL REFERENCES run,
    PRIMARY KEY (tenant, tag, created_at, run_id)
) STRICT, WITHOUT ROWID;
