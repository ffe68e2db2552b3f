-- Queries that PostgreSQL writes in its own way: several writers lock rows, and lists are arrays.

-- name: lock_runs
-- In the order of their ids, so that two transactions that lock several runs never wait for each other. Foreign keys may still
-- refer to a locked run. A transaction that waits here holds a shared advisory lock until `STOP_WAITING`. A turn that wants to share a run
-- checks that lock first; otherwise turns that share would overtake this transaction for ever. The check holds the lock exclusively for a
-- moment, hence the second try. No transaction waits for it, because any role can take it.
SELECT {run} FROM run
 WHERE id = ANY(ARRAY(SELECT unnest(:ids::text[]) UNION SELECT run_id FROM task_spec WHERE task_spec.id IN :task_ids))
   AND (SELECT (pg_try_advisory_lock_shared(hashtext(current_schema()), 1)
                OR (pg_sleep(0.01) IS NOT NULL AND pg_try_advisory_lock_shared(hashtext(current_schema()), 1))) IS NOT NULL)
 ORDER BY id FOR NO KEY UPDATE

-- name: lock_workers
SELECT {worker} FROM worker WHERE id IN :ids ORDER BY id FOR NO KEY UPDATE

-- name: lock_quotas
SELECT {quota} FROM quota WHERE tenant IN :tenants ORDER BY tenant FOR NO KEY UPDATE

-- name: try_lock_run
SELECT {run} FROM run WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED

-- name: try_lock_workers
SELECT {worker} FROM worker WHERE id IN :ids ORDER BY id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED

-- name: lock_breakers
SELECT {breaker} FROM breaker WHERE tenant = :tenant AND tool IN :tools ORDER BY id FOR NO KEY UPDATE

-- name: select_claimable
-- Takes the head of each lane in the order of task_claimable, sorts the heads alone, and locks their runs one by one until there
-- are enough: LIMIT stops the locking. Runs that another transaction holds are skipped. A head has 200 tasks more than asked for, so
-- that a long run that is locked does not hide the others; and not more, so that skipping it stays cheap.
-- What this finds was true before the lock, so a second statement reads the tasks themselves (as for the next two queries).
WITH head AS MATERIALIZED (
    SELECT first.number, first.run_number, first.priority
      FROM unnest(:lane_ids::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT number, run_number, priority FROM task_state
            WHERE lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
            ORDER BY priority DESC, number LIMIT :limit::bigint + 200) AS first
     ORDER BY first.priority DESC, first.number
)
SELECT (SELECT id FROM task_spec AS spec WHERE spec.number = head.number) FROM head JOIN run ON run.number = head.run_number
 ORDER BY head.priority DESC, head.number LIMIT :limit
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: select_claimable_of_run
-- Takes the head of each lane in the order of task_claimable_of_run, and sorts the heads alone. The run is locked, so this is final.
WITH head AS MATERIALIZED (
    SELECT first.number, first.priority
      FROM unnest(:lane_ids::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT number, priority FROM task_state
            WHERE run_number = (SELECT run.number FROM run WHERE run.id = :run_id) AND lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
            ORDER BY priority DESC, number LIMIT :limit) AS first
     ORDER BY first.priority DESC, first.number LIMIT :limit
)
SELECT {task_to_claim} FROM head JOIN task ON task.number = head.number ORDER BY head.priority DESC, head.number

