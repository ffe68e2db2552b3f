-- Queries that SQLite writes in its own way. The one writer holds the whole database, so nothing has to be locked.

-- name: lock_runs
SELECT {run} FROM run
 WHERE id IN (SELECT value FROM json_each(:ids)
              UNION ALL SELECT run_id FROM task_spec WHERE id IN :task_ids)
 ORDER BY id

-- name: lock_workers
SELECT {worker} FROM worker WHERE id IN :ids ORDER BY id

-- name: lock_quotas
SELECT {quota} FROM quota WHERE tenant IN :tenants

-- name: try_lock_run
SELECT {run} FROM run WHERE id = :id

-- name: try_lock_workers
SELECT {worker} FROM worker WHERE id IN :ids ORDER BY id LIMIT :limit

-- name: lock_breakers
SELECT {breaker} FROM breaker WHERE tenant = :tenant AND tool IN :tools ORDER BY id

-- name: select_claimable
-- The numbers of the first tasks of one lane, in the order of task_claimable: no sorting, and no row of a task is read.
SELECT number, priority FROM task_state
 WHERE lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY priority DESC, number LIMIT :limit

-- name: select_claimable_of_run
-- The same in the order of task_claimable_of_run.
SELECT number, priority FROM task_state
 WHERE run_number = (SELECT number FROM run WHERE id = :run_id) AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY priority DESC, number LIMIT :limit

-- name: select_allocated
SELECT number, priority FROM task_state
 WHERE run_number = (SELECT number FROM run WHERE id = :run_id) AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
 ORDER BY priority DESC, number LIMIT :limit

-- name: select_numbered
SELECT {task_to_claim} FROM json_each(:numbers) AS due CROSS JOIN task ON task.number = due.value ORDER BY due.key

-- name: find_plain_to_end
-- Of the tasks of these reports, the ones about which nothing is special. CROSS JOIN keeps the order: from the reports to their tasks. IS keeps
-- the planner from task_held: with statistics of an idle store, it would compare every report with every task that is held.
SELECT task.machine_id, task.state, task.number,
       spec.id, spec.run_id, task.attempt_worker_id, spec.parent_task_id, EXISTS (SELECT 1 FROM dependency WHERE depends_on_id = spec.id), spec.policy
  FROM json_each(:reports) AS told
 CROSS JOIN task_spec AS spec ON spec.id = told.value ->> 0
 CROSS JOIN task_state AS task ON task.number = spec.number
 WHERE task.current_attempt IS told.value ->> 1 AND NOT task.lease_expired AND spec.tenant = :tenant
   AND NOT task.has_checks AND NOT task.review_wanted AND NOT task.has_subtasks AND task.reserved_usd = 0 AND task.retry_count = 0
   AND (instr(spec.policy, '"expected_exit_codes":[0]') OR NOT instr(spec.policy, 'expected_exit_codes'))
   AND (SELECT tool IS NULL FROM lane WHERE lane.id = task.lane_id)
   AND (:key_id IS NULL OR (SELECT key_id FROM worker WHERE worker.id = task.attempt_worker_id) = :key_id)

-- name: end_plain_tasks
-- They still are as they were found. One statement for all of them: each statement copies the pages that it changes, in case it fails.
UPDATE task_state
   SET state = :to_state, phase = 'done', outcome = 'success', revision = revision + 1, trigger = :trigger, reason = NULL,
       actor = attempt_worker_id, metadata = NULL, entered_at = max(entered_at, :now), completed_at = max(entered_at, :now),
       current_attempt = NULL, worker_id = NULL, attempt_error = NULL,
       session_id = coalesce(told.value ->> 1, session_id), attempt_exit_code = coalesce(told.value ->> 2, attempt_exit_code),
       attempt_log_path = coalesce(told.value ->> 3, attempt_log_path), output = coalesce(told.value ->> 4, output)
  FROM json_each(:ends) AS told
 WHERE number = told.value ->> 0

-- name: begin_plain_tasks
-- Of these tasks, whose turn it is, the ones about which nothing is special.
WITH move AS MATERIALIZED (
    SELECT value ->> 'machine_id' AS machine_id, value ->> 'from_state' AS from_state, value ->> 'to_state' AS to_state,
           value ->> 'trigger' AS trigger, value ->> 'needs_worker' AS needs_worker
      FROM json_each(:moves)
)
UPDATE task_state AS task
   SET state = move.to_state, phase = 'active', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = :worker_id, metadata = :metadata, entered_at = max(task.entered_at, :now),
       started_at = coalesce(task.started_at, max(task.entered_at, :now)), epoch = 1, current_attempt = 1,
       attempt_count = attempt_count + 1, worker_id = iif(move.needs_worker, :worker_id, NULL), attempt_worker_id = :worker_id,
       attempt_started_at = max(task.entered_at, :now)
  FROM json_each(:numbers) AS due, task_spec AS spec, move
 WHERE task.number = due.value AND spec.number = due.value AND move.machine_id = task.machine_id AND move.from_state = task.state AND {is_plain_to_begin}
   AND (SELECT budget_usd IS NULL FROM run WHERE run.number = task.run_number)
   AND NOT EXISTS (SELECT 1 FROM account WHERE account.tenant = :tenant AND account.budget_usd IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM task_state AS lost
                    WHERE lost.lease_expired AND lost.lane_id IN :lane_ids AND lost.run_open
                      AND (:run_id IS NULL OR lost.run_number = (SELECT number FROM run WHERE id = :run_id)))
