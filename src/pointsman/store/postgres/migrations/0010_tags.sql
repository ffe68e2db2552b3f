-- Words by which runs are found.
ALTER TABLE run ADD COLUMN tags text NOT NULL DEFAULT '[]' CHECK (tags IS JSON ARRAY);

DROP TRIGGER run_keeps_what_it_began_with ON run;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload, tags ON run FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
           new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload, new.tags)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
           old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload, old.tags))
    EXECUTE FUNCTION forbid('a run keeps its id, machine, tenant, payload and everything else that it was created with');

-- The same words, for lists of the runs that have one, newest first.
CREATE TABLE run_tag (
    tenant     text COLLATE "C" NOT NULL REFERENCES tenant,
    tag        text COLLATE "C" NOT NULL CHECK (tag <> ''),
    created_at instant NOT NULL,
    run_id     text COLLATE "C" NOT NULL REFERENCES run,
    PRIMARY KEY (tenant, tag, created_at, run_id)
);
