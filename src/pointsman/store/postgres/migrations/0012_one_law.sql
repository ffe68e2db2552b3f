-- One trigger for each event keeps the law of runs, tasks and workers: their constraints, foreign keys and guards are conditions of it.
--
-- PostgreSQL reads the text of every CHECK and of every WHEN again for each statement, and looks up foreign keys row by row, of a new row
-- also when it is changed in the same transaction. Together that was a third of a statement. Now one expression says which rule a row breaks,
-- and the trigger evaluates it for all rows of a statement. The rules keep their names, and messages tell them: SELECT id, task_breaks(task) FROM task
-- names them, too. Values that no statement of the engine names are still kept by row triggers with a list of columns, which cost nothing then.

-- Refuses a row as a constraint would, by the name of the rule. It is STRICT: without a rule it is not even called.
CREATE FUNCTION refuse_row(kind text, entity_id text, rule text) RETURNS text LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF rule LIKE '%\_fkey' THEN
        RAISE EXCEPTION 'pointsman: % % refers to a row that does not exist: it breaks the rule "%"', kind, entity_id, rule
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = rule, TABLE = kind;
    END IF;
    RAISE EXCEPTION 'pointsman: % % breaks the rule "%"', kind, entity_id, rule
        USING ERRCODE = 'check_violation', CONSTRAINT = rule, TABLE = kind;
END $$;

