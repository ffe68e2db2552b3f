-- name: find_task
SELECT {task} FROM task WHERE id = :id AND tenant = :tenant

-- name: list_tasks
SELECT {task} FROM task WHERE run_id = :run_id AND tenant = :tenant ORDER BY position, id

-- name: list_tasks_in_brief
-- Without payloads: a run may have thousands of them, a megabyte each.
SELECT {task_in_brief}, NULL, output FROM task
 WHERE run_id = :run_id AND tenant = :tenant AND (position, id) > (:after, :after_id)
 ORDER BY position, id LIMIT :limit

-- name: search_tasks
-- From the newest run to the oldest (run_of_tenant), the tasks of each (its unique index). Only the tasks of one run are sorted.
SELECT {task_in_brief}, NULL, task.output
  FROM run JOIN task ON task.run_id = run.id
 WHERE run.tenant = :tenant AND run.created_at >= :since AND (run.created_at, run.id) <= (:before, :before_id)
   AND (run.id <> :before_id OR task.id < :before_task)
   AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.task_id = task.id) AND {task_conditions}
 ORDER BY run.created_at DESC, run.id DESC, task.id DESC LIMIT :limit

-- name: search_unfinished_tasks
-- The same for conditions that no task fulfills that has succeeded. Reads task_unfinished.
SELECT {task_in_brief}, NULL, task.output
  FROM run JOIN task ON task.run_number = run.number AND (task.outcome IS NULL OR task.outcome <> 'success')
 WHERE run.tenant = :tenant AND run.created_at >= :since AND (run.created_at, run.id) <= (:before, :before_id)
   AND (run.id <> :before_id OR task.id < :before_task)
   AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.task_id = task.id) AND {task_conditions}
 ORDER BY run.created_at DESC, run.id DESC, task.id DESC LIMIT :limit

-- name: count_tasks
SELECT run_id, phase, outcome, count(*), max(entered_at) FROM task
 WHERE run_id IN :run_ids AND tenant = :tenant
 GROUP BY run_id, phase, outcome

-- name: list_held_tasks
-- Only tasks that a worker holds (task_held), which are no more than all workers have slots.
SELECT {task_in_brief} FROM task WHERE current_attempt IS NOT NULL AND tenant = :tenant ORDER BY id

-- name: list_waiting_tasks
-- One pass over the unfinished tasks (task_unfinished), and then only the first row of each group.
SELECT {task_in_brief}, NULL, NULL, alike
  FROM task JOIN (
        SELECT min(task.id) AS first_id, count(*) AS alike
          FROM task JOIN run ON run.number = task.run_number
         WHERE task.tenant = :tenant AND (CAST(:run_id AS TEXT) IS NULL OR task.run_id = CAST(:run_id AS TEXT)) AND run.phase <> 'done'
           AND (task.outcome IS NULL OR task.outcome <> 'success') AND task.phase <> 'done' AND open_dependencies = 0
         GROUP BY task.run_id, lane_id, task.machine_id, task.state, run_open, available_at IS NULL, lease_expired, question IS NULL,
                  task.budget_usd, cancel_requested_at IS NULL, CASE WHEN task.phase = 'active' THEN attempt_worker_id END
       ) AS waiting ON id = first_id
 ORDER BY id LIMIT :limit

-- name: select_tasks
SELECT {task_in_brief} FROM task WHERE id IN :ids ORDER BY id

-- name: select_run_tasks
SELECT {task_in_brief} FROM task
 WHERE run_number = (SELECT number FROM run WHERE run.id = :run_id) AND phase IN :phases AND (outcome IS NULL OR outcome <> 'success')
 ORDER BY id

-- name: find_task_names
SELECT name, id FROM task_spec WHERE run_id = :run_id

-- name: select_to_claim
SELECT {task_to_claim} FROM task WHERE id IN :ids

-- name: insert_dependencies
INSERT INTO {new dependency}

-- name: count_dependents
-- Most tasks have none: this finds out without a write.
SELECT task_id, count(*) FROM dependency WHERE depends_on_id IN :ids GROUP BY task_id

-- name: find_dependents
SELECT DISTINCT task_id FROM dependency WHERE depends_on_id IN :ids

-- name: find_doomed
SELECT DISTINCT dependency.task_id
  FROM dependency JOIN task ON task.id = dependency.depends_on_id
 WHERE dependency.task_id IN :ids AND task.phase = 'done' AND task.outcome <> 'success'

