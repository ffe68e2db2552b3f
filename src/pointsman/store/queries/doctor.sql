-- name: list_disagreements
-- The audit trail is probed once for each entity by trail_of_entity.
SELECT 'task' AS kind, id,
       CASE WHEN phase = 'active' THEN 'it runs' ELSE 'open_dependencies is ' || open_dependencies END
       || ', but ' || recount || ' of its dependencies are open' AS what
  FROM (SELECT task.id, task.phase, task.open_dependencies,
               (SELECT count(*) FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                 WHERE dependency.task_id = task.id AND (other.outcome IS NULL OR other.outcome <> 'success')) AS recount
          FROM task WHERE outcome IS NULL OR outcome <> 'success') AS counted
 WHERE open_dependencies <> recount
UNION ALL
SELECT 'task', id, 'it waits for an instant, but has no timer'
  FROM task
 WHERE available_at IS NOT NULL AND (outcome IS NULL OR outcome <> 'success')
   AND NOT EXISTS (SELECT 1 FROM timer WHERE entity_id = task.id AND purpose = 'retry')
UNION ALL
SELECT 'breaker', id, 'it waits for an instant, but has no timer'
  FROM breaker
 WHERE phase = 'held' AND retry_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM timer WHERE entity_id = breaker.id AND purpose = 'cooldown')
UNION ALL
-- A person who retries moves the run, too: then it has been in its state for a shorter time than the task.
SELECT 'run', run.id, 'it goes on, although its critical task ' || task.name || ' has failed'
  FROM run JOIN task ON task.run_id = run.id
 WHERE run.phase = 'active' AND task.phase = 'done' AND task.outcome = 'failure' AND task.critical
   AND (task.outcome IS NULL OR task.outcome <> 'success') AND task.entered_at > run.entered_at
UNION ALL
SELECT 'task', id, 'it waits for a worker, but has used up its attempts'
  FROM task
 WHERE phase = 'queued' AND attempt_count >= max_attempts AND (outcome IS NULL OR outcome <> 'success')
UNION ALL
SELECT DISTINCT 'run', run.id, 'its tasks do not know that it is ' || run.state
  FROM task JOIN run ON run.id = task.run_id
 WHERE (task.outcome IS NULL OR task.outcome <> 'success')
   AND task.run_open <> (run.missing_tasks = 0 AND (run.phase = 'active' OR (run.phase = 'queued' AND NOT run.allocates)))
UNION ALL
SELECT 'run', run.id, 'its promised amount is not the sum that its tasks have reserved'
  FROM run
 WHERE run.promised_usd <> coalesce((SELECT sum(reserved_usd) FROM task WHERE run_id = run.id AND phase = 'active'
                                        AND (outcome IS NULL OR outcome <> 'success')), 0)
UNION ALL
SELECT DISTINCT 'run', run.id, 'it has ended, but workers are still allocated to it'
  FROM worker JOIN run ON run.id = worker.run_id
 WHERE run.phase = 'done'
UNION ALL
SELECT 'breaker', breaker.id, 'its probe ' || task.name || ' is not running'
  FROM breaker JOIN task ON task.id = breaker.probe_task_id
 WHERE task.phase <> 'active'
UNION ALL
SELECT DISTINCT 'worker', worker.id, 'it has ended, but still holds tasks'
  FROM task JOIN worker ON worker.id = task.attempt_worker_id
 WHERE task.current_attempt IS NOT NULL AND worker.phase = 'done' AND NOT task.lease_expired
UNION ALL
-- A creation has no rule, but leads to the initial state of its machine.
SELECT kind, traced.id, 'it is ' || state || ', but its audit trail ends in ' || coalesce(to_state, 'nothing')
  FROM (SELECT kind, id, state,
               (SELECT coalesce(trail.rule_id, -entity.machine_id)
                  FROM trail
                 WHERE trail.number = entity.number AND trail.kind = entity.kind_code
                 ORDER BY trail.revision DESC LIMIT 1) AS last_move
          FROM entity) AS traced
  LEFT JOIN (SELECT id, to_state FROM rule UNION ALL SELECT -machine_id, name FROM state WHERE initial) AS move ON move.id = last_move
 WHERE to_state IS DISTINCT FROM state

