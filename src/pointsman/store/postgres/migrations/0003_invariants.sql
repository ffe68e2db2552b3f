-- The task that checks a run when all others have succeeded.

ALTER TABLE run ADD COLUMN final_task text CHECK (final_task IS JSON);

DROP TRIGGER run_keeps_what_it_began_with ON run;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload ON run FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
           new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
           old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload))
    EXECUTE FUNCTION forbid('a run keeps its id, machine, tenant, payload and everything else that it was created with');

-- A worker is terminated when its processes have ended, or its lease has run out.

ALTER TABLE worker ADD COLUMN terminate_wanted boolean NOT NULL DEFAULT false;

-- The invariants of document 002. A rule of a run that needs its tasks uses the same column as a rule of a task that needs its dependencies.

ALTER TABLE rule DISABLE TRIGGER rule_is_not_changed;
UPDATE rule SET needs_dependencies = true
 WHERE (to_outcome = 'success' OR to_state IN ('VALIDATING', 'validating'))
   AND machine_id IN (SELECT id FROM machine
                       WHERE name IN ('standard.run', 'pipeline.workstream', 'orchestrated.workstream', 'approval.run'));
ALTER TABLE rule ENABLE TRIGGER rule_is_not_changed;

CREATE OR REPLACE FUNCTION run_succeeds_with_its_tasks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    too_soon text := (
        SELECT run.id FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
         WHERE run.revision <> was.revision
           AND (run.outcome = 'success'
                OR (SELECT true FROM rule
                     WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                       AND rule.trigger = run.trigger AND rule.needs_dependencies))
           AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
         LIMIT 1);
BEGIN
    IF too_soon IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run is validated and succeeds only when all of its tasks have succeeded, and % has others', too_soon;
    END IF;
    RETURN NULL;
END $$;

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM new_rows JOIN task ON task.id = new_rows.task_id
                WHERE task.revision > 0
                   OR (task.open_dependencies = 0
                       AND (SELECT outcome FROM task AS other WHERE other.id = new_rows.depends_on_id) IS DISTINCT FROM 'success')) THEN
        RAISE EXCEPTION 'pointsman: a task gets its dependencies when it is created, and counts those that are open';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER dependency_comes_with_its_task AFTER INSERT ON dependency REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION dependency_comes_with_its_task();

CREATE TRIGGER attempt_stays_lost BEFORE UPDATE OF lease_expired ON task FOR EACH ROW
    WHEN (old.lease_expired AND NOT new.lease_expired AND new.current_attempt IS NOT DISTINCT FROM old.current_attempt)
    EXECUTE FUNCTION forbid('an attempt that has lost its lease does not get it back');

CREATE FUNCTION worker_ends_without_tasks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = new.id AND current_attempt IS NOT NULL AND NOT lease_expired) THEN
        RAISE EXCEPTION 'pointsman: a worker ends only when it holds no task, and % holds some', new.id;
    END IF;
    RETURN NULL;
END $$;
-- A change of state by hand gets its phase from moved_by_hand, and does not name that column.
CREATE TRIGGER worker_ends_without_tasks AFTER UPDATE OF state, phase ON worker FOR EACH ROW
    WHEN (new.phase = 'done' AND old.phase <> 'done') EXECUTE FUNCTION worker_ends_without_tasks();
CREATE TRIGGER worker_is_heard_of_while_it_lives BEFORE UPDATE OF heartbeat_at ON worker FOR EACH ROW
    WHEN (new.heartbeat_at <> old.heartbeat_at AND (old.phase = 'done' OR new.missing))
    EXECUTE FUNCTION forbid('only a worker that is alive and not missing has a heartbeat');

-- Lists of runs begin with the newest. Ids do not say which that is: those of jobs are random (document 000).
DROP INDEX run_of_tenant;
CREATE INDEX run_of_tenant ON run (tenant, created_at, id);

-- A worker that `pointsman run` starts claims tasks of one run only, so no other run may have it allocated.
ALTER TABLE worker ADD COLUMN only_run_id text REFERENCES run;

-- Only a worker that has not ended begins an attempt, and no more of them than it may hold. A lost attempt does not count, and stays lost.
-- Both databases check the room of a worker when it begins an attempt, and at no other change of a task. A worker that an older version
-- left with too many tasks can still end them. Which of its attempts have begun in this statement is asked only about a worker without room:
-- that join would cost too much for every move.
CREATE FUNCTION attempt_finds_room() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    overloaded text[] := ARRAY(
        SELECT worker.id FROM worker
         WHERE worker.id IN (SELECT attempt_worker_id FROM new_rows WHERE current_attempt IS NOT NULL AND NOT lease_expired)
           AND (worker.phase = 'done'
                OR worker.max_concurrent_tasks < (SELECT count(*) FROM task AS held
                                                   WHERE held.attempt_worker_id = worker.id AND held.current_attempt IS NOT NULL
                                                     AND NOT held.lease_expired)));
    refused text;
BEGIN
    IF overloaded <> '{}' THEN
        refused := (SELECT began.attempt_worker_id FROM new_rows AS began JOIN old_rows AS was ON was.id = began.id
                     WHERE began.attempt_worker_id = ANY (overloaded) AND began.epoch <> was.epoch
                       AND began.current_attempt IS NOT NULL AND NOT began.lease_expired
                     LIMIT 1);
        IF refused IS NOT NULL THEN
            RAISE EXCEPTION 'pointsman: a worker that has ended gets no task, and no worker gets more than it may hold: %', refused;
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER attempt_finds_room AFTER UPDATE ON task REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION attempt_finds_room();

-- What a worker says of itself, for people and programs. The column `metadata` belongs to its last move.
ALTER TABLE worker ADD COLUMN worker_metadata text NOT NULL DEFAULT '{}' CHECK (worker_metadata IS JSON OBJECT);

DROP TRIGGER worker_keeps_what_it_began_with ON worker;
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata
    ON worker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
           new.lease_seconds, new.only_run_id, new.worker_metadata)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
           old.lease_seconds, old.only_run_id, old.worker_metadata))
    EXECUTE FUNCTION forbid('a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');

REVOKE EXECUTE ON FUNCTION dependency_comes_with_its_task(), attempt_finds_room(), worker_ends_without_tasks() FROM PUBLIC;
