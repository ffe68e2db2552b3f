-- name: find_worker
SELECT * FROM worker WHERE id = %(id)s AND tenant = %(tenant)s

-- name: list_workers
SELECT * FROM worker WHERE tenant = %(tenant)s ORDER BY id

-- name: lock_workers
SELECT * FROM worker WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE

-- name: insert_workers
INSERT INTO worker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                    started_at, completed_at, name, lifecycle, capabilities, max_concurrent_tasks, lease_seconds, heartbeat_at, missing,
                    run_id, drain_wanted, pause_wanted, error)
SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
       started_at, completed_at, name, lifecycle, capabilities, max_concurrent_tasks, lease_seconds, heartbeat_at, missing,
       run_id, drain_wanted, pause_wanted, error
  FROM json_to_recordset(%(rows)s) AS new (
       id text, tenant text, machine_id integer, state text, phase text, outcome text, revision integer, trigger text, reason text,
       actor text, metadata text, entered_at timestamptz, created_at timestamptz, started_at timestamptz, completed_at timestamptz,
       name text, lifecycle text, capabilities text, max_concurrent_tasks integer, lease_seconds double precision,
       heartbeat_at timestamptz, missing boolean, run_id text, drain_wanted boolean, pause_wanted boolean, error text)

-- name: update_workers
UPDATE worker
   SET state = new.state, phase = new.phase, outcome = new.outcome, revision = new.revision, trigger = new.trigger,
       reason = new.reason, actor = new.actor, metadata = new.metadata, entered_at = new.entered_at, started_at = new.started_at,
       completed_at = new.completed_at, capabilities = new.capabilities, max_concurrent_tasks = new.max_concurrent_tasks,
       heartbeat_at = new.heartbeat_at, missing = new.missing, run_id = new.run_id, drain_wanted = new.drain_wanted,
       pause_wanted = new.pause_wanted, error = new.error
  FROM json_to_recordset(%(rows)s) AS new (
       id text, state text, phase text, outcome text, revision integer, trigger text, reason text, actor text, metadata text,
       entered_at timestamptz, started_at timestamptz, completed_at timestamptz, capabilities text, max_concurrent_tasks integer,
       heartbeat_at timestamptz, missing boolean, run_id text, drain_wanted boolean, pause_wanted boolean, error text)
 WHERE worker.id = new.id AND worker.revision = new.revision - %(moved)s

-- name: touch_workers
-- Locked in the order of their ids first: an UPDATE alone takes rows as it meets them, and two of them could wait for each other.
WITH heard AS MATERIALIZED (
    SELECT id FROM worker WHERE id = ANY(%(ids)s) AND heartbeat_at < %(now)s ORDER BY id FOR NO KEY UPDATE
)
UPDATE worker SET heartbeat_at = %(now)s FROM heard WHERE worker.id = heard.id

-- name: count_held
-- Whatever is under way, also where a state needs no worker: somebody runs the checks.
SELECT attempt.worker_id, count(*)
  FROM attempt JOIN task ON task.id = attempt.task_id
 WHERE attempt.ended_at IS NULL AND attempt.worker_id = ANY(%(ids)s) AND NOT task.lease_expired
 GROUP BY attempt.worker_id

-- name: find_held_tasks
SELECT attempt.worker_id, attempt.task_id, task.run_id
  FROM attempt JOIN task ON task.id = attempt.task_id
 WHERE attempt.ended_at IS NULL AND attempt.worker_id = ANY(%(ids)s)
 ORDER BY attempt.task_id

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND NOT missing AND heartbeat_at + make_interval(secs => lease_seconds) < %(now)s
 ORDER BY heartbeat_at, id LIMIT %(limit)s

-- name: next_silence
SELECT min(heartbeat_at + make_interval(secs => lease_seconds)) FROM worker WHERE phase <> 'done' AND NOT missing

-- name: find_free_workers
SELECT id FROM worker
 WHERE tenant = %(tenant)s AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.worker_id = worker.id AND attempt.ended_at IS NULL)
 ORDER BY id LIMIT %(limit)s

-- name: find_run_workers
SELECT id FROM worker WHERE run_id = ANY(%(ids)s) ORDER BY id
