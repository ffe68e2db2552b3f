-- Both databases check the room of a worker when it begins an attempt, and at no other change of a task. A worker that an older version
-- left with too many tasks can still end them.
-- The first count reads only task_held; the second one reads the tasks, and is needed only when some of them are lost.
DROP TRIGGER attempt_finds_room;
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