-- Refuses a change, and says why.
CREATE FUNCTION refuse_change(reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: %', reason;
END $$;

-- What a row fulfills by itself

-- The first rule that a task breaks by itself, or null.
CREATE FUNCTION task_breaks(task task) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'task_phase_check'
    WHEN task.outcome NOT IN ('success', 'failure', 'canceled') THEN 'task_outcome_check'
    WHEN (task.phase = 'done') <> (task.outcome IS NOT NULL) THEN 'task_done_has_outcome'
    WHEN (task.phase = 'done') <> (task.completed_at IS NOT NULL) THEN 'task_done_is_completed'
    WHEN task.started_at < task.created_at THEN 'task_starts_after_creation'
    WHEN task.completed_at < coalesce(task.started_at, task.created_at) THEN 'task_completes_after_start'
    WHEN task.metadata IS NOT JSON OBJECT THEN 'task_metadata_check'
    WHEN task.policy IS NOT JSON THEN 'task_policy_check'
    WHEN task.depth NOT BETWEEN 0 AND 5 THEN 'task_depth_check'
    WHEN (task.depth = 0) <> (task.parent_task_id IS NULL) THEN 'task_depth_follows_parent'
    WHEN task.open_dependencies < 0 THEN 'task_open_dependencies_check'
    WHEN task.available_at IS NOT NULL AND task.phase NOT IN ('held', 'queued') THEN 'task_waits_before_it_runs'
    WHEN task.phase = 'active' AND (task.open_dependencies <> 0 OR task.is_gate) THEN 'task_runs_when_free'
    -- Attempts and workers
    WHEN (task.phase = 'active') <> (task.current_attempt IS NOT NULL) THEN 'task_active_has_attempt'
    WHEN task.current_attempt <> task.epoch THEN 'task_attempt_is_latest'
    WHEN task.current_attempt IS NOT NULL AND (task.attempt_worker_id IS NULL OR task.attempt_started_at IS NULL) THEN 'task_attempt_has_begun'
    WHEN task.worker_id IS NOT NULL AND task.phase <> 'active' THEN 'task_worker_is_active'
    WHEN task.lease_expired AND task.phase <> 'active' THEN 'task_lost_lease_is_active'
    WHEN task.epoch < 0 THEN 'task_epoch_check'
    WHEN task.attempt_count < 0 THEN 'task_attempt_count_check'
    WHEN task.attempt_count > task.max_attempts THEN 'task_attempts_in_bounds'
    WHEN task.retry_count NOT BETWEEN 0 AND task.max_retries THEN 'task_retries_in_bounds'
    WHEN task.reclaim_count NOT BETWEEN 0 AND task.max_reclaims THEN 'task_reclaims_in_bounds'
    -- Money and tokens
    WHEN task.budget_usd < 0 THEN 'task_budget_usd_check'
    WHEN task.cost_usd < 0 THEN 'task_cost_usd_check'
    WHEN task.reserved_usd < 0 THEN 'task_reserved_usd_check'
    WHEN task.reserved_usd <> 0 AND task.phase <> 'active' THEN 'task_reserves_while_active'
    WHEN task.attempt_cost_usd < 0 THEN 'task_attempt_cost_usd_check'
    WHEN task.tokens_in < 0 THEN 'task_tokens_in_check'
    WHEN task.tokens_out < 0 THEN 'task_tokens_out_check'
    WHEN task.attempt_tokens_in < 0 THEN 'task_attempt_tokens_in_check'
    WHEN task.attempt_tokens_out < 0 THEN 'task_attempt_tokens_out_check'
END;

-- The same for a run. Reservations must fit into the budget. Spent money is a fact, also beyond it.
CREATE FUNCTION run_breaks(run run) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN run.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'run_phase_check'
    WHEN run.outcome NOT IN ('success', 'failure', 'canceled') THEN 'run_outcome_check'
    WHEN (run.phase = 'done') <> (run.outcome IS NOT NULL) THEN 'run_done_has_outcome'
    WHEN (run.phase = 'done') <> (run.completed_at IS NOT NULL) THEN 'run_done_is_completed'
    WHEN run.started_at < run.created_at THEN 'run_starts_after_creation'
    WHEN run.completed_at < coalesce(run.started_at, run.created_at) THEN 'run_completes_after_start'
    WHEN run.metadata IS NOT JSON OBJECT THEN 'run_metadata_check'
    WHEN run.policy IS NOT JSON THEN 'run_policy_check'
    WHEN run.final_task IS NOT JSON THEN 'run_final_task_check'
    WHEN run.tags IS NOT JSON ARRAY THEN 'run_tags_check'
    WHEN run.depth NOT BETWEEN 0 AND 5 THEN 'run_depth_check'
    WHEN (run.depth = 0) <> (run.parent_run_id IS NULL) THEN 'run_depth_follows_parent'
    WHEN run.worker_count NOT BETWEEN 1 AND 10 THEN 'run_worker_count_check'
    WHEN run.missing_tasks < 0 THEN 'run_missing_tasks_check'
    WHEN run.retry_count NOT BETWEEN 0 AND run.max_retries THEN 'run_retries_in_bounds'
    WHEN run.budget_usd < 0 THEN 'run_budget_usd_check'
    WHEN run.spent_usd < 0 THEN 'run_spent_usd_check'
    WHEN run.promised_usd < 0 THEN 'run_promised_usd_check'
    WHEN run.reserved_usd < 0 THEN 'run_reserved_usd_check'
    WHEN run.reserved_usd <> 0 AND run.spent_usd + run.reserved_usd > run.budget_usd THEN 'run_reservation_fits'
    WHEN run.tokens_in < 0 THEN 'run_tokens_in_check'
    WHEN run.tokens_out < 0 THEN 'run_tokens_out_check'
END;

CREATE FUNCTION worker_breaks(worker worker) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN worker.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'worker_phase_check'
    WHEN worker.outcome NOT IN ('success', 'failure', 'canceled') THEN 'worker_outcome_check'
    WHEN (worker.phase = 'done') <> (worker.outcome IS NOT NULL) THEN 'worker_done_has_outcome'
    WHEN (worker.phase = 'done') <> (worker.completed_at IS NOT NULL) THEN 'worker_done_is_completed'
    WHEN worker.started_at < worker.created_at THEN 'worker_starts_after_creation'
    WHEN worker.completed_at < coalesce(worker.started_at, worker.created_at) THEN 'worker_completes_after_start'
    WHEN worker.metadata IS NOT JSON OBJECT THEN 'worker_metadata_check'
    WHEN worker.worker_metadata IS NOT JSON OBJECT THEN 'worker_worker_metadata_check'
    WHEN worker.serves IS NOT JSON ARRAY AND worker.serves <> '"all"' THEN 'worker_serves_check'
    WHEN worker.capabilities IS NOT JSON THEN 'worker_capabilities_check'
    WHEN worker.max_concurrent_tasks <= 0 THEN 'worker_max_concurrent_tasks_check'
    WHEN worker.lease_seconds <= 0 THEN 'worker_lease_seconds_check'
    WHEN worker.run_id IS NOT NULL AND worker.phase = 'done' THEN 'worker_done_has_no_run'
END;

ALTER TABLE run
    DROP CONSTRAINT run_phase_check, DROP CONSTRAINT run_outcome_check, DROP CONSTRAINT run_done_has_outcome,
    DROP CONSTRAINT run_done_is_completed, DROP CONSTRAINT run_starts_after_creation, DROP CONSTRAINT run_completes_after_start,
    DROP CONSTRAINT run_metadata_check, DROP CONSTRAINT run_policy_check, DROP CONSTRAINT run_final_task_check,
    DROP CONSTRAINT run_tags_check, DROP CONSTRAINT run_depth_check, DROP CONSTRAINT run_depth_follows_parent,
    DROP CONSTRAINT run_worker_count_check, DROP CONSTRAINT run_missing_tasks_check, DROP CONSTRAINT run_retries_in_bounds,
    DROP CONSTRAINT run_budget_usd_check, DROP CONSTRAINT run_spent_usd_check, DROP CONSTRAINT run_promised_usd_check,
    DROP CONSTRAINT run_reserved_usd_check, DROP CONSTRAINT run_reservation_fits, DROP CONSTRAINT run_tokens_in_check,
    DROP CONSTRAINT run_tokens_out_check, DROP CONSTRAINT run_tenant_fkey, DROP CONSTRAINT run_machine_id_fkey,
    DROP CONSTRAINT run_parent_run_id_fkey;
ALTER TABLE task
    DROP CONSTRAINT task_phase_check, DROP CONSTRAINT task_outcome_check, DROP CONSTRAINT task_done_has_outcome,
    DROP CONSTRAINT task_done_is_completed, DROP CONSTRAINT task_starts_after_creation, DROP CONSTRAINT task_completes_after_start,
    DROP CONSTRAINT task_metadata_check, DROP CONSTRAINT task_policy_check, DROP CONSTRAINT task_depth_check,
    DROP CONSTRAINT task_depth_follows_parent, DROP CONSTRAINT task_open_dependencies_check, DROP CONSTRAINT task_waits_before_it_runs,
    DROP CONSTRAINT task_runs_when_free, DROP CONSTRAINT task_active_has_attempt, DROP CONSTRAINT task_attempt_is_latest,
    DROP CONSTRAINT task_attempt_has_begun, DROP CONSTRAINT task_worker_is_active, DROP CONSTRAINT task_lost_lease_is_active,
    DROP CONSTRAINT task_epoch_check, DROP CONSTRAINT task_attempt_count_check, DROP CONSTRAINT task_attempts_in_bounds,
    DROP CONSTRAINT task_retries_in_bounds, DROP CONSTRAINT task_reclaims_in_bounds, DROP CONSTRAINT task_budget_usd_check,
    DROP CONSTRAINT task_cost_usd_check, DROP CONSTRAINT task_reserved_usd_check, DROP CONSTRAINT task_reserves_while_active,
    DROP CONSTRAINT task_attempt_cost_usd_check, DROP CONSTRAINT task_tokens_in_check, DROP CONSTRAINT task_tokens_out_check,
    DROP CONSTRAINT task_attempt_tokens_in_check, DROP CONSTRAINT task_attempt_tokens_out_check, DROP CONSTRAINT task_tenant_fkey,
    DROP CONSTRAINT task_machine_id_fkey, DROP CONSTRAINT task_run_id_fkey, DROP CONSTRAINT task_parent_task_id_fkey,
    DROP CONSTRAINT task_lane_id_fkey;
ALTER TABLE worker
    DROP CONSTRAINT worker_phase_check, DROP CONSTRAINT worker_outcome_check, DROP CONSTRAINT worker_done_has_outcome,
    DROP CONSTRAINT worker_done_is_completed, DROP CONSTRAINT worker_starts_after_creation, DROP CONSTRAINT worker_completes_after_start,
    DROP CONSTRAINT worker_metadata_check, DROP CONSTRAINT worker_worker_metadata_check, DROP CONSTRAINT worker_serves_check,
    DROP CONSTRAINT worker_capabilities_check, DROP CONSTRAINT worker_max_concurrent_tasks_check,
    DROP CONSTRAINT worker_lease_seconds_check, DROP CONSTRAINT worker_done_has_no_run, DROP CONSTRAINT worker_tenant_fkey,
    DROP CONSTRAINT worker_machine_id_fkey, DROP CONSTRAINT worker_run_id_fkey, DROP CONSTRAINT worker_only_run_id_fkey;
ALTER TABLE dependency DROP CONSTRAINT dependency_task_id_fkey, DROP CONSTRAINT dependency_depends_on_id_fkey;

-- Creation
--
-- What a row refers to stays for ever. So one look when it is created is enough, without a lock, and one for all tasks that refer to the same.
-- That its machine exists follows from its first state.

CREATE OR REPLACE FUNCTION refuse_beginning(kind text, entity_id text, of_machine integer, state text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM machine WHERE id = of_machine) THEN
        PERFORM refuse_row(kind, entity_id, kind || '_machine_id_fkey');
    END IF;
    RAISE EXCEPTION 'pointsman: a % is created once, in the initial state of a % machine: not % in % of %',
        kind, kind, entity_id, state, (SELECT name || ' ' || version FROM machine WHERE id = of_machine);
END $$;

CREATE FUNCTION run_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT run.tenant, 'run', run.id, 0, run.id, run.machine_id, NULL, run.state, 'create',
           CASE WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN (SELECT true FROM tenant AS other WHERE other.id = run.tenant) IS NULL
                THEN refuse_row('run', run.id, 'run_tenant_fkey')
                WHEN run.parent_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = run.parent_run_id) IS NULL
                THEN refuse_row('run', run.id, 'run_parent_run_id_fkey')
                ELSE coalesce((SELECT 'info' FROM state
                                WHERE state.machine_id = run.machine_id AND state.name = run.state AND state.initial
                                  AND state.kind = 'run' AND state.phase = run.phase
                                  AND state.outcome IS NOT DISTINCT FROM run.outcome AND run.revision = 0),
                              refuse_beginning('run', run.id, run.machine_id, run.state)) END,
           run.reason, run.actor, run.metadata, run.created_at, NULL
      FROM new_rows AS run;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    ended text;
