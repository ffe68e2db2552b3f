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

-- name: count_held
SELECT attempt_worker_id, count(*) FROM task
 WHERE attempt_worker_id = ANY(%(ids)s) AND current_attempt IS NOT NULL AND NOT lease_expired
 GROUP BY attempt_worker_id

-- name: find_held_tasks
SELECT attempt_worker_id, id, run_id FROM task
 WHERE attempt_worker_id = ANY(%(ids)s) AND current_attempt IS NOT NULL
 ORDER BY id

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND NOT missing AND heartbeat_at + make_interval(secs => lease_seconds) < %(now)s
 ORDER BY heartbeat_at, id LIMIT %(limit)s

-- name: next_silence
SELECT min(heartbeat_at + make_interval(secs => lease_seconds)) FROM worker WHERE phase <> 'done' AND NOT missing

-- name: find_free_workers
SELECT id FROM worker
 WHERE tenant = %(tenant)s AND phase IN ('queued', 'active') AND NOT missing AND run_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 ORDER BY id LIMIT %(limit)s

-- name: find_run_workers
SELECT id FROM worker WHERE run_id = ANY(%(ids)s) ORDER BY id
