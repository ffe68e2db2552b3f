-- name: find_task
SELECT * FROM task WHERE id = :id AND tenant = :tenant

-- name: list_tasks
SELECT * FROM task WHERE run_id = :run_id AND tenant = :tenant ORDER BY position, id

-- name: count_tasks
SELECT run_id, phase, outcome, count(*) FROM task
 WHERE run_id IN (SELECT value FROM json_each(:run_ids)) AND tenant = :tenant
 GROUP BY run_id, phase, outcome

-- name: select_tasks
SELECT * FROM task_in_brief WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: select_run_tasks
SELECT * FROM task_in_brief
 WHERE run_id = :run_id AND phase IN (SELECT value FROM json_each(:phases)) AND (outcome IS NULL OR outcome <> 'success')
 ORDER BY id

-- name: find_task_names
SELECT name, id FROM task WHERE run_id = :run_id

-- name: select_task_keys
SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
       max_retries, max_reclaims, policy, entered_at, plain
  FROM task_key WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: select_to_claim
SELECT * FROM task_to_claim WHERE id IN (SELECT value FROM json_each(:ids))

-- name: select_claimable
-- One lane at a time, in the order of task_claimable: no sorting, and nothing is read that is not taken.
SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
       max_retries, max_reclaims, policy, entered_at, priority, name, payload, plain
  FROM task_key
 WHERE tenant = :tenant AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0 AND allocated = 0
 ORDER BY priority DESC, id LIMIT :limit

-- name: select_claimable_of_run
-- The same, in the order of task_claimable_of_run.
SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
       max_retries, max_reclaims, policy, entered_at, priority, name, payload, plain
  FROM task_key
 WHERE run_id = :run_id AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0 AND allocated = 0
 ORDER BY priority DESC, id LIMIT :limit

-- name: select_allocated
SELECT * FROM task_to_claim
 WHERE run_id = :run_id AND lane_id = :lane_id
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0 AND allocated = 1
 ORDER BY priority DESC, id LIMIT :limit

-- name: select_reclaimable
SELECT * FROM task_to_claim
 WHERE lease_expired = 1 AND tenant = :tenant AND lane_id IN (SELECT value FROM json_each(:lane_ids)) AND run_open = 1
   AND (:run_id IS NULL OR run_id = :run_id)
 ORDER BY priority DESC, id LIMIT :limit

-- name: find_claimable_runs
SELECT DISTINCT run_id FROM task
 WHERE tenant = :tenant AND lane_id IN (SELECT value FROM json_each(:lane_ids))
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0 AND allocated = 0
 LIMIT :limit

-- name: insert_tasks
INSERT INTO task (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                  started_at, completed_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate, critical,
                  review_wanted, has_checks, has_subtasks, allocated, run_open, open_dependencies, available_at, epoch, current_attempt, worker_id,
                  lease_expired, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, policy,
                  budget_usd, cost_usd, reserved_usd, session_id, keep_session, attempt_worker_id, attempt_started_at, attempt_resumed, attempt_cost_usd,
                  attempt_error, attempt_exit_code, attempt_log_path, question, answer, comment, error, cancel_requested_at, payload)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :run_id, :parent_task_id, :depth, :position, :name, :lane_id, :priority, :is_gate, :critical,
        :review_wanted, :has_checks, :has_subtasks, :allocated, :run_open, :open_dependencies, :available_at, :epoch, :current_attempt, :worker_id,
        :lease_expired, :attempt_count, :max_attempts, :retry_count, :max_retries, :reclaim_count, :max_reclaims, :policy,
        :budget_usd, :cost_usd, :reserved_usd, :session_id, :keep_session, :attempt_worker_id, :attempt_started_at, :attempt_resumed, :attempt_cost_usd,
        :attempt_error, :attempt_exit_code, :attempt_log_path, :question, :answer, :comment, :error, :cancel_requested_at, :payload)

-- name: insert_dependencies
INSERT INTO dependency (task_id, depends_on_id) VALUES (:task_id, :depends_on_id)

-- name: count_dependents
-- Most tasks have none: this finds that out without writing anything.
SELECT task_id, count(*) FROM dependency WHERE depends_on_id IN (SELECT value FROM json_each(:ids)) GROUP BY task_id

-- name: release_dependents
UPDATE task SET open_dependencies = open_dependencies - :released WHERE id = :id RETURNING id, open_dependencies

-- name: find_dependents
SELECT DISTINCT task_id FROM dependency WHERE depends_on_id IN (SELECT value FROM json_each(:ids))

-- name: list_dependencies
SELECT dependency.task_id, dependency.depends_on_id
  FROM dependency JOIN task ON task.id = dependency.task_id
 WHERE task.run_id = :run_id AND task.tenant = :tenant
 ORDER BY dependency.task_id, dependency.depends_on_id

-- name: assess_subtasks
-- Whether there is one such child, and not how many: they are asked about whenever one of them ends.
SELECT id AS parent_task_id,
       EXISTS (SELECT 1 FROM task AS child WHERE child.parent_task_id = parent.id AND child.outcome IS NULL) AS open,
       EXISTS (SELECT 1 FROM task AS child
                WHERE child.parent_task_id = parent.id AND child.outcome IN ('failure', 'canceled') AND child.critical = 1) AS failed
  FROM task AS parent
 WHERE id IN (SELECT value FROM json_each(:ids)) AND has_subtasks = 1

-- name: list_results
-- The unique index on run and name finds the first, task_of_parent the others.
SELECT name, NULL AS parent, position, phase, outcome, trigger, coalesce(actor = attempt_worker_id, false) AS by_worker, output
  FROM task WHERE run_id = :run_id AND tenant = :tenant AND name IN (SELECT value FROM json_each(:names))
UNION ALL
SELECT part.name, whole.name, part.position, part.phase, part.outcome, part.trigger, coalesce(part.actor = part.attempt_worker_id, false), part.output
  FROM task AS whole JOIN task AS part ON part.parent_task_id = whole.id
 WHERE whole.run_id = :run_id AND whole.tenant = :tenant AND whole.name IN (SELECT value FROM json_each(:names))
 ORDER BY 3

-- name: list_attempts
-- Those that are over, and the one that its task is at.
SELECT task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, error, exit_code, cost_usd, session_id, resumed, log_path
  FROM attempt WHERE task_id = :task_id AND tenant = :tenant
UNION ALL
SELECT id, epoch, tenant, attempt_worker_id, attempt_started_at, NULL, NULL, attempt_error, attempt_exit_code, attempt_cost_usd, session_id,
       attempt_resumed, attempt_log_path
  FROM task WHERE id = :task_id AND tenant = :tenant AND current_attempt IS NOT NULL
 ORDER BY 2

-- name: find_doomed
SELECT DISTINCT dependency.task_id
  FROM dependency JOIN task ON task.id = dependency.depends_on_id
 WHERE dependency.task_id IN (SELECT value FROM json_each(:ids)) AND task.phase = 'done' AND task.outcome <> 'success'