-- name: end_plain_tasks
-- Whatever is assumed stands in the WHERE: what differs is left out, and goes the general way. IS TRUE hides the condition from the planner,
-- which would read a partial index from end to end while a table looks small.
UPDATE task_state AS task
   SET state = move.to_state, phase = 'done', outcome = 'success', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = attempt_worker_id, metadata = NULL, entered_at = greatest(entered_at, :now), completed_at = greatest(entered_at, :now),
       current_attempt = NULL, worker_id = NULL,
       session_id = coalesce(told.session_id, task.session_id), attempt_error = NULL,
       attempt_exit_code = coalesce(told.exit_code, attempt_exit_code), attempt_log_path = coalesce(told.log_path, attempt_log_path),
       output = CASE WHEN move.stores_output THEN coalesce(told.output, task.output) ELSE task.output END
  FROM json_to_recordset(:reports) AS told (task_id text, epoch integer, output text, exit_code integer, session_id text, log_path text)
  JOIN task_spec AS spec ON spec.id = told.task_id
 CROSS JOIN json_to_recordset(:moves) AS move (machine_id integer, from_state text, to_state text, trigger text, stores_output boolean)
 WHERE task.number = spec.number
   AND (current_attempt = told.epoch AND NOT lease_expired AND spec.tenant = :tenant
        AND move.machine_id = task.machine_id AND move.from_state = task.state
        AND NOT has_checks AND NOT review_wanted AND NOT has_subtasks AND reserved_usd = 0 AND retry_count = 0
        AND (position('"expected_exit_codes":[0]' IN spec.policy) > 0 OR position('expected_exit_codes' IN spec.policy) = 0)
        AND (SELECT tool IS NULL FROM lane WHERE lane.id = lane_id)
        AND (:key_id::text IS NULL OR (SELECT key_id FROM worker WHERE worker.id = attempt_worker_id) = :key_id)) IS TRUE
RETURNING spec.id, spec.run_id, attempt_worker_id, spec.parent_task_id, EXISTS (SELECT 1 FROM dependency WHERE depends_on_id = spec.id), spec.policy

-- name: begin_plain_tasks
-- The tasks whose turn it is, as `select_claimable` takes them, and of these the ones about which nothing is special.
WITH head AS MATERIALIZED (
    SELECT first.number, first.run_number, first.priority
      FROM unnest(:lane_ids::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT number, run_number, priority FROM task_state
            WHERE lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
            ORDER BY priority DESC, number LIMIT :limit) AS first
     ORDER BY first.priority DESC, first.number LIMIT :limit
), due AS MATERIALIZED (
    SELECT head.number, run.phase, run.policy, run.budget_usd FROM head JOIN run ON run.number = head.run_number
     ORDER BY head.priority DESC, head.number FOR NO KEY UPDATE OF run SKIP LOCKED
)
UPDATE task_state AS task
   SET state = move.to_state, phase = 'active', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = :worker_id, metadata = :metadata, entered_at = greatest(entered_at, :now),
       started_at = coalesce(started_at, greatest(entered_at, :now)), epoch = 1, current_attempt = 1, attempt_count = attempt_count + 1,
       worker_id = CASE WHEN move.needs_worker THEN :worker_id END, attempt_worker_id = :worker_id,
       attempt_started_at = greatest(entered_at, :now)
  FROM due JOIN task_spec AS spec ON spec.number = due.number
 CROSS JOIN json_to_recordset(:moves) AS move (machine_id integer, from_state text, to_state text, trigger text, needs_worker boolean)
 WHERE task.number = due.number AND move.machine_id = task.machine_id AND move.from_state = task.state
   AND (task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
        AND {is_plain_to_begin}) IS TRUE AND due.budget_usd IS NULL
   AND NOT EXISTS (SELECT 1 FROM account WHERE account.tenant = :tenant AND account.budget_usd IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM task_state AS lost WHERE lost.lease_expired AND lost.lane_id IN :lane_ids AND lost.run_open)
RETURNING {begun_task}, due.phase, due.policy, spec.payload