RETURNING number

-- name: tell_begun
SELECT {begun_task}, run.phase, run.policy, spec.payload
  FROM json_each(:numbers) AS due
 CROSS JOIN task_state AS task ON task.number = due.value
 CROSS JOIN task_spec AS spec ON spec.number = due.value
 CROSS JOIN run ON run.number = task.run_number
 ORDER BY due.key

-- name: select_reclaimable
SELECT {task_to_claim} FROM task
 WHERE lease_expired AND lane_id IN :lane_ids AND run_open
   AND (:run_id IS NULL OR run_id = :run_id)
 ORDER BY task.priority DESC, task.number LIMIT :limit

-- name: find_claimable_runs
SELECT run.id
  FROM (SELECT DISTINCT run_number FROM task_state
         WHERE lane_id IN :lane_ids
           AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
         LIMIT :limit) AS waiting
  JOIN run ON run.number = waiting.run_number

-- name: release_dependents
UPDATE task_state SET open_dependencies = open_dependencies - :released
 WHERE number = (SELECT number FROM task_spec WHERE id = :id)
RETURNING :id, open_dependencies

-- name: count_at_work
-- Reads all attempts under way, of all tools: no more than all workers have slots.
SELECT count(*) FROM task_state INDEXED BY task_held
 WHERE current_attempt IS NOT NULL AND NOT lease_expired
   AND lane_id IN (SELECT id FROM lane WHERE tenant = :tenant AND tool = :tool)

-- name: take_timers
DELETE FROM timer WHERE entity_id = :entity_id AND purpose = :purpose AND revision = :revision AND due_at = :due_at
RETURNING entity_id, purpose

-- name: list_run_transitions
-- Only the lines of a page are looked up in `transition`.
SELECT {transition} FROM transition
 WHERE transition.position IN (
           SELECT position FROM (
                   SELECT trail.position FROM task_spec JOIN trail ON trail.number = task_spec.number AND trail.kind = 1 WHERE task_spec.run_id = :run_id
                   UNION ALL
                   SELECT trail.position FROM run JOIN trail ON trail.number = run.number AND trail.kind = 0 WHERE run.id = :run_id
               ) AS own
            WHERE position > :after AND position <= :end ORDER BY position LIMIT :limit)
   AND transition.tenant = :tenant
 ORDER BY transition.position

-- name: purge_responses
DELETE FROM idempotency_key
 WHERE (tenant, endpoint, key) IN (SELECT tenant, endpoint, key FROM idempotency_key WHERE expires_at <= :now LIMIT :limit)
RETURNING key

-- name: find_worker
-- One that serves the tenant, as in the other queries for a tenant: its own, a shared one that names it, or one that serves all.
SELECT {worker} FROM worker
 WHERE id = :id AND (tenant = :tenant OR (serves <> '[]' AND (serves = '"all"' OR EXISTS (SELECT 1 FROM json_each(serves) WHERE value = :tenant))))

-- name: list_workers
SELECT {worker} FROM worker
 WHERE id > :after AND (tenant = :tenant OR (serves <> '[]' AND (serves = '"all"' OR EXISTS (SELECT 1 FROM json_each(serves) WHERE value = :tenant))))
   AND {worker_conditions}
 ORDER BY id LIMIT :limit

-- name: find_free_workers
-- The tenant's own ones by worker_alive (SQLite uses it only when told that none is done), the shared ones by worker_shared: with OR
-- between them all workers would be read.
SELECT id FROM worker
 WHERE tenant = :tenant AND phase <> 'done'
   AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL
   AND (only_run_id IS NULL OR :run_id IS NULL OR only_run_id = :run_id)
   AND NOT EXISTS (SELECT value FROM json_each(:needed) EXCEPT SELECT value FROM json_each(capabilities))
   AND NOT EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 UNION ALL
SELECT id FROM worker
 WHERE serves <> '[]' AND tenant <> :tenant AND (serves = '"all"' OR EXISTS (SELECT 1 FROM json_each(serves) WHERE value = :tenant))
   AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL
   AND (only_run_id IS NULL OR :run_id IS NULL OR only_run_id = :run_id)
   AND NOT EXISTS (SELECT value FROM json_each(:needed) EXCEPT SELECT value FROM json_each(capabilities))
   AND NOT EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 ORDER BY id LIMIT :limit

