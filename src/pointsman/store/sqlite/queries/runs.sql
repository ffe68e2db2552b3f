-- name: find_run
SELECT * FROM run WHERE id = :id AND tenant = :tenant

-- name: list_runs
SELECT * FROM run
 WHERE tenant = :tenant AND (:phase IS NULL OR phase = :phase) AND (:after IS NULL OR id < :after)
 ORDER BY id DESC LIMIT :limit

-- name: lock_runs
-- The one writer holds the whole database: there is nothing to lock.
SELECT * FROM run
 WHERE id IN (SELECT value FROM json_each(:ids)
              UNION SELECT run_id FROM task WHERE id IN (SELECT value FROM json_each(:task_ids)))
 ORDER BY id

-- name: insert_runs
INSERT INTO run (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                 started_at, completed_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, missing_tasks, has_checks,
                 retry_count, max_retries, policy, budget_usd, spent_usd, promised_usd, reserved_usd, error, payload, output)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :name, :lifecycle, :parent_run_id, :depth, :worker_count, :allocates, :missing_tasks, :has_checks,
        :retry_count, :max_retries, :policy, :budget_usd, :spent_usd, :promised_usd, :reserved_usd, :error, :payload, :output)

-- name: list_allocatable_runs
SELECT id FROM run
 WHERE allocates = 1 AND phase IN ('queued', 'active')
   AND (phase = 'queued' OR (SELECT count(*) FROM worker WHERE worker.run_id = run.id) < worker_count)
 ORDER BY created_at, id LIMIT :limit

-- name: assess_runs
-- A handful of probes of task_unfinished a run, however many tasks it has.
SELECT asked.value AS run_id,
       (SELECT id FROM task WHERE run_id = asked.value AND phase = 'done' AND critical = 1
           AND outcome <> 'success' AND (outcome IS NULL OR outcome <> 'success') LIMIT 1) AS failed_task,
       (SELECT id FROM task WHERE run_id = asked.value AND phase = 'done' AND (outcome IS NULL OR outcome <> 'success')
           AND NOT EXISTS (SELECT 1 FROM task AS other WHERE other.run_id = asked.value
                              AND other.phase IN ('held', 'queued', 'active') AND (other.outcome IS NULL OR other.outcome <> 'success'))
         LIMIT 1) AS last_failure,
       EXISTS (SELECT 1 FROM task WHERE run_id = asked.value AND (outcome IS NULL OR outcome <> 'success')) AS unfinished,
       (EXISTS (SELECT 1 FROM task WHERE run_id = asked.value AND phase = 'active' AND (outcome IS NULL OR outcome <> 'success'))
        OR EXISTS (SELECT 1 FROM task WHERE run_id = asked.value AND phase = 'queued' AND (outcome IS NULL OR outcome <> 'success')
                      AND open_dependencies = 0)
        OR EXISTS (SELECT 1 FROM task WHERE run_id = asked.value AND phase = 'held' AND (outcome IS NULL OR outcome <> 'success')
                      AND available_at IS NOT NULL)) AS moving
  FROM json_each(:ids) AS asked

-- name: open_runs
UPDATE task SET run_open = :is_open WHERE run_id IN (SELECT value FROM json_each(:ids)) AND (outcome IS NULL OR outcome <> 'success')
   AND run_open <> :is_open
