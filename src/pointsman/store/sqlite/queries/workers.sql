-- name: find_worker
SELECT * FROM worker WHERE id = :id AND tenant = :tenant

-- name: list_workers
SELECT * FROM worker WHERE tenant = :tenant ORDER BY id

-- name: lock_workers
SELECT * FROM worker WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: insert_workers
INSERT INTO worker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                    started_at, completed_at, name, lifecycle, capabilities, max_concurrent_tasks, lease_seconds, heartbeat_at, missing,
                    run_id, drain_wanted, pause_wanted, error)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :name, :lifecycle, :capabilities, :max_concurrent_tasks, :lease_seconds, :heartbeat_at, :missing,
        :run_id, :drain_wanted, :pause_wanted, :error)

-- name: count_held
SELECT attempt_worker_id, count(*) FROM task
 WHERE attempt_worker_id IN (SELECT value FROM json_each(:ids)) AND current_attempt IS NOT NULL AND lease_expired = 0
 GROUP BY attempt_worker_id

-- name: find_held_tasks
SELECT attempt_worker_id, id, run_id FROM task
 WHERE attempt_worker_id IN (SELECT value FROM json_each(:ids)) AND current_attempt IS NOT NULL
 ORDER BY id

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND missing = 0 AND heartbeat_at + lease_seconds * 1e6 < :now
 ORDER BY heartbeat_at, id LIMIT :limit

-- name: next_silence
SELECT CAST(min(heartbeat_at + lease_seconds * 1e6) AS INTEGER) FROM worker WHERE phase <> 'done' AND missing = 0

-- name: find_free_workers
SELECT id FROM worker
 WHERE tenant = :tenant AND phase IN ('queued', 'active') AND missing = 0 AND run_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL)
 ORDER BY id LIMIT :limit

-- name: find_run_workers
SELECT id FROM worker WHERE run_id IN (SELECT value FROM json_each(:ids)) ORDER BY id
