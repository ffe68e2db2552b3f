-- name: count_overstayed
SELECT kind, entity.id, state, entered_at
  FROM (SELECT 'run' AS kind, id, machine_id, state, entered_at FROM run WHERE phase <> 'done'
        UNION ALL SELECT 'task', id, machine_id, state, entered_at FROM task WHERE outcome IS NULL
        UNION ALL SELECT 'worker', id, machine_id, state, entered_at FROM worker WHERE phase <> 'done') AS entity
  JOIN json_each(:limits) AS allowed
    ON entity.machine_id = allowed.value ->> 0 AND entity.state = allowed.value ->> 1
 WHERE entered_at + (allowed.value ->> 2) * 1e6 < :now
 ORDER BY entered_at

-- name: list_disagreements
SELECT 'task' AS kind, id, 'open_dependencies is ' || open_dependencies || ', but ' || recount || ' of its dependencies are open' AS what
  FROM (SELECT task.id, task.open_dependencies,
               (SELECT count(*) FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                 WHERE dependency.task_id = task.id AND (other.outcome IS NULL OR other.outcome <> 'success')) AS recount
          FROM task WHERE outcome IS NULL OR outcome <> 'success')
 WHERE open_dependencies <> recount
UNION ALL
SELECT 'run', run.id, 'it has ended, but its task ' || task.name || ' is still running'
  FROM run JOIN task ON task.run_id = run.id
 WHERE run.outcome = 'success' AND task.phase = 'active'
UNION ALL
SELECT 'task', id, 'it waits for a worker, but its attempts are used up'
  FROM task
 WHERE phase = 'queued' AND attempt_count >= max_attempts AND (outcome IS NULL OR outcome <> 'success')
UNION ALL
SELECT DISTINCT 'run', run.id, 'its tasks do not know that it is ' || run.state
  FROM task JOIN run ON run.id = task.run_id
 WHERE (task.outcome IS NULL OR task.outcome <> 'success')
   AND task.run_open <> (run.missing_tasks = 0 AND (run.phase = 'active' OR (run.phase = 'queued' AND run.allocates = 0)))
UNION ALL
SELECT 'run', run.id, 'it has promised more or less than its tasks have reserved'
  FROM run
 WHERE run.promised_usd <> coalesce((SELECT sum(reserved_usd) FROM task WHERE run_id = run.id AND phase = 'active'
                                        AND (outcome IS NULL OR outcome <> 'success')), 0)
UNION ALL
SELECT DISTINCT 'run', run.id, 'it has ended, but workers still belong to it'
  FROM worker JOIN run ON run.id = worker.run_id
 WHERE run.phase = 'done'
UNION ALL
SELECT 'breaker', breaker.id, 'its probe ' || task.name || ' is not running'
  FROM breaker JOIN task ON task.id = breaker.probe_task_id
 WHERE task.phase <> 'active'
UNION ALL
SELECT DISTINCT 'worker', worker.id, 'it has ended, but still holds tasks'
  FROM task JOIN worker ON worker.id = task.attempt_worker_id
 WHERE task.current_attempt IS NOT NULL AND worker.phase = 'done' AND task.lease_expired = 0
UNION ALL
SELECT kind, id, 'it is ' || state || ', but its audit trail ends in ' || coalesce(last_state, 'nothing')
  FROM (SELECT 'run' AS kind, id, state FROM run
        UNION ALL SELECT 'task', id, state FROM task
        UNION ALL SELECT 'worker', id, state FROM worker
        UNION ALL SELECT 'breaker', id, state FROM breaker) AS entity
  LEFT JOIN (SELECT entity_id, to_state AS last_state, max(revision) FROM transition GROUP BY entity_id) AS trail
         ON trail.entity_id = entity.id
 WHERE last_state IS NOT state

-- name: list_stalled_runs
-- Under way, but nothing in it moves and nobody is asked for anything; one whose tasks are all done waits for its last checks.
SELECT run.id, run.tenant
  FROM run
 WHERE run.phase = 'active'
   AND EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success'))
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND phase = 'active' AND (outcome IS NULL OR outcome <> 'success'))
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND phase IN ('queued', 'held') AND open_dependencies = 0
                                        AND (outcome IS NULL OR outcome <> 'success'))
 ORDER BY run.id

-- name: list_failed_tasks
SELECT task.*
  FROM run JOIN task ON task.run_id = run.id
 WHERE task.phase = 'done' AND task.outcome = 'failure' AND (run.outcome IS NULL OR run.outcome = 'failure')
 ORDER BY task.id DESC LIMIT :limit

-- name: list_tripped_breakers
SELECT * FROM breaker WHERE phase <> 'queued' ORDER BY tenant, tool

-- name: recount_dependencies
UPDATE task
   SET open_dependencies = (SELECT count(*) FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                             WHERE dependency.task_id = task.id AND (other.outcome IS NULL OR other.outcome <> 'success'))
 WHERE id IN (SELECT value FROM json_each(:ids)) AND phase IN ('held', 'queued')

-- name: find_tool
-- One row, whether there is such a lane or not.
SELECT (SELECT tool FROM lane WHERE id = :id)

-- name: list_unended_runs
-- All of its tasks have succeeded, and it goes on: because it waits for its last checks, or because nobody told it.
SELECT run.id, run.machine_id, run.state
  FROM run
 WHERE run.phase <> 'done' AND run.missing_tasks = 0
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success'))
 ORDER BY run.id