BEGIN
    -- The lock keeps the runs from succeeding before this transaction ends. The engine holds a stronger one already.
    SELECT max(id) FILTER (WHERE outcome = 'success') INTO ended
      FROM (SELECT id, outcome FROM run WHERE id = ANY(ARRAY(SELECT DISTINCT run_id FROM new_rows)) ORDER BY id FOR SHARE) AS locked;
    IF ended IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run that has succeeded gets no more tasks, and % has', ended;
    END IF;
    PERFORM refuse_row('task', task.id,
                       CASE WHEN (SELECT true FROM tenant AS other WHERE other.id = task.tenant) IS NULL THEN 'task_tenant_fkey'
                            WHEN (SELECT true FROM run AS other WHERE other.id = task.run_id) IS NULL THEN 'task_run_id_fkey'
                            WHEN (SELECT true FROM lane AS other WHERE other.id = task.lane_id) IS NULL THEN 'task_lane_id_fkey'
                            WHEN task.parent_task_id IS NOT NULL
                                 AND (SELECT true FROM task AS other WHERE other.id = task.parent_task_id) IS NULL THEN 'task_parent_task_id_fkey'
                       END)
       FROM (SELECT DISTINCT ON (tenant, run_id, lane_id, parent_task_id) tenant, run_id, lane_id, parent_task_id, id FROM new_rows) AS task;
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT task.tenant, 'task', task.id, 0, task.run_id, task.machine_id, NULL, task.state, 'create',
           CASE WHEN refuse_row('task', task.id, task_breaks(ROW(task.*)::task)) IS NOT NULL THEN NULL
                ELSE coalesce((SELECT 'info' FROM state
                                WHERE state.machine_id = task.machine_id AND state.name = task.state AND state.initial
                                  AND state.kind = 'task' AND state.phase = task.phase
                                  AND state.outcome IS NOT DISTINCT FROM task.outcome AND task.revision = 0
                                  AND task.epoch = 0 AND task.attempt_worker_id IS NULL),
                              refuse_beginning('task', task.id, task.machine_id, task.state)) END,
           task.reason, task.actor, task.metadata, task.created_at, NULL
      FROM new_rows AS task;
    RETURN NULL;
