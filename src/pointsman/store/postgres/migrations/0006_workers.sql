-- Both databases check the room of a worker when it begins an attempt, and at no other change of a task. A worker that an older version
-- left with too many tasks can still end them. Which of its attempts have begun in this statement is asked only about a worker without room:
-- that join would cost too much for every move.
CREATE OR REPLACE FUNCTION attempt_finds_room() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
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
DROP TRIGGER attempt_finds_room ON task;
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
