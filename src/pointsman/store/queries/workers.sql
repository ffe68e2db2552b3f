-- name: insert_workers
INSERT INTO {new worker}

-- name: count_held
SELECT attempt_worker_id, count(*) FROM task_state
 WHERE attempt_worker_id IN :ids AND current_attempt IS NOT NULL AND NOT lease_expired
 GROUP BY attempt_worker_id

-- name: find_held_tasks
SELECT attempt_worker_id, id, run_id FROM task
 WHERE attempt_worker_id IN :ids AND current_attempt IS NOT NULL
 ORDER BY id

-- name: find_run_workers
SELECT id FROM worker WHERE run_id IN :ids ORDER BY id