-- name: list_dependencies
SELECT {dependency}
  FROM dependency JOIN task ON task.id = dependency.task_id
 WHERE task.run_id = :run_id AND task.tenant = :tenant
 ORDER BY dependency.task_id, dependency.depends_on_id

-- name: assess_subtasks
-- Asks whether there is such a subtask, not how many: this runs whenever one of them ends.
SELECT id AS parent_task_id,
       EXISTS (SELECT 1 FROM task_state AS subtask WHERE subtask.parent_number = parent.number AND subtask.outcome IS NULL) AS open,
       EXISTS (SELECT 1 FROM task AS subtask
                WHERE subtask.parent_number = parent.number AND subtask.outcome IN ('failure', 'canceled') AND subtask.critical) AS failed
  FROM task AS parent
 WHERE id IN :ids AND has_subtasks

-- name: list_results
-- The unique index on run and name finds the tasks, task_of_parent their subtasks.
SELECT name, NULL AS parent, position, phase, outcome, trigger, coalesce(actor = attempt_worker_id, false) AS by_worker, output
  FROM task WHERE run_id = :run_id AND tenant = :tenant AND name IN :names
UNION ALL
SELECT subtask.name, parent.name, subtask.position, subtask.phase, subtask.outcome, subtask.trigger,
       coalesce(subtask.actor = subtask.attempt_worker_id, false), subtask.output
  FROM task AS parent JOIN task AS subtask ON subtask.parent_number = parent.number
 WHERE parent.run_id = :run_id AND parent.tenant = :tenant AND parent.name IN :names
 ORDER BY 3

-- name: list_attempt_times
-- Of the attempts that have ended; the index on the run of a task finds the tasks, the primary key their attempts.
SELECT attempt.task_id, attempt.epoch, attempt.worker_id, attempt.started_at, attempt.ended_at, attempt.log_path IS NOT NULL AS has_log
  FROM task_spec AS task JOIN attempt ON attempt.task_id = task.id
 WHERE task.run_id = :run_id AND task.tenant = :tenant

-- name: list_attempts
-- The attempts that have ended, and from the columns of its task: the current one, or the next one if the task waits for a worker.
SELECT task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, error, exit_code, cost_usd, session_id, resumed, log_path,
       tokens_in, tokens_out, cost_is_estimated
  FROM attempt WHERE task_id = :task_id AND tenant = :tenant AND epoch > :after
UNION ALL
SELECT id, epoch, tenant, attempt_worker_id, attempt_started_at, NULL, NULL, attempt_error, attempt_exit_code, attempt_cost_usd, session_id,
       attempt_resumed, attempt_log_path, attempt_tokens_in, attempt_tokens_out, attempt_cost_is_estimated
  FROM task WHERE id = :task_id AND tenant = :tenant AND current_attempt IS NOT NULL AND epoch > :after
UNION ALL
SELECT id, epoch + 1, tenant, NULL, NULL, NULL, NULL, NULL, NULL, 0, session_id, false, NULL, 0, 0, false
  FROM task WHERE id = :task_id AND tenant = :tenant AND phase = 'queued' AND epoch >= :after
   AND EXISTS (SELECT 1 FROM run WHERE run.id = task.run_id AND run.phase <> 'done')
 ORDER BY 2 LIMIT :limit

-- name: count_claimable
-- Reads task_claimable, task_reclaimable and the runs that workers have to themselves, and no more rows than it counts.
SELECT count(*) FROM (
    SELECT 1 FROM lane JOIN task_state AS task ON task.lane_id = lane.id
     WHERE lane.tenant = :tenant AND task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
    UNION ALL
    SELECT 1 FROM lane JOIN task_state AS task ON task.lane_id = lane.id WHERE lane.tenant = :tenant AND lease_expired AND run_open
    UNION ALL
    SELECT 1 FROM worker JOIN run ON run.id = worker.run_id JOIN task_state AS task ON task.run_number = run.number
     WHERE worker.tenant = :tenant AND worker.run_id IS NOT NULL AND task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
     LIMIT :most) AS waiting

-- name: count_claimable_of_all
-- The same for all tenants.
SELECT count(*) FROM (
    SELECT 1 FROM task_state AS task WHERE task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
    UNION ALL
    SELECT 1 FROM task_state WHERE lease_expired AND run_open
    UNION ALL
    SELECT 1 FROM worker JOIN run ON run.id = worker.run_id JOIN task_state AS task ON task.run_number = run.number
     WHERE worker.run_id IS NOT NULL AND task.phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
     LIMIT :most) AS waiting