END $$;

CREATE FUNCTION worker_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT worker.tenant, 'worker', worker.id, 0, worker.run_id, worker.machine_id, NULL, worker.state, 'create',
           CASE WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN (SELECT true FROM tenant AS other WHERE other.id = worker.tenant) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_tenant_fkey')
                WHEN worker.run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')
                WHEN worker.only_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.only_run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_only_run_id_fkey')
                ELSE coalesce((SELECT 'info' FROM state
                                WHERE state.machine_id = worker.machine_id AND state.name = worker.state AND state.initial
                                  AND state.kind = 'worker' AND state.phase = worker.phase
                                  AND state.outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = 0),
                              refuse_beginning('worker', worker.id, worker.machine_id, worker.state)) END,
           worker.reason, worker.actor, worker.metadata, worker.created_at, NULL
      FROM new_rows AS worker;
    RETURN NULL;
END $$;

DROP TRIGGER run_begins ON run;
DROP TRIGGER worker_begins ON worker;
CREATE TRIGGER run_begins AFTER INSERT ON run REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION run_begins();
CREATE TRIGGER worker_begins AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION worker_begins();

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE OR REPLACE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM CASE WHEN task.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_task_id_fkey')
                 WHEN other.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_depends_on_id_fkey')
                 ELSE refuse_change('a task gets its dependencies when it is created, and counts those that are open') END
       FROM new_rows
       LEFT JOIN task ON task.id = new_rows.task_id
       LEFT JOIN task AS other ON other.id = new_rows.depends_on_id
      WHERE task.id IS NULL OR other.id IS NULL OR task.revision > 0
         OR (task.open_dependencies = 0 AND other.outcome IS DISTINCT FROM 'success');
    RETURN NULL;