-- name: list_contradictions
-- Document 001, recovery 4. The law forbids it: somebody has switched the law off. The audit trail tells which of the two is right.
SELECT run.id, run.state, task.id, task.name, task.state,
       (SELECT to_state FROM transition WHERE transition.kind = 'run' AND transition.number = run.number ORDER BY revision DESC LIMIT 1) AS run_trail,
       (SELECT state.outcome FROM transition JOIN state ON state.machine_id = transition.machine_id AND state.name = transition.to_state
         WHERE transition.kind = 'run' AND transition.number = run.number ORDER BY revision DESC LIMIT 1) AS run_trail_outcome,
       (SELECT to_state FROM transition WHERE transition.kind = 'task' AND transition.number = task.number ORDER BY revision DESC LIMIT 1) AS task_trail,
       (SELECT state.outcome FROM transition JOIN state ON state.machine_id = transition.machine_id AND state.name = transition.to_state
         WHERE transition.kind = 'task' AND transition.number = task.number ORDER BY revision DESC LIMIT 1) AS task_trail_outcome
  FROM task JOIN run ON run.id = task.run_id
 WHERE run.outcome = 'success' AND (task.outcome IS NULL OR task.outcome <> 'success')
 ORDER BY run.id, task.position, task.id

-- name: restore_runs
UPDATE run
   SET state = last.to_state, phase = last.phase, outcome = last.outcome, revision = last.revision, trigger = last.trigger,
       reason = last.reason, actor = last.actor, metadata = last.metadata, entered_at = last.at,
       completed_at = CASE WHEN last.phase = 'done' THEN last.at END
  FROM (SELECT transition.*, state.phase, state.outcome
          FROM transition JOIN state ON state.machine_id = transition.machine_id AND state.name = transition.to_state) AS last
 WHERE last.kind = 'run' AND last.number = run.number AND run.id IN :ids
   AND last.revision = (SELECT max(revision) FROM trail WHERE trail.kind = 0 AND trail.number = run.number)

-- name: restore_tasks
UPDATE task
   SET state = last.to_state, phase = last.phase, outcome = last.outcome, revision = last.revision, trigger = last.trigger,
       reason = last.reason, actor = last.actor, metadata = last.metadata, entered_at = last.at,
       completed_at = CASE WHEN last.phase = 'done' THEN last.at END
  FROM (SELECT transition.*, state.phase, state.outcome
          FROM transition JOIN state ON state.machine_id = transition.machine_id AND state.name = transition.to_state) AS last
 WHERE last.kind = 'task' AND last.number = task.number AND task.id IN :ids
   AND last.revision = (SELECT max(revision) FROM trail WHERE trail.kind = 1 AND trail.number = task.number)

-- name: list_stalled_runs
-- A run whose tasks have all succeeded is not stalled: it waits for its last checks.
SELECT run.id, run.tenant
  FROM run
 WHERE run.phase = 'active'
   AND EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success'))
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND phase = 'active' AND (outcome IS NULL OR outcome <> 'success'))
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND phase IN ('queued', 'held') AND open_dependencies = 0
                                        AND (outcome IS NULL OR outcome <> 'success'))
 ORDER BY run.id

-- name: list_unended_runs
SELECT run.id, run.tenant, run.machine_id, run.state, run.has_checks
  FROM run
 WHERE run.phase <> 'done' AND run.missing_tasks = 0
   AND NOT EXISTS (SELECT 1 FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success'))
 ORDER BY run.id

-- name: list_failed_tasks
-- A run that no rule leads out of has ended for good: nobody can do anything about its tasks.
SELECT {task}
  FROM run JOIN task ON task.run_id = run.id
 WHERE task.phase = 'done' AND task.outcome = 'failure' AND (run.outcome IS NULL OR run.outcome = 'failure')
   AND EXISTS (SELECT 1 FROM rule WHERE rule.machine_id = run.machine_id AND rule.from_state = run.state)
 ORDER BY task.id DESC LIMIT :limit

-- name: recount_dependencies
UPDATE task
   SET open_dependencies = (SELECT count(*) FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                             WHERE dependency.task_id = task.id AND (other.outcome IS NULL OR other.outcome <> 'success'))
 WHERE id IN :ids AND phase <> 'active'
