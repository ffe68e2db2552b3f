-- name: find_quota
SELECT {quota} FROM quota WHERE tenant = :tenant

-- name: measure_use
-- Reads run_in_progress, and for each of these runs task_unfinished.
SELECT count(*), CAST(coalesce(sum(tasks), 0) AS BIGINT), CAST(coalesce(sum(payload_bytes), 0) AS BIGINT)
  FROM (SELECT (SELECT count(*) FROM task_state
                 WHERE run_number = run.number AND (outcome IS NULL OR outcome <> 'success') AND phase IN ('held', 'queued', 'active')
               ) AS tasks,
               octet_length(run.payload)
               + coalesce((SELECT sum(octet_length(task.payload)) FROM task
                            WHERE run_number = run.number AND (outcome IS NULL OR outcome <> 'success') AND phase IN ('held', 'queued', 'active')
                          ), 0) AS payload_bytes
          FROM run WHERE tenant = :tenant AND phase <> 'done') AS used

-- name: save_quotas
INSERT INTO {new quota}
    ON CONFLICT (tenant) DO UPDATE
   SET max_runs = excluded.max_runs, max_tasks = excluded.max_tasks, max_bytes = excluded.max_bytes

-- name: drop_quota
DELETE FROM quota WHERE tenant = :tenant