END $$;

-- Moves
--
-- The condition goes through all rows of the statement: it refuses those that break a rule, and leaves those that move.
--
-- It asks other tables by scalar subqueries, which probe an index. For EXISTS the planner may hash a whole table, and a join cannot be nested
-- here, because old and new rows must not be.

CREATE FUNCTION run_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT run.tenant, 'run', run.id, run.revision, run.id, run.machine_id, was.state, run.state, run.trigger,
           coalesce((SELECT CASE WHEN (run.outcome = 'success' OR rule.needs_dependencies)
                              AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
                             THEN refuse_change(format('a run is validated and succeeds only when all of its tasks have succeeded, '
                                                       'and %s has others', run.id))
                             ELSE rule.severity END FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                        AND rule.trigger = run.trigger AND rule.to_phase = run.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM run.outcome AND run.revision = was.revision + 1),
                    refuse_move(run.id, was.machine_id, was.state, run.state, run.trigger)),
           run.reason, run.actor, run.metadata, run.entered_at,
           extract(epoch FROM run.entered_at - was.entered_at)::double precision
      FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
     WHERE CASE WHEN run.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN run.revision <> was.revision THEN 'moves'
                WHEN (run.trigger, run.reason, run.actor, run.metadata, run.entered_at, run.started_at, run.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a run; change its state instead')
                WHEN (run.phase, run.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = run.machine_id AND name = run.state
                             AND phase = run.phase AND outcome IS NOT DISTINCT FROM run.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a run; change its state instead')
                WHEN run.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a run; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    ends   boolean;
    begins boolean;
    unfit  text[];
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT task.tenant, 'task', task.id, task.revision, task.run_id, task.machine_id, was.state, task.state, task.trigger,
           coalesce((SELECT severity FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = task.state
                        AND rule.trigger = task.trigger AND rule.to_phase = task.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM task.outcome AND task.revision = was.revision + 1
                        AND needs_worker = (task.worker_id IS NOT NULL)
                        AND (NOT needs_session OR task.session_id IS NOT NULL)
                        AND (NOT needs_dependencies OR task.open_dependencies = 0)
                        -- A new attempt has the next epoch, and a worker that begins it itself; otherwise both stay.
                        AND task.epoch = was.epoch + (task.current_attempt IS NOT NULL
                                                      AND task.current_attempt IS DISTINCT FROM was.current_attempt)::integer
                        AND (task.worker_id IS NULL OR task.worker_id = task.attempt_worker_id)
                        AND CASE WHEN task.epoch = was.epoch THEN task.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id
                                 ELSE task.attempt_worker_id = task.actor END),
                    refuse_move(task.id, was.machine_id, was.state, task.state, task.trigger)),
           task.reason, task.actor, task.metadata, task.entered_at,
           extract(epoch FROM task.entered_at - was.entered_at)::double precision
      FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
     WHERE CASE WHEN task.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('task', task.id, task_breaks(ROW(task.*)::task)) IS NOT NULL THEN NULL
                WHEN was.lease_expired AND NOT task.lease_expired AND task.current_attempt IS NOT DISTINCT FROM was.current_attempt
                THEN refuse_change('an attempt that has lost its lease does not get it back')
                -- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
                WHEN task.open_dependencies = 0 AND was.open_dependencies > 0
                     AND (SELECT true FROM dependency
                           WHERE dependency.task_id = task.id
                             AND (SELECT outcome FROM task AS other WHERE other.id = dependency.depends_on_id) IS DISTINCT FROM 'success'
                           LIMIT 1)
                THEN refuse_change(format('a task waits until all tasks that it depends on have succeeded, and %s depends on others', task.id))
                WHEN task.revision <> was.revision THEN 'moves'
                WHEN (task.trigger, task.reason, task.actor, task.metadata, task.entered_at, task.started_at, task.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a task; change its state instead')
                WHEN (task.phase, task.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = task.machine_id AND name = task.state
                             AND phase = task.phase AND outcome IS NOT DISTINCT FROM task.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a task; change its state instead')
                WHEN task.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a task; change its state instead')
                WHEN (task.epoch, task.current_attempt, task.worker_id, task.attempt_worker_id)
                     IS DISTINCT FROM (was.epoch, was.current_attempt, was.worker_id, was.attempt_worker_id)
                THEN refuse_change('only a move changes the worker, attempt and epoch of a task; change its state instead')
           END = 'moves';
    SELECT EXISTS (SELECT FROM old_rows WHERE current_attempt IS NOT NULL), EXISTS (SELECT FROM new_rows WHERE current_attempt IS NOT NULL)
      INTO ends, begins;
    -- The move that ends an attempt writes its row. If another attempt takes over in the same move, the new row is about that one, and the
    -- old row about the attempt that ends.
    IF ends THEN
        INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error,
                             exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
        SELECT task.id, was.current_attempt, task.tenant, was.attempt_worker_id, was.attempt_started_at,
               greatest(task.entered_at, was.attempt_started_at), task.trigger, was.attempt_resumed,
               CASE WHEN task.current_attempt IS NULL THEN task.session_id ELSE was.session_id END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_cost_usd ELSE was.attempt_cost_usd END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_error ELSE was.attempt_error END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_exit_code ELSE was.attempt_exit_code END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_log_path ELSE was.attempt_log_path END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_tokens_in ELSE was.attempt_tokens_in END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_tokens_out ELSE was.attempt_tokens_out END,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_cost_is_estimated ELSE was.attempt_cost_is_estimated END
          FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
         WHERE was.current_attempt IS NOT NULL AND task.current_attempt IS DISTINCT FROM was.current_attempt;
    END IF;
    -- A worker begins an attempt only if it serves the tenant, has not ended, and has room. Whether an attempt began is looked up only
    -- about a worker that gets none: that join would cost too much for every move.
    IF begins THEN
        unfit := ARRAY(SELECT worker_id FROM (SELECT DISTINCT attempt_worker_id AS worker_id, tenant FROM new_rows
                                               WHERE current_attempt IS NOT NULL) AS holder
                        WHERE (SELECT worker.phase <> 'done'
                                      AND worker.max_concurrent_tasks >= (SELECT count(*) FROM task AS held
                                                                           WHERE held.attempt_worker_id = worker.id
                                                                             AND held.current_attempt IS NOT NULL AND NOT held.lease_expired)
                                 FROM worker
                                WHERE worker.id = holder.worker_id
                                  AND (worker.tenant = holder.tenant OR worker.serves = '"all"' OR worker.serves::jsonb ? holder.tenant)) IS NOT TRUE);
        IF unfit <> '{}' THEN
            PERFORM refuse_change('a worker that has ended gets no task, and no worker gets more than it may hold: ' || task.attempt_worker_id)
               FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
              WHERE task.attempt_worker_id = ANY (unfit) AND task.epoch <> was.epoch;
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION worker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT worker.tenant, 'worker', worker.id, worker.revision, worker.run_id, worker.machine_id, was.state, worker.state, worker.trigger,
           coalesce((SELECT severity FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = worker.state
                        AND rule.trigger = worker.trigger AND rule.to_phase = worker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = was.revision + 1),
                    refuse_move(worker.id, was.machine_id, was.state, worker.state, worker.trigger)),
           worker.reason, worker.actor, worker.metadata, worker.entered_at,
           extract(epoch FROM worker.entered_at - was.entered_at)::double precision
      FROM new_rows AS worker JOIN old_rows AS was ON was.id = worker.id
     WHERE CASE WHEN worker.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.run_id IS NOT NULL AND worker.run_id IS DISTINCT FROM was.run_id
                     AND (SELECT true FROM run WHERE run.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')
                WHEN worker.heartbeat_at <> was.heartbeat_at AND (was.phase = 'done' OR worker.missing)
                THEN refuse_change('only a worker that is alive and not missing has a heartbeat')
                WHEN worker.phase = 'done' AND was.phase <> 'done'
                     AND (SELECT true FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL AND NOT lease_expired LIMIT 1)
                THEN refuse_change(format('a worker ends only when it holds no task, and %s holds some', worker.id))
                WHEN worker.revision <> was.revision THEN 'moves'
                WHEN (worker.trigger, worker.reason, worker.actor, worker.metadata, worker.entered_at, worker.started_at, worker.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a worker; change its state instead')
                WHEN (worker.phase, worker.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = worker.machine_id AND name = worker.state
                             AND phase = worker.phase AND outcome IS NOT DISTINCT FROM worker.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a worker; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

DROP TRIGGER run_moves ON run;
DROP TRIGGER worker_moves ON worker;
CREATE TRIGGER run_moves AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION run_moves();
CREATE TRIGGER worker_moves AFTER UPDATE ON worker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION worker_moves();

-- What these conditions replace

DROP TRIGGER run_succeeds_with_its_tasks ON run;
DROP TRIGGER run_phase_follows_state ON run;
DROP TRIGGER run_changes_by_a_move ON run;
DROP TRIGGER task_phase_follows_state ON task;
DROP TRIGGER task_changes_by_a_move ON task;
DROP TRIGGER task_waits_for_others ON task;
DROP TRIGGER attempt_stays_lost ON task;
DROP TRIGGER attempt_finds_room ON task;
DROP TRIGGER worker_phase_follows_state ON worker;
DROP TRIGGER worker_changes_by_a_move ON worker;
DROP TRIGGER worker_ends_without_tasks ON worker;
DROP TRIGGER worker_is_heard_of_while_it_lives ON worker;
DROP FUNCTION run_succeeds_with_its_tasks(), task_waits_for_others(), attempt_finds_room(), worker_ends_without_tasks();

REVOKE EXECUTE ON FUNCTION run_begins(), worker_begins(), run_moves(), worker_moves() FROM PUBLIC;
