-- Queries that SQLite writes in its own way. The one writer holds the whole database, so nothing has to be locked.

-- name: lock_runs
SELECT {run} FROM run
 WHERE id IN (SELECT value FROM json_each(:ids)
              UNION SELECT run_id FROM task WHERE id IN :task_ids)
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
-- One lane at a time, in the order of task_claimable: no sorting, and no row is read that is not taken.
SELECT {task_to_claim} FROM task
 WHERE tenant = :tenant AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY task.priority DESC, task.id LIMIT :limit

-- name: select_claimable_of_run
-- The same in the order of task_claimable_of_run.
SELECT {task_to_claim} FROM task
 WHERE run_id = :run_id AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY task.priority DESC, task.id LIMIT :limit

-- name: end_plain_tasks
-- Whatever is assumed stands in the WHERE: what differs is left out, and goes the general way. IS keeps the planner from
-- reading task_held: with statistics of an idle store, it would compare every task that is held with every report.
WITH told AS MATERIALIZED (
    SELECT value ->> 'task_id' AS task_id, value ->> 'epoch' AS epoch, value ->> 'output' AS output, value ->> 'exit_code' AS exit_code,
           value ->> 'session_id' AS session_id, value ->> 'log_path' AS log_path
      FROM json_each(:reports)
), move AS MATERIALIZED (
    SELECT value ->> 'machine_id' AS machine_id, value ->> 'from_state' AS from_state, value ->> 'to_state' AS to_state,
           value ->> 'trigger' AS trigger, value ->> 'stores_output' AS stores_output
      FROM json_each(:moves)
)
UPDATE task
   SET state = move.to_state, phase = 'done', outcome = 'success', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = attempt_worker_id, metadata = NULL, entered_at = max(entered_at, :now), completed_at = max(entered_at, :now),
       current_attempt = NULL, worker_id = NULL,
       session_id = coalesce(told.session_id, task.session_id), attempt_error = NULL,
       attempt_exit_code = coalesce(told.exit_code, attempt_exit_code), attempt_log_path = coalesce(told.log_path, attempt_log_path),
       output = CASE WHEN move.stores_output THEN coalesce(told.output, task.output) ELSE task.output END
  FROM told, move
 WHERE task.id = told.task_id AND current_attempt IS told.epoch AND NOT lease_expired AND tenant = :tenant
   AND move.machine_id = task.machine_id AND move.from_state = task.state
   AND NOT has_checks AND NOT review_wanted AND NOT has_subtasks AND reserved_usd = 0 AND retry_count = 0
   AND (instr(policy, '"expected_exit_codes":[0]') OR NOT instr(policy, 'expected_exit_codes'))
   AND (SELECT tool IS NULL FROM lane WHERE lane.id = lane_id)
   AND (:key_id IS NULL OR (SELECT key_id FROM worker WHERE worker.id = attempt_worker_id) = :key_id)
RETURNING id, run_id, attempt_worker_id, parent_task_id, EXISTS (SELECT 1 FROM dependency WHERE depends_on_id = task.id), policy

-- name: find_claimable
-- `select_claimable` and `select_claimable_of_run` without the tasks themselves.
SELECT id, priority FROM task
 WHERE tenant = :tenant AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY task.priority DESC, task.id LIMIT :limit

-- name: find_claimable_of_run
SELECT id, priority FROM task
 WHERE run_id = :run_id AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY task.priority DESC, task.id LIMIT :limit

-- name: begin_plain_tasks
-- Of these tasks, whose turn it is, the ones about which nothing is special.
WITH move AS MATERIALIZED (
    SELECT value ->> 'machine_id' AS machine_id, value ->> 'from_state' AS from_state, value ->> 'to_state' AS to_state,
           value ->> 'trigger' AS trigger, value ->> 'needs_worker' AS needs_worker
      FROM json_each(:moves)
)
UPDATE task
   SET state = move.to_state, phase = 'active', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = :worker_id, metadata = :metadata, entered_at = max(task.entered_at, :now),
       started_at = coalesce(task.started_at, max(task.entered_at, :now)), epoch = 1, current_attempt = 1,
       attempt_count = attempt_count + 1, worker_id = iif(move.needs_worker, :worker_id, NULL), attempt_worker_id = :worker_id,
       attempt_started_at = max(task.entered_at, :now)
  FROM json_each(:ids) AS due, move
 WHERE task.id = due.value AND move.machine_id = task.machine_id AND move.from_state = task.state AND {is_plain_to_begin}
   AND (SELECT budget_usd IS NULL FROM run WHERE run.id = task.run_id)
   AND NOT EXISTS (SELECT 1 FROM account WHERE account.tenant = :tenant AND account.budget_usd IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM task AS lost
                    WHERE lost.lease_expired AND lost.tenant = :tenant AND lost.lane_id IN :lane_ids AND lost.run_open
                      AND (:run_id IS NULL OR lost.run_id = :run_id))
