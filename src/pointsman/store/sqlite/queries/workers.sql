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

-- name: update_workers
UPDATE worker
   SET state = :state, phase = :phase, outcome = :outcome, revision = :revision, trigger = :trigger, reason = :reason, actor = :actor,
       metadata = :metadata, entered_at = :entered_at, started_at = :started_at, completed_at = :completed_at,
       capabilities = :capabilities, max_concurrent_tasks = :max_concurrent_tasks, heartbeat_at = :heartbeat_at, missing = :missing,
       run_id = :run_id, drain_wanted = :drain_wanted, pause_wanted = :pause_wanted, error = :error
 WHERE id = :id AND revision = :revision - :moved

-- name: touch_workers
UPDATE worker SET heartbeat_at = :now WHERE id IN (SELECT value FROM json_each(:ids)) AND heartbeat_at < :now

-- name: count_held
-- Whatever is under way, also where a state needs no worker: somebody runs the checks.
SELECT attempt.worker_id, count(*)
  FROM attempt JOIN task ON task.id = attempt.task_id
 WHERE attempt.ended_at IS NULL AND attempt.worker_id IN (SELECT value FROM json_each(:ids)) AND task.lease_expired = 0
 GROUP BY attempt.worker_id

-- name: find_held_tasks
SELECT attempt.worker_id, attempt.task_id, task.run_id
  FROM attempt JOIN task ON task.id = attempt.task_id
 WHERE attempt.ended_at IS NULL AND attempt.worker_id IN (SELECT value FROM json_each(:ids))
 ORDER BY attempt.task_id

-- name: find_silent_workers
SELECT id FROM worker
 WHERE phase <> 'done' AND missing = 0 AND heartbeat_at + lease_seconds * 1e6 < :now
 ORDER BY heartbeat_at, id LIMIT :limit

-- name: next_silence
SELECT CAST(min(heartbeat_at + lease_seconds * 1e6) AS INTEGER) FROM worker WHERE phase <> 'done' AND missing = 0

-- name: find_free_workers
SELECT id FROM worker
 WHERE tenant = :tenant AND phase IN ('queued', 'active') AND missing = 0 AND run_id IS NULL
   AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.worker_id = worker.id AND attempt.ended_at IS NULL)
 ORDER BY id LIMIT :limit

-- name: find_run_workers
SELECT id FROM worker WHERE run_id IN (SELECT value FROM json_each(:ids)) ORDER BY id
