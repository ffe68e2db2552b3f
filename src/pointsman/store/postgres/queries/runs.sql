-- name: find_run
SELECT * FROM run WHERE id = %(id)s AND tenant = %(tenant)s

-- name: list_runs
SELECT * FROM run
 WHERE tenant = %(tenant)s AND (%(phase)s::text IS NULL OR phase = %(phase)s::text) AND (%(after)s::text IS NULL OR id < %(after)s::text)
 ORDER BY id DESC LIMIT %(limit)s

-- name: lock_runs
-- In the order of their ids, so that two who lock several never wait for each other. Foreign keys still may refer to a locked run.
SELECT * FROM run
 WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::text[]) UNION SELECT run_id FROM task WHERE task.id = ANY(%(task_ids)s)))
 ORDER BY id FOR NO KEY UPDATE

-- name: insert_runs
INSERT INTO run (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                 started_at, completed_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, missing_tasks, has_checks,
                 retry_count, max_retries, policy, budget_usd, spent_usd, promised_usd, reserved_usd, error, payload, output)
SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
       started_at, completed_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, missing_tasks, has_checks,
       retry_count, max_retries, policy, budget_usd, spent_usd, promised_usd, reserved_usd, error, payload, output
  FROM json_to_recordset(%(rows)s) AS new (
       id text, tenant text, machine_id integer, state text, phase text, outcome text, revision integer, trigger text, reason text,
       actor text, metadata text, entered_at timestamptz, created_at timestamptz, started_at timestamptz, completed_at timestamptz,
       name text, lifecycle text, parent_run_id text, depth integer, worker_count integer, allocates boolean, missing_tasks integer,
       has_checks boolean, retry_count integer, max_retries integer, policy text, budget_usd numeric, spent_usd numeric,
       promised_usd numeric, reserved_usd numeric, error text, payload text, output text)

-- name: list_allocatable_runs
SELECT id FROM run
 WHERE allocates AND phase IN ('queued', 'active')
   AND (phase = 'queued' OR (SELECT count(*) FROM worker WHERE worker.run_id = run.id) < worker_count)
 ORDER BY created_at, id LIMIT %(limit)s

-- name: assess_runs
-- A handful of probes of task_unfinished a run, however many tasks it has.
SELECT asked.run_id,
       (SELECT id FROM task WHERE run_id = asked.run_id AND phase = 'done' AND critical
           AND outcome <> 'success' AND (outcome IS NULL OR outcome <> 'success') LIMIT 1) AS failed_task,
       (SELECT id FROM task WHERE run_id = asked.run_id AND phase = 'done' AND (outcome IS NULL OR outcome <> 'success')
           AND NOT EXISTS (SELECT 1 FROM task AS other WHERE other.run_id = asked.run_id
                              AND other.phase IN ('held', 'queued', 'active') AND (other.outcome IS NULL OR other.outcome <> 'success'))
         LIMIT 1) AS last_failure,
       EXISTS (SELECT 1 FROM task WHERE run_id = asked.run_id AND (outcome IS NULL OR outcome <> 'success')) AS unfinished,
       (EXISTS (SELECT 1 FROM task WHERE run_id = asked.run_id AND phase = 'active' AND (outcome IS NULL OR outcome <> 'success'))
        OR EXISTS (SELECT 1 FROM task WHERE run_id = asked.run_id AND phase = 'queued' AND (outcome IS NULL OR outcome <> 'success')
                      AND open_dependencies = 0)
        OR EXISTS (SELECT 1 FROM task WHERE run_id = asked.run_id AND phase = 'held' AND (outcome IS NULL OR outcome <> 'success')
                      AND available_at IS NOT NULL)) AS moving
  FROM unnest(%(ids)s::text[]) AS asked (run_id)

-- name: open_runs
UPDATE task SET run_open = %(is_open)s WHERE run_id = ANY(%(ids)s) AND (outcome IS NULL OR outcome <> 'success') AND run_open <> %(is_open)s