RETURNING {begun_task}, (SELECT phase FROM run WHERE run.id = task.run_id), (SELECT policy FROM run WHERE run.id = task.run_id), payload

-- name: select_allocated
SELECT {task_to_claim} FROM task
 WHERE run_id = :run_id AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
 ORDER BY priority DESC, id LIMIT :limit

-- name: select_reclaimable
SELECT {task_to_claim} FROM task
 WHERE lease_expired AND tenant = :tenant AND lane_id IN :lane_ids AND run_open
   AND (:run_id IS NULL OR run_id = :run_id)
 ORDER BY priority DESC, id LIMIT :limit

-- name: find_claimable_runs
SELECT DISTINCT run_id FROM task
 WHERE tenant = :tenant AND lane_id IN :lane_ids
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 LIMIT :limit

-- name: release_dependents
UPDATE task SET open_dependencies = open_dependencies - :released WHERE id = :id RETURNING id, open_dependencies

-- name: count_at_work
-- Reads all attempts under way, of all tools: no more than all workers have slots.
SELECT count(*) FROM task INDEXED BY task_held
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
                   SELECT trail.position FROM task JOIN trail ON trail.number = task.number AND trail.kind = 1 WHERE task.run_id = :run_id
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
   AND NOT EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 UNION ALL
SELECT id FROM worker
 WHERE serves <> '[]' AND tenant <> :tenant AND (serves = '"all"' OR EXISTS (SELECT 1 FROM json_each(serves) WHERE value = :tenant))
   AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL
   AND (only_run_id IS NULL OR :run_id IS NULL OR only_run_id = :run_id)
   AND NOT EXISTS (SELECT value FROM json_each(:needed) EXCEPT SELECT value FROM json_each(capabilities))
   AND NOT EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 ORDER BY id LIMIT :limit

-- name: find_waiting_tenants
-- One look into task_claimable and task_reclaimable for each tenant that is found: neither their tasks nor idle tenants are read.
WITH RECURSIVE waiting (tenant) AS (
    SELECT (SELECT min(tenant) FROM (
               SELECT min(tenant) AS tenant FROM task
                WHERE tenant > :after AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL
                  AND run_open AND NOT is_gate AND NOT allocated
                UNION ALL SELECT min(tenant) FROM task WHERE tenant > :after AND lease_expired AND run_open))
    UNION ALL
    SELECT (SELECT min(tenant) FROM (
               SELECT min(tenant) AS tenant FROM task
                WHERE tenant > waiting.tenant AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL
                  AND run_open AND NOT is_gate AND NOT allocated
                UNION ALL SELECT min(tenant) FROM task WHERE tenant > waiting.tenant AND lease_expired AND run_open))
      FROM waiting WHERE tenant IS NOT NULL
)
SELECT tenant FROM waiting WHERE tenant IS NOT NULL LIMIT :limit

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
-- With it, transactions read whether any tenant has a quota.
SELECT EXISTS (SELECT 1 FROM quota), revision, offset_seconds, corrected_at FROM (VALUES (0)) LEFT JOIN clock_correction

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
SELECT tenant, count(*), min(queued_at) FROM (
        SELECT tenant, entered_at AS queued_at FROM task INDEXED BY task_claimable_of_run
         WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate
        UNION ALL
        SELECT tenant, CASE WHEN lease_expired THEN NULL ELSE entered_at END FROM task INDEXED BY task_reclaimable WHERE lease_expired AND run_open
       ) AS waiting
 GROUP BY tenant ORDER BY tenant

-- name: list_runs_of_name
-- `list_runs` for one name. SQLite would read run_of_tenant, which looks as selective without statistics.
SELECT {run} FROM run INDEXED BY run_of_name
 WHERE tenant = :tenant AND name = :name
   AND created_at >= :since AND (created_at, id) < (:before, :before_id) AND {run_conditions}
 ORDER BY created_at DESC, id DESC LIMIT :limit