-- name: find_waiting_tenants
-- One look into task_claimable and task_reclaimable for each lane with such tasks: neither these tasks nor idle lanes are read.
WITH RECURSIVE waiting (lane_id) AS (
    SELECT (SELECT min(lane_id) FROM (
               SELECT min(lane_id) AS lane_id FROM task_state
                WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
                UNION ALL SELECT min(lane_id) FROM task_state WHERE lease_expired AND run_open))
    UNION ALL
    SELECT (SELECT min(lane_id) FROM (
               SELECT min(lane_id) AS lane_id FROM task_state
                WHERE lane_id > waiting.lane_id AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL
                  AND run_open AND NOT is_gate AND NOT allocated
                UNION ALL SELECT min(lane_id) FROM task_state WHERE lane_id > waiting.lane_id AND lease_expired AND run_open))
      FROM waiting WHERE lane_id IS NOT NULL
)
SELECT DISTINCT tenant FROM waiting CROSS JOIN lane ON lane.id = waiting.lane_id WHERE tenant > :after ORDER BY tenant LIMIT :limit

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND NOT missing AND max(heartbeat_at, :since) + lease_seconds * 1e6 < :now
 ORDER BY heartbeat_at, id LIMIT :limit

-- name: next_silence
SELECT CAST(min(max(heartbeat_at, :since) + lease_seconds * 1e6) AS INTEGER) FROM worker WHERE phase <> 'done' AND NOT missing

-- name: count_overstayed
SELECT kind, entity.id, state, entered_at
  FROM (SELECT 'run' AS kind, id, machine_id, state, entered_at FROM run WHERE phase <> 'done'
        UNION ALL SELECT 'task', id, machine_id, state, entered_at FROM task WHERE outcome IS NULL
        UNION ALL SELECT 'worker', id, machine_id, state, entered_at FROM worker WHERE phase <> 'done') AS entity
  JOIN json_each(:limits) AS allowed
    ON entity.machine_id = allowed.value ->> 0 AND entity.state = allowed.value ->> 1
 WHERE entered_at + (allowed.value ->> 2) * 1e6 < :now
 ORDER BY entered_at

-- name: read_clock
-- With it, transactions read whether any tenant has a quota, and how many lanes there are.
SELECT EXISTS (SELECT 1 FROM quota), (SELECT count(*) FROM lane), revision, offset_seconds, corrected_at FROM (VALUES (0)) LEFT JOIN clock_offset

-- name: read_trail
-- One text for thousands of rows: to read each row in Python would take ten times as long. It is bytes, because text in a SQLite file need not be
-- UTF-8. How long a state lasted follows from the rest.
SELECT max(position), CAST(group_concat(line, char(10) ORDER BY position) AS BLOB)
  FROM (SELECT position, json_array(position, tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger,
                                    severity, reason, actor, metadata, at) AS line
          FROM transition
         WHERE position > :after AND position <= :end
         ORDER BY position LIMIT :limit) AS trail

-- name: drop_stray_rules
-- Laid by a program that had switched foreign keys off. The law keeps every rule and every state that has a machine.
DELETE FROM rule WHERE machine_id = :machine_id AND NOT EXISTS (SELECT 1 FROM machine WHERE id = :machine_id)

-- name: drop_stray_states
DELETE FROM state WHERE machine_id = :machine_id AND NOT EXISTS (SELECT 1 FROM machine WHERE id = :machine_id)

-- name: create_migrations
CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT

-- name: select_due_outbox
SELECT {outbox} FROM outbox
 WHERE due_at <= :now
   AND ((origin = 'settings' AND target IN :targets)
        OR (origin = 'flow' AND tenant = :flows_of AND (method = 'webhook' OR :commands_of = '*' OR run_id = :commands_of)))
 ORDER BY due_at, id LIMIT :limit

-- name: measure_queues
-- Reads the claimable tasks (task_claimable_of_run) and those to take over (task_reclaimable), and no other ones.
SELECT lane.tenant, count(*), min(queued_at) FROM (
        SELECT lane_id, entered_at AS queued_at FROM task_state INDEXED BY task_claimable_of_run
         WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate
        UNION ALL
        SELECT lane_id, NULL FROM task_state INDEXED BY task_reclaimable WHERE lease_expired AND run_open
       ) AS waiting CROSS JOIN lane ON lane.id = waiting.lane_id
 GROUP BY lane.tenant ORDER BY lane.tenant

-- name: list_runs_of_name
-- `list_runs` for one name. SQLite would read run_of_tenant, which looks as selective without statistics.
SELECT {run} FROM run INDEXED BY run_of_name
 WHERE tenant = :tenant AND name = :name
   AND created_at >= :since AND (created_at, id) < (:before, :before_id) AND {run_conditions}
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: insert_tasks
INSERT INTO {new task}