-- name: begin_plain_tasks_of_run
-- The same of a run that is locked, as `select_claimable_of_run` takes them.
WITH head AS MATERIALIZED (
    SELECT first.number, first.run_number
      FROM unnest(:lane_ids::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT number, run_number, priority FROM task_state
            WHERE run_number = (SELECT run.number FROM run WHERE run.id = :run_id) AND lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
            ORDER BY priority DESC, number LIMIT :limit) AS first
     ORDER BY first.priority DESC, first.number LIMIT :limit
)
UPDATE task_state AS task
   SET state = move.to_state, phase = 'active', revision = task.revision + 1, trigger = move.trigger, reason = NULL,
       actor = :worker_id, metadata = :metadata, entered_at = greatest(task.entered_at, :now),
       started_at = coalesce(task.started_at, greatest(task.entered_at, :now)), epoch = 1, current_attempt = 1,
       attempt_count = attempt_count + 1, worker_id = CASE WHEN move.needs_worker THEN :worker_id END, attempt_worker_id = :worker_id,
       attempt_started_at = greatest(task.entered_at, :now)
  FROM head JOIN task_spec AS spec ON spec.number = head.number JOIN run ON run.number = head.run_number
 CROSS JOIN json_to_recordset(:moves) AS move (machine_id integer, from_state text, to_state text, trigger text, needs_worker boolean)
 WHERE task.number = head.number AND move.machine_id = task.machine_id AND move.from_state = task.state
   AND (task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
        AND {is_plain_to_begin}) IS TRUE AND run.budget_usd IS NULL
   AND NOT EXISTS (SELECT 1 FROM account WHERE account.tenant = :tenant AND account.budget_usd IS NOT NULL)
   AND NOT EXISTS (SELECT 1 FROM task_state AS lost
                    WHERE lost.lease_expired AND lost.lane_id IN :lane_ids AND lost.run_number = task.run_number AND lost.run_open)
RETURNING {begun_task}, run.phase, run.policy, spec.payload

-- name: insert_tasks
-- All rows come as one JSON parameter. A parent may be in the same statement: parents come first. No run has the number 0: the law says so.
WITH new AS MATERIALIZED (
    SELECT nextval('task_number_seq') AS number, coalesce((SELECT run.number FROM run WHERE run.id = task.run_id), 0) AS run_number, task.*
      FROM {rows of task} AS task
), numbered AS MATERIALIZED (
    SELECT new.*, CASE WHEN parent_task_id IS NOT NULL
                       THEN coalesce((SELECT task_spec.number FROM task_spec WHERE task_spec.id = new.parent_task_id),
                                     (SELECT parent.number FROM new AS parent WHERE parent.id = new.parent_task_id LIMIT 1)) END AS parent_number
      FROM new
), spec AS (
    INSERT INTO task_spec (number, run_number, parent_number, {spec_columns}) SELECT number, run_number, parent_number, {spec_columns} FROM numbered
)
INSERT INTO task_state (number, run_number, parent_number, {state_columns}) SELECT number, run_number, parent_number, {state_columns} FROM numbered

-- name: select_allocated
WITH head AS MATERIALIZED (
    SELECT first.number, first.priority
      FROM unnest(:lane_ids::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT number, priority FROM task_state
            WHERE run_number = (SELECT run.number FROM run WHERE run.id = :run_id) AND lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
            ORDER BY priority DESC, number LIMIT :limit) AS first
     ORDER BY first.priority DESC, first.number LIMIT :limit
)
SELECT (SELECT id FROM task_spec AS spec WHERE spec.number = head.number) FROM head JOIN run ON run.id = :run_id
 ORDER BY head.priority DESC, head.number
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: select_reclaimable
-- Few attempts are lost at a time, so sorting them is cheap.
SELECT (SELECT id FROM task_spec AS spec WHERE spec.number = task.number) FROM task_state AS task JOIN run ON run.number = task.run_number
 WHERE lease_expired AND lane_id IN :lane_ids AND run_open
   AND (:run_id::text IS NULL OR run.id = :run_id)
 ORDER BY task.priority DESC, task.number LIMIT :limit
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: find_claimable_runs
-- DISTINCT over all claimable tasks would read every one of them: the head of each lane shows which runs to wait for.
SELECT DISTINCT run.id
  FROM unnest(:lane_ids::integer[]) AS lane (id)
 CROSS JOIN LATERAL (
       SELECT run_number FROM task_state
        WHERE lane_id = lane.id
          AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
        ORDER BY priority DESC, number LIMIT :limit::bigint + 200) AS first
  JOIN run ON run.number = first.run_number
 LIMIT :limit

