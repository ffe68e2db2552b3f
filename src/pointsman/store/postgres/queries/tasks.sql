-- name: find_task
SELECT * FROM task WHERE id = %(id)s AND tenant = %(tenant)s

-- name: list_tasks
SELECT * FROM task WHERE run_id = %(run_id)s AND tenant = %(tenant)s ORDER BY position, id

-- name: count_tasks
SELECT run_id, phase, outcome, count(*) FROM task
 WHERE run_id = ANY(%(run_ids)s) AND tenant = %(tenant)s
 GROUP BY run_id, phase, outcome

-- name: select_tasks
SELECT * FROM task_in_brief WHERE id = ANY(%(ids)s) ORDER BY id

-- name: select_to_claim
SELECT * FROM task_to_claim WHERE id = ANY(%(ids)s)

-- name: select_run_tasks
SELECT * FROM task_in_brief
 WHERE run_id = %(run_id)s AND phase = ANY(%(phases)s) AND (outcome IS NULL OR outcome <> 'success')
 ORDER BY id

-- name: find_task_names
SELECT name, id FROM task WHERE run_id = %(run_id)s

-- name: select_task_keys
SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
       max_retries, max_reclaims, policy, entered_at, plain
  FROM task_key WHERE id = ANY(%(ids)s) ORDER BY id

-- name: select_claimable_keys
-- What is still so, now that its run is locked.
SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
       max_retries, max_reclaims, policy, entered_at, priority, name, payload, plain
  FROM task_key
 WHERE id = ANY(%(ids)s)
   AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
 ORDER BY priority DESC, id

-- name: select_claimable
-- The head of each lane in the order of task_claimable, a sort of the heads alone, and then their runs one by one until there are
-- enough: under LIMIT no further run is locked. Runs that somebody else holds are skipped; a head is longer than what is asked for by
-- 200, so that a long run in somebody's hands does not hide the others, and not by more, so that skipping it stays cheap.
-- What is found was true before the lock, so the tasks themselves are read by a second statement (as for the next two queries).
WITH head AS MATERIALIZED (
    SELECT first.id, first.run_id, first.priority
      FROM unnest(%(lane_ids)s::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT task.id, task.run_id, task.priority FROM task
            WHERE task.tenant = %(tenant)s AND task.lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
            ORDER BY task.priority DESC, task.id LIMIT %(limit)s::bigint + 200) AS first
     ORDER BY first.priority DESC, first.id
)
SELECT head.id FROM head JOIN run ON run.id = head.run_id
 ORDER BY head.priority DESC, head.id LIMIT %(limit)s
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: select_claimable_of_run
-- The head of each lane in the order of task_claimable_of_run, and a sort of the heads alone. The run is locked: what is found is true.
SELECT first.*
  FROM unnest(%(lane_ids)s::integer[]) AS lane (id)
 CROSS JOIN LATERAL (
       SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count, started,
              max_retries, max_reclaims, policy, entered_at, priority, name, payload, plain
         FROM task_key AS task
        WHERE task.run_id = %(run_id)s AND task.lane_id = lane.id
          AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
        ORDER BY task.priority DESC, task.id LIMIT %(limit)s) AS first
 ORDER BY first.priority DESC, first.id LIMIT %(limit)s

-- name: select_allocated
WITH head AS MATERIALIZED (
    SELECT first.id, first.priority
      FROM unnest(%(lane_ids)s::integer[]) AS lane (id)
     CROSS JOIN LATERAL (
           SELECT task.id, task.priority FROM task
            WHERE task.run_id = %(run_id)s AND task.lane_id = lane.id
              AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND allocated
            ORDER BY task.priority DESC, task.id LIMIT %(limit)s) AS first
     ORDER BY first.priority DESC, first.id LIMIT %(limit)s
)
SELECT head.id FROM head JOIN run ON run.id = %(run_id)s
 ORDER BY head.priority DESC, head.id
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: select_reclaimable
-- Few tasks are ever lost at a time, so sorting them costs nothing.
SELECT task.id FROM task JOIN run ON run.id = task.run_id
 WHERE lease_expired AND task.tenant = %(tenant)s AND lane_id = ANY(%(lane_ids)s) AND run_open
   AND (%(run_id)s::text IS NULL OR task.run_id = %(run_id)s)
 ORDER BY task.priority DESC, task.id LIMIT %(limit)s
   FOR NO KEY UPDATE OF run SKIP LOCKED

-- name: find_claimable_runs
-- DISTINCT would read every claimable task before it answers: the head of each lane is enough to know whom to wait for.
SELECT DISTINCT first.run_id
  FROM unnest(%(lane_ids)s::integer[]) AS lane (id)
 CROSS JOIN LATERAL (
       SELECT task.run_id FROM task
        WHERE task.tenant = %(tenant)s AND task.lane_id = lane.id
          AND phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated
        ORDER BY task.priority DESC, task.id LIMIT %(limit)s::bigint + 200) AS first
 LIMIT %(limit)s

-- name: insert_tasks
INSERT INTO task (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                  started_at, completed_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate, critical,
                  review_wanted, has_checks, has_subtasks, allocated, run_open, open_dependencies, available_at, epoch, current_attempt, worker_id,
                  lease_expired, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, policy,
                  budget_usd, cost_usd, reserved_usd, session_id, keep_session, attempt_worker_id, attempt_started_at, attempt_resumed, attempt_cost_usd,
                  attempt_error, attempt_exit_code, attempt_log_path, question, answer, comment, error, cancel_requested_at, payload)
SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
       started_at, completed_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate, critical,
       review_wanted, has_checks, has_subtasks, allocated, run_open, open_dependencies, available_at, epoch, current_attempt, worker_id,
       lease_expired, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, policy,
       budget_usd, cost_usd, reserved_usd, session_id, keep_session, attempt_worker_id, attempt_started_at, attempt_resumed, attempt_cost_usd, attempt_error,
       attempt_exit_code, attempt_log_path, question, answer, comment, error,
       cancel_requested_at, payload
  FROM json_to_recordset(%(rows)s) AS new (
       id text, tenant text, machine_id integer, state text, phase text, outcome text, revision integer, trigger text, reason text,
       actor text, metadata text, entered_at timestamptz, created_at timestamptz, started_at timestamptz, completed_at timestamptz,
       run_id text, parent_task_id text, depth integer, position integer, name text, lane_id integer, priority integer,
       is_gate boolean, critical boolean, review_wanted boolean, has_checks boolean, has_subtasks boolean, allocated boolean, run_open boolean,
       open_dependencies integer, available_at timestamptz, epoch integer, current_attempt integer, worker_id text,
       lease_expired boolean, attempt_count integer, max_attempts integer, retry_count integer, max_retries integer,
       reclaim_count integer, max_reclaims integer, policy text, budget_usd numeric, cost_usd numeric, reserved_usd numeric,
       session_id text, keep_session boolean, attempt_worker_id text, attempt_started_at timestamptz, attempt_resumed boolean,
       attempt_cost_usd numeric, attempt_error text, attempt_exit_code integer, attempt_log_path text, question text, answer text, comment text, error text,
       cancel_requested_at timestamptz, payload text)

-- name: insert_dependencies
INSERT INTO dependency (task_id, depends_on_id)
SELECT task_id, depends_on_id FROM json_to_recordset(%(rows)s) AS new (task_id text, depends_on_id text)

-- name: count_dependents
-- Most tasks have none: this finds that out without writing anything.
SELECT task_id AS id, count(*) AS released FROM dependency WHERE depends_on_id = ANY(%(ids)s) GROUP BY task_id ORDER BY task_id

-- name: release_dependents
UPDATE task SET open_dependencies = open_dependencies - new.released
  FROM json_to_recordset(%(rows)s) AS new (id text, released integer)
 WHERE task.id = new.id
RETURNING task.id, open_dependencies

-- name: find_dependents
SELECT DISTINCT task_id FROM dependency WHERE depends_on_id = ANY(%(ids)s)

-- name: list_dependencies
SELECT dependency.task_id, dependency.depends_on_id
  FROM dependency JOIN task ON task.id = dependency.task_id
 WHERE task.run_id = %(run_id)s AND task.tenant = %(tenant)s
 ORDER BY dependency.task_id, dependency.depends_on_id

-- name: assess_subtasks
-- Whether there is one such child, and not how many: they are asked about whenever one of them ends.
SELECT id AS parent_task_id,
       EXISTS (SELECT FROM task AS child WHERE child.parent_task_id = parent.id AND child.outcome IS NULL) AS open,
       EXISTS (SELECT FROM task AS child
                WHERE child.parent_task_id = parent.id AND child.outcome IN ('failure', 'canceled') AND child.critical) AS failed
  FROM task AS parent
 WHERE id = ANY(%(ids)s) AND has_subtasks

-- name: list_results
-- The unique index on run and name finds the first, task_of_parent the others.
SELECT task.name, NULL AS parent, task.position, task.phase, task.outcome, task.trigger, coalesce(task.actor = task.attempt_worker_id, false) AS by_worker, task.output
  FROM task WHERE run_id = %(run_id)s AND tenant = %(tenant)s AND name = ANY(%(names)s)
UNION ALL
SELECT part.name, whole.name, part.position, part.phase, part.outcome, part.trigger, coalesce(part.actor = part.attempt_worker_id, false), part.output
  FROM task AS whole JOIN task AS part ON part.parent_task_id = whole.id
 WHERE whole.run_id = %(run_id)s AND whole.tenant = %(tenant)s AND whole.name = ANY(%(names)s)
 ORDER BY 3

-- name: list_attempts
-- Those that are over, and the one that its task is at.
SELECT task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, error, exit_code, cost_usd, session_id, resumed, log_path
  FROM attempt WHERE task_id = %(task_id)s AND tenant = %(tenant)s
UNION ALL
SELECT id, epoch, tenant, attempt_worker_id, attempt_started_at, NULL, NULL, attempt_error, attempt_exit_code, attempt_cost_usd, session_id,
       attempt_resumed, attempt_log_path
  FROM task WHERE id = %(task_id)s AND tenant = %(tenant)s AND current_attempt IS NOT NULL
 ORDER BY 2

-- name: find_doomed
SELECT DISTINCT dependency.task_id
  FROM dependency JOIN task ON task.id = dependency.depends_on_id
 WHERE dependency.task_id = ANY(%(ids)s) AND task.phase = 'done' AND task.outcome <> 'success'
