-- The task that checks a run when all others have succeeded.

ALTER TABLE run ADD COLUMN final_task TEXT CHECK (final_task IS NULL OR json_valid(final_task));

DROP TRIGGER run_keeps_what_it_began_with;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload ON run
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
          new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
          old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its id, machine, tenant, payload and everything else that it was created with');
END;

-- A worker is terminated when its processes have ended, or its lease has run out.

ALTER TABLE worker ADD COLUMN terminate_wanted INTEGER NOT NULL DEFAULT 0 CHECK (terminate_wanted IN (0, 1));

-- The invariants of document 002. A rule of a run that needs its tasks uses the same column as a rule of a task that needs its dependencies.

DROP TRIGGER rule_is_not_changed;
UPDATE rule SET needs_dependencies = 1
 WHERE (to_outcome = 'success' OR to_state IN ('VALIDATING', 'validating'))
   AND machine_id IN (SELECT id FROM machine
                       WHERE name IN ('standard.run', 'pipeline.workstream', 'orchestrated.workstream', 'approval.run'));
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be changed; load a new version of its machine');
END;

CREATE TRIGGER run_is_validated_with_its_tasks AFTER UPDATE OF revision ON run
    WHEN new.revision <> old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run is validated only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM rule
                    WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                      AND needs_dependencies = 1)
       AND EXISTS (SELECT 1 FROM task WHERE run_id = new.id AND (outcome IS NULL OR outcome <> 'success'));
END;

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE TRIGGER dependency_comes_with_its_task BEFORE INSERT ON dependency
    WHEN new.task_id <> new.depends_on_id BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task gets its dependencies when it is created, and counts those that are open')
     WHERE NOT EXISTS (SELECT 1 FROM task
                        WHERE id = new.task_id AND revision = 0
                          AND (open_dependencies > 0
                               OR EXISTS (SELECT 1 FROM task AS other WHERE other.id = new.depends_on_id AND other.outcome = 'success')));
END;

CREATE TRIGGER attempt_stays_lost BEFORE UPDATE OF lease_expired ON task
    WHEN new.lease_expired < old.lease_expired AND new.current_attempt IS old.current_attempt BEGIN
    SELECT RAISE(ABORT, 'pointsman: an attempt that has lost its lease does not get it back');
END;

CREATE TRIGGER worker_ends_without_tasks AFTER UPDATE OF phase ON worker
    WHEN new.phase = 'done' AND old.phase <> 'done' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker ends only when it holds no task')
     WHERE EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = new.id AND current_attempt IS NOT NULL AND lease_expired = 0);
END;
CREATE TRIGGER worker_is_heard_of_while_it_lives BEFORE UPDATE OF heartbeat_at ON worker
    WHEN new.heartbeat_at <> old.heartbeat_at AND (old.phase = 'done' OR new.missing = 1) BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a worker that is alive and not missing has a heartbeat');
END;

-- Lists of runs begin with the newest. Ids do not say which that is: those of jobs are random (document 000).
DROP INDEX run_of_tenant;
CREATE INDEX run_of_tenant ON run (tenant, created_at, id);

-- A worker that `pointsman run` starts claims tasks of one run only, so no other run may have it allocated.
ALTER TABLE worker ADD COLUMN only_run_id TEXT REFERENCES run;

-- Only a worker that has not ended begins an attempt, and no more of them than it may hold. A lost attempt does not count, and stays lost.
-- Both databases check the room of a worker when it begins an attempt, and at no other change of a task. A worker that an older version
-- left with too many tasks can still end them.
-- The first count reads only task_held; the second one reads the tasks, and is needed only when some of them are lost.
CREATE TRIGGER attempt_finds_room AFTER UPDATE OF epoch ON task
    WHEN new.epoch <> old.epoch AND new.current_attempt IS NOT NULL AND new.lease_expired = 0 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker that has ended gets no task, and no worker gets more than it may hold')
      FROM worker
     WHERE worker.id = new.attempt_worker_id
       AND (worker.phase = 'done'
            OR (max_concurrent_tasks < (SELECT count(*) FROM task AS held
                                         WHERE held.attempt_worker_id = new.attempt_worker_id AND held.current_attempt IS NOT NULL)
                AND max_concurrent_tasks < (SELECT count(*) FROM task AS held
                                             WHERE held.attempt_worker_id = new.attempt_worker_id
                                               AND held.current_attempt IS NOT NULL AND held.lease_expired = 0)));
END;

-- What a worker says of itself, for people and programs. The column `metadata` belongs to its last move.
ALTER TABLE worker ADD COLUMN worker_metadata TEXT NOT NULL DEFAULT '{}'
    CHECK (json_valid(worker_metadata) AND json_type(worker_metadata) = 'object');

DROP TRIGGER worker_keeps_what_it_began_with;
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata ON worker
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
          new.lease_seconds, new.only_run_id, new.worker_metadata)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
          old.lease_seconds, old.only_run_id, old.worker_metadata) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');
END;