-- name: release_dependents
UPDATE task_state AS task SET open_dependencies = task.open_dependencies - new.released
  FROM json_to_recordset(:rows) AS new (id text, released integer) JOIN task_spec AS spec ON spec.id = new.id
 WHERE task.number = spec.number
RETURNING spec.id, task.open_dependencies

-- name: count_at_work
-- Reads all attempts under way, of all tools: no more than all workers have slots.
SELECT count(*) FROM task_state
 WHERE current_attempt IS NOT NULL AND NOT lease_expired
   AND lane_id = ANY(ARRAY(SELECT id FROM lane WHERE tenant = :tenant AND tool = :tool))

-- name: take_timers
-- A second transaction waits for the first, and then finds nothing.
DELETE FROM timer
 USING json_to_recordset(:rows) AS new (entity_id text, purpose text, revision integer, due_at timestamptz)
 WHERE timer.entity_id = new.entity_id AND timer.purpose = new.purpose AND timer.revision = new.revision AND timer.due_at = new.due_at
RETURNING timer.entity_id, timer.purpose

-- name: list_run_transitions
-- Only the lines of a page are looked up in `transition`: by an array, as the planner would look up all lines before a join.
SELECT {transition} FROM transition
 WHERE transition.position = ANY(ARRAY(
           SELECT position FROM (
                   SELECT trail.position FROM task_spec AS task JOIN trail ON trail.number = task.number AND trail.kind = 1 WHERE task.run_id = :run_id
                   UNION ALL
                   SELECT trail.position FROM run JOIN trail ON trail.number = run.number AND trail.kind = 0 WHERE run.id = :run_id
               ) AS own
            WHERE position > :after AND position <= :end ORDER BY position LIMIT :limit))
   AND transition.tenant = :tenant
 ORDER BY transition.position

-- name: purge_responses
-- Chooses the rows once, before any is deleted, and never by a join; two transactions that purge do not wait for each other.
DELETE FROM idempotency_key
 WHERE ctid = ANY(ARRAY(SELECT ctid FROM idempotency_key WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit
                           FOR UPDATE SKIP LOCKED))
RETURNING key

-- name: find_worker
-- One that serves the tenant, as in the other queries for a tenant: its own, a shared one that names it, or one that serves all.
SELECT {worker} FROM worker
 WHERE id = :id AND (tenant = :tenant OR (serves <> '[]' AND (serves = '"all"' OR serves::jsonb ? :tenant)))

-- name: list_workers
SELECT {worker} FROM worker
 WHERE id > :after AND (tenant = :tenant OR (serves <> '[]' AND (serves = '"all"' OR serves::jsonb ? :tenant)))
   AND {worker_conditions}
 ORDER BY id LIMIT :limit

-- name: find_free_workers
-- The tenant's own ones by worker_alive, the shared ones by worker_shared: with OR
-- between them all workers would be read.
SELECT id FROM worker
 WHERE tenant = :tenant AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL AND capabilities::jsonb @> :needed::jsonb
   AND (only_run_id IS NULL OR :run_id::text IS NULL OR only_run_id = :run_id)
   AND NOT EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 UNION ALL
SELECT id FROM worker
 WHERE serves <> '[]' AND tenant <> :tenant AND (serves = '"all"' OR serves::jsonb ? :tenant)
   AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL AND capabilities::jsonb @> :needed::jsonb
   AND (only_run_id IS NULL OR :run_id::text IS NULL OR only_run_id = :run_id)
   AND NOT EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 ORDER BY id LIMIT :limit

-- name: find_waiting_tenants
-- One look into task_claimable and task_reclaimable for each lane with such tasks: neither these tasks nor idle lanes are read.
WITH RECURSIVE waiting (lane_id) AS (
    SELECT least(
               (SELECT min(lane_id) FROM task_state
                 WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated),
               (SELECT min(lane_id) FROM task_state WHERE lease_expired AND run_open))
    UNION ALL
    SELECT least(
               (SELECT min(lane_id) FROM task_state
                 WHERE lane_id > waiting.lane_id AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL
                   AND run_open AND NOT is_gate AND NOT allocated),
               (SELECT min(lane_id) FROM task_state WHERE lane_id > waiting.lane_id AND lease_expired AND run_open))
      FROM waiting WHERE lane_id IS NOT NULL
)
SELECT DISTINCT tenant FROM waiting JOIN lane ON lane.id = waiting.lane_id WHERE tenant > :after ORDER BY tenant LIMIT :limit

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND NOT missing AND greatest(heartbeat_at, :since) + make_interval(secs => lease_seconds) < :now
 ORDER BY heartbeat_at, id LIMIT :limit

