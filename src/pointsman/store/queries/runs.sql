-- name: find_run
SELECT {run} FROM run WHERE id = :id AND tenant = :tenant

-- name: list_runs
-- Reads run_of_tenant backwards, from the newest run or from where the page before ended.
SELECT {run} FROM run
 WHERE tenant = :tenant AND created_at >= :since AND (created_at, id) < (:before, :before_id) AND {run_conditions}
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: list_unfinished_runs
-- The same for conditions that no run fulfills that has succeeded. Reads run_unfinished.
SELECT {run} FROM run
 WHERE tenant = :tenant AND (outcome IS NULL OR outcome <> 'success')
   AND created_at >= :since AND (created_at, id) < (:before, :before_id) AND {run_conditions}
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: list_runs_of_tag
-- The same for runs with a tag. Reads the key of run_tag backwards.
SELECT {run} FROM run_tag JOIN run ON run.id = run_tag.run_id
 WHERE run_tag.tenant = :tenant AND run_tag.tag = :tag
   AND run_tag.created_at >= :since AND (run_tag.created_at, run_tag.run_id) < (:before, :before_id) AND {run_conditions}
 ORDER BY run_tag.created_at DESC, run_tag.run_id DESC LIMIT :limit

-- name: may_have_succeeded
-- Whether a machine of this kind has a state of that name in which an entity has succeeded.
SELECT EXISTS (SELECT 1 FROM state WHERE kind = :kind AND name = :state AND outcome = 'success')

-- name: find_runs
SELECT {run} FROM run WHERE id IN :run_ids AND tenant = :tenant ORDER BY id

-- name: match_runs
-- Reads the ids of one tenant in run_of_tenant. An id has one underscore, behind the prefix of its kind.
SELECT {run} FROM run
 WHERE tenant = :tenant
   AND (substr(id, 1, length(CAST(:part AS TEXT))) = CAST(:part AS TEXT)
        OR substr(id, length(id) - length(CAST(:part AS TEXT)) + 1) = CAST(:part AS TEXT)
        OR replace(id, '_' || CAST(:part AS TEXT), '') <> id)
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: insert_runs
INSERT INTO {new run}

-- name: insert_run_tags
INSERT INTO {new run_tag}

-- name: list_allocatable_runs
SELECT id, tenant FROM run
 WHERE allocates AND phase IN ('queued', 'active')
   AND (phase = 'queued' OR (SELECT count(*) FROM worker WHERE worker.run_id = run.id) < worker_count)
 ORDER BY created_at, id LIMIT :limit

-- name: assess_runs
-- A few probes of task_unfinished for each run, however many tasks it has.
SELECT run.id AS run_id,
       (SELECT task.id FROM task WHERE task.run_number = run.number AND phase = 'done' AND critical
           AND outcome <> 'success' AND (outcome IS NULL OR outcome <> 'success') LIMIT 1) AS failed_task,
       (SELECT task.id FROM task WHERE task.run_number = run.number AND phase = 'done' AND (outcome IS NULL OR outcome <> 'success')
           AND NOT EXISTS (SELECT 1 FROM task_state AS other WHERE other.run_number = run.number
                              AND other.phase IN ('held', 'queued', 'active') AND (other.outcome IS NULL OR other.outcome <> 'success'))
         LIMIT 1) AS last_failure,
       EXISTS (SELECT 1 FROM task_state WHERE run_number = run.number AND (outcome IS NULL OR outcome <> 'success')) AS unfinished,
       (EXISTS (SELECT 1 FROM task_state WHERE run_number = run.number AND phase = 'active' AND (outcome IS NULL OR outcome <> 'success'))
        OR EXISTS (SELECT 1 FROM task_state WHERE run_number = run.number AND phase = 'queued' AND (outcome IS NULL OR outcome <> 'success')
                      AND open_dependencies = 0)
        OR EXISTS (SELECT 1 FROM task_state WHERE run_number = run.number AND phase = 'held' AND (outcome IS NULL OR outcome <> 'success')
                      AND available_at IS NOT NULL)) AS moving
  FROM run WHERE id IN :ids

-- name: open_runs
UPDATE task_state SET run_open = :is_open
 WHERE run_number IN (SELECT number FROM run WHERE id IN :ids) AND (outcome IS NULL OR outcome <> 'success') AND run_open <> :is_open