-- name: next_silence
SELECT min(greatest(heartbeat_at, :since) + make_interval(secs => lease_seconds)) FROM worker WHERE phase <> 'done' AND NOT missing

-- name: count_overstayed
SELECT kind, entity.id, state, entered_at
  FROM (SELECT 'run' AS kind, id, machine_id, state, entered_at FROM run WHERE phase <> 'done'
        UNION ALL SELECT 'task', id, machine_id, state, entered_at FROM task WHERE outcome IS NULL
        UNION ALL SELECT 'worker', id, machine_id, state, entered_at FROM worker WHERE phase <> 'done') AS entity
  JOIN json_array_elements(:limits) AS allowed
    ON entity.machine_id = (allowed.value ->> 0)::integer AND entity.state = allowed.value ->> 1
 WHERE entered_at + make_interval(secs => (allowed.value ->> 2)::double precision) < :now
 ORDER BY entered_at

-- name: read_clock
-- What the clock shows, and its correction, if there is one.
SELECT clock_timestamp(), clock_offset.* FROM (VALUES (0)) AS now LEFT JOIN clock_offset ON true

-- name: read_trail
-- One text for thousands of rows: to send each row and read it in Python would take ten times as long. An instant is a number, because its text
-- depends on the session. How long a state lasted follows from the rest.
SELECT max(position), string_agg(line, E'\n' ORDER BY position)
  FROM (SELECT position, json_build_array(position, tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger,
                                          severity, reason, actor, metadata, (extract(epoch FROM at) * 1000000)::bigint)::text AS line
          FROM transition
         WHERE position > :after AND position <= :end
         ORDER BY position LIMIT :limit) AS trail

-- name: create_migrations
CREATE TABLE migration (number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL)

-- name: select_due_outbox
-- What another transaction is claiming is passed over.
SELECT {outbox} FROM outbox
 WHERE due_at <= :now
   AND ((origin = 'settings' AND target IN :targets)
        OR (origin = 'flow' AND tenant = :flows_of AND (method = 'webhook' OR :commands_of = '*' OR run_id = :commands_of)))
 ORDER BY due_at, id LIMIT :limit
   FOR UPDATE SKIP LOCKED

-- name: measure_queues
-- Reads the claimable tasks (task_claimable_of_run) and those to take over (task_reclaimable), and no other ones.
SELECT tenant, count(*), min(queued_at) FROM (
        SELECT tenant, entered_at AS queued_at FROM task_state JOIN lane ON lane.id = lane_id
         WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate
        UNION ALL
        SELECT tenant, CASE WHEN lease_expired THEN NULL ELSE entered_at END FROM task_state JOIN lane ON lane.id = lane_id WHERE lease_expired AND run_open
       ) AS waiting
 GROUP BY tenant ORDER BY tenant

-- name: list_runs_of_name
-- `list_runs` for one name. Reads run_of_name, which SQLite has to be told.
SELECT {run} FROM run
 WHERE tenant = :tenant AND name = :name
   AND created_at >= :since AND (created_at, id) < (:before, :before_id) AND {run_conditions}
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: check_runs
-- What `restore` has written while the law was lifted: on SQLite, the table checks it.
SELECT refuse_row('run', run.id, run_breaks(run)) FROM run WHERE run.id IN :ids AND run_breaks(run) IS NOT NULL

-- name: check_tasks
SELECT refuse_row('task', spec.id, task_breaks(task)) FROM task_state AS task JOIN task_spec AS spec ON spec.number = task.number
 WHERE spec.id IN :ids AND task_breaks(task) IS NOT NULL
