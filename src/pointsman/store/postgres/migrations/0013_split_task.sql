-- A task is stored in two rows: what was asked for (`task_spec`), which never changes, and where it stands (`task_state`), which moves. A move copies
-- its row, and enters the copy into every index. So that row is short, and refers to the task, its run and its parent by number.
--
-- `task` is a view of both, with the columns of the table that it replaces. What is written to it by hand is written to the two tables, under the
-- same law.

DROP VIEW transition, attempt, entity;
ALTER TABLE breaker DROP CONSTRAINT breaker_probe_task_id_fkey;
ALTER TABLE tombstone DROP CONSTRAINT tombstone_task_id_fkey;
DROP FUNCTION task_breaks(task);
ALTER TABLE task RENAME TO former_task;

CREATE SEQUENCE task_number;

CREATE TABLE task_spec (
    number         bigint PRIMARY KEY DEFAULT nextval('task_number'),
    run_number     bigint NOT NULL,
    parent_number  bigint,
    position       integer NOT NULL,
    depth          integer NOT NULL,
    critical       boolean NOT NULL,
    id             text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    parent_task_id text COLLATE "C",
    budget_usd     numeric(14, 6),
    policy         text NOT NULL,
    payload        text NOT NULL
);

-- The order of columns leaves few gaps.
CREATE TABLE task_state (
    number              bigint PRIMARY KEY,
    run_number          bigint NOT NULL,
    parent_number       bigint,
    entered_at          instant NOT NULL,
    created_at          instant NOT NULL,
    started_at          instant,
    completed_at        instant,
    available_at        instant,
    cancel_requested_at instant,
    attempt_started_at  instant, -- these columns are about the current attempt, or else the last one
    tokens_in           bigint NOT NULL DEFAULT 0,
    tokens_out          bigint NOT NULL DEFAULT 0,
    attempt_tokens_in   bigint NOT NULL DEFAULT 0,
    attempt_tokens_out  bigint NOT NULL DEFAULT 0,
    machine_id          integer NOT NULL,
    lane_id             integer NOT NULL,
    priority            integer NOT NULL,
    revision            integer NOT NULL DEFAULT 0,
    open_dependencies   integer NOT NULL,
    epoch               integer NOT NULL,
    current_attempt     integer,
    attempt_count       integer NOT NULL,
    max_attempts        integer,
    retry_count         integer NOT NULL,
    max_retries         integer NOT NULL,
    reclaim_count       integer NOT NULL,
    max_reclaims        integer NOT NULL,
    attempt_exit_code   integer,
    is_gate             boolean NOT NULL,
    review_wanted       boolean NOT NULL,
    has_checks          boolean NOT NULL,
    has_subtasks        boolean NOT NULL,
    allocated           boolean NOT NULL,
    run_open            boolean NOT NULL,
    lease_expired       boolean NOT NULL,
    keep_session        boolean NOT NULL,
    attempt_resumed     boolean NOT NULL,
    cost_is_estimated   boolean NOT NULL DEFAULT false,
    attempt_cost_is_estimated boolean NOT NULL DEFAULT false,
    cost_usd            numeric(14, 6) NOT NULL,
    reserved_usd        numeric(14, 6) NOT NULL,
    attempt_cost_usd    numeric(14, 6) NOT NULL,
    state               text COLLATE "C" NOT NULL,
    phase               text NOT NULL,
    outcome             text,
    trigger             text COLLATE "C" NOT NULL DEFAULT 'create',
    reason              text,
    actor               text,
    metadata            text,
    worker_id           text COLLATE "C",
    attempt_worker_id   text COLLATE "C",
    session_id          text,
    attempt_error       text,
    attempt_log_path    text,
    question            text,
    answer              text,
    comment             text,
    error               text,
    output              text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Claims ask for lanes only, so from now on a lane belongs to the tenant of its tasks. The engine has never done anything else.
DO $$
BEGIN
    IF EXISTS (SELECT FROM former_task AS task LEFT JOIN run ON run.id = task.run_id LEFT JOIN former_task AS parent ON parent.id = task.parent_task_id
                WHERE run.id IS NULL OR (task.parent_task_id IS NOT NULL AND parent.id IS NULL)) THEN
        RAISE EXCEPTION 'pointsman: a task has a run or a parent that does not exist';
    ELSIF EXISTS (SELECT FROM former_task AS task LEFT JOIN lane ON lane.id = task.lane_id WHERE lane.tenant IS DISTINCT FROM task.tenant) THEN
        RAISE EXCEPTION 'pointsman: a task has the lane of another tenant';
    END IF;
END $$;

INSERT INTO task_spec (number, run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id, budget_usd, policy, payload)
SELECT task.number, run.number, parent.number, task.position, task.depth, task.critical, task.id, task.tenant, task.run_id, task.name, task.parent_task_id,
       task.budget_usd, task.policy, task.payload
  FROM former_task AS task JOIN run ON run.id = task.run_id LEFT JOIN former_task AS parent ON parent.id = task.parent_task_id
 ORDER BY task.number;

INSERT INTO task_state (number, run_number, parent_number, entered_at, created_at, started_at, completed_at, available_at, cancel_requested_at,
                        attempt_started_at, tokens_in, tokens_out, attempt_tokens_in, attempt_tokens_out, machine_id, lane_id, priority, revision,
                        open_dependencies, epoch, current_attempt, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims,
                        attempt_exit_code, is_gate, review_wanted, has_checks, has_subtasks, allocated, run_open, lease_expired, keep_session,
                        attempt_resumed, cost_is_estimated, attempt_cost_is_estimated, cost_usd, reserved_usd, attempt_cost_usd, state, phase, outcome,
                        trigger, reason, actor, metadata, worker_id, attempt_worker_id, session_id, attempt_error, attempt_log_path, question, answer,
                        comment, error, output)
SELECT task.number, spec.run_number, spec.parent_number, entered_at, created_at, started_at, completed_at, available_at, cancel_requested_at,
       attempt_started_at, tokens_in, tokens_out, attempt_tokens_in, attempt_tokens_out, machine_id, lane_id, priority, revision,
       open_dependencies, epoch, current_attempt, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims,
       attempt_exit_code, is_gate, review_wanted, has_checks, has_subtasks, allocated, run_open, lease_expired, keep_session,
       attempt_resumed, cost_is_estimated, attempt_cost_is_estimated, cost_usd, reserved_usd, attempt_cost_usd, state, phase, outcome,
       trigger, reason, actor, metadata, worker_id, attempt_worker_id, session_id, attempt_error, attempt_log_path, question, answer,
       comment, error, output
  FROM former_task AS task JOIN task_spec AS spec ON spec.number = task.number
 ORDER BY task.number;

SELECT setval('task_number', last_value, is_called) FROM task_number_seq;
ALTER SEQUENCE task_number OWNED BY task_spec.number;
DROP TABLE former_task;
ALTER SEQUENCE task_number RENAME TO task_number_seq;

ALTER TABLE task_spec ADD CONSTRAINT task_pkey UNIQUE (id), ADD CONSTRAINT task_run_id_name_key UNIQUE (run_id, name);

-- No index but the last one has tasks that have succeeded. Within a lane and a priority, tasks begin in the order of their numbers.
CREATE INDEX task_claimable ON task_state (lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated;
CREATE INDEX task_claimable_of_run ON task_state (run_number, lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate;
CREATE INDEX task_reclaimable ON task_state (lane_id) WHERE lease_expired;
CREATE INDEX task_held ON task_state (attempt_worker_id) WHERE current_attempt IS NOT NULL;
CREATE INDEX task_unfinished ON task_state (run_number, phase) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX task_of_parent ON task_state (parent_number, outcome) WHERE parent_number IS NOT NULL;

ALTER TABLE breaker ADD CONSTRAINT breaker_probe_task_id_fkey FOREIGN KEY (probe_task_id) REFERENCES task_spec (id);
ALTER TABLE tombstone ADD CONSTRAINT tombstone_task_id_fkey FOREIGN KEY (task_id) REFERENCES task_spec (id);

-- The views

CREATE VIEW task AS
SELECT spec.id, spec.tenant, state.machine_id, state.state, state.phase, state.outcome, state.revision, state.trigger, state.reason, state.actor,
       state.metadata, state.entered_at, state.created_at, state.started_at, state.completed_at, spec.run_id, spec.parent_task_id, spec.depth,
       spec.position, spec.name, state.lane_id, state.priority, state.is_gate, spec.critical, state.review_wanted, state.has_checks,
       state.has_subtasks, state.allocated, state.run_open, state.open_dependencies, state.available_at, state.epoch, state.current_attempt,
       state.worker_id, state.lease_expired, state.attempt_count, state.max_attempts, state.retry_count, state.max_retries, state.reclaim_count,
       state.max_reclaims, spec.policy, spec.budget_usd, state.cost_usd, state.reserved_usd, state.session_id, state.keep_session,
       state.attempt_worker_id, state.attempt_started_at, state.attempt_resumed, state.attempt_cost_usd, state.attempt_error,
       state.attempt_exit_code, state.attempt_log_path, state.question, state.answer, state.comment, state.error, state.cancel_requested_at,
       spec.payload, state.output, state.tokens_in, state.tokens_out, state.cost_is_estimated, state.attempt_tokens_in, state.attempt_tokens_out,
       state.attempt_cost_is_estimated, state.number, state.run_number, state.parent_number
  FROM task_state AS state JOIN task_spec AS spec ON spec.number = state.number;

-- What an INSERT by hand leaves out.
ALTER VIEW task ALTER COLUMN revision SET DEFAULT 0, ALTER COLUMN trigger SET DEFAULT 'create', ALTER COLUMN tokens_in SET DEFAULT 0,
    ALTER COLUMN tokens_out SET DEFAULT 0, ALTER COLUMN cost_is_estimated SET DEFAULT false, ALTER COLUMN attempt_tokens_in SET DEFAULT 0,
    ALTER COLUMN attempt_tokens_out SET DEFAULT 0, ALTER COLUMN attempt_cost_is_estimated SET DEFAULT false;

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       (ARRAY['run', 'task', 'worker', 'breaker'])[trail.kind + 1] AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS DISTINCT FROM '' THEN trail.metadata
            WHEN trail.revision = 0 THEN creation_metadata(task.run_id, task.critical, created.max_retries)
            ELSE claim_metadata(trail.actor, trail.epoch + (trail.started_at IS NOT NULL)::integer) END COLLATE "default" AS metadata,
       trail.at, extract(epoch FROM trail.at - prior.at)::double precision AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task_spec AS task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN task_state AS created ON created.number = CASE WHEN trail.kind = 1 AND trail.revision = 0 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial
       AND beginning.machine_id = coalesce(created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       greatest(trail.at, trail.started_at) AS ended_at, rule.trigger COLLATE "default" AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0)::numeric(14, 6) AS cost_usd, trail.session_id, coalesce(trail.resumed, false) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, false) AS cost_is_estimated
  FROM task_spec AS task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

CREATE TRIGGER transition_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON transition
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes the audit trail');
CREATE TRIGGER attempt_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes attempts');

-- The law

-- A row that moves has no id, only a number. The id is looked up when the row is refused, and not before.
CREATE OR REPLACE FUNCTION refuse_row(kind text, entity_id text, rule text) RETURNS text LANGUAGE plpgsql STRICT SET search_path FROM CURRENT AS $$
DECLARE
    called text := coalesce((SELECT id FROM task_spec WHERE number = CASE WHEN entity_id ~ '^#-?[0-9]{1,18}$' THEN substr(entity_id, 2)::bigint END),
                            entity_id);
BEGIN
    IF rule LIKE '%\_fkey' THEN
        RAISE EXCEPTION 'pointsman: % % refers to a row that does not exist: it breaks the rule "%"', kind, called, rule
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = rule, TABLE = kind;
    END IF;
    RAISE EXCEPTION 'pointsman: % % breaks the rule "%"', kind, called, rule
        USING ERRCODE = 'check_violation', CONSTRAINT = rule, TABLE = kind;
END $$;

CREATE FUNCTION task_id(of_number bigint) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT
RETURN (SELECT id FROM task_spec WHERE number = of_number);

-- The first rule that a task breaks by where it stands, or null.
CREATE FUNCTION task_breaks(task task_state) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'task_phase_check'
    WHEN task.outcome NOT IN ('success', 'failure', 'canceled') THEN 'task_outcome_check'
    WHEN (task.phase = 'done') <> (task.outcome IS NOT NULL) THEN 'task_done_has_outcome'
    WHEN (task.phase = 'done') <> (task.completed_at IS NOT NULL) THEN 'task_done_is_completed'
    WHEN task.started_at < task.created_at THEN 'task_starts_after_creation'
    WHEN task.completed_at < coalesce(task.started_at, task.created_at) THEN 'task_completes_after_start'
    WHEN task.metadata IS NOT JSON OBJECT THEN 'task_metadata_check'
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
    WHEN task.cost_usd < 0 THEN 'task_cost_usd_check'
    WHEN task.reserved_usd < 0 THEN 'task_reserved_usd_check'
    WHEN task.reserved_usd <> 0 AND task.phase <> 'active' THEN 'task_reserves_while_active'
    WHEN task.attempt_cost_usd < 0 THEN 'task_attempt_cost_usd_check'
    WHEN task.tokens_in < 0 THEN 'task_tokens_in_check'
    WHEN task.tokens_out < 0 THEN 'task_tokens_out_check'
    WHEN task.attempt_tokens_in < 0 THEN 'task_attempt_tokens_in_check'
    WHEN task.attempt_tokens_out < 0 THEN 'task_attempt_tokens_out_check'
END;

-- The same by what was asked for.
CREATE FUNCTION task_spec_breaks(task task_spec) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.policy IS NOT JSON THEN 'task_policy_check'
    WHEN task.depth NOT BETWEEN 0 AND 5 THEN 'task_depth_check'
    WHEN (task.depth = 0) <> (task.parent_task_id IS NULL) OR (task.depth = 0) <> (task.parent_number IS NULL) THEN 'task_depth_follows_parent'
    WHEN task.budget_usd < 0 THEN 'task_budget_usd_check'
END;

CREATE FUNCTION task_is_specified() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM refuse_change(format('a task is stored in two rows, and %s has only one', task.id)) FROM new_rows AS task
      WHERE (SELECT true FROM task_state WHERE task_state.number = task.number) IS NULL;
    RETURN NULL;
END $$;

-- What a task refers to is looked up once for all tasks that refer to the same. A lane belongs to the tenant of its tasks: claims ask for lanes only.
CREATE OR REPLACE FUNCTION task_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    ended text;
BEGIN
    -- The lock keeps the runs from succeeding before this transaction ends. The engine holds a stronger one already.
    SELECT max(id) FILTER (WHERE outcome = 'success') INTO ended
      FROM (SELECT id, outcome FROM run WHERE number = ANY(ARRAY(SELECT DISTINCT run_number FROM new_rows)) ORDER BY id FOR SHARE) AS locked;
    IF ended IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run that has succeeded gets no more tasks, and % has', ended;
    END IF;
    PERFORM refuse_row('task', task.id,
                       CASE WHEN (SELECT true FROM tenant AS other WHERE other.id = task.tenant) IS NULL THEN 'task_tenant_fkey'
                            WHEN (SELECT true FROM run AS other WHERE other.id = task.run_id AND other.number = task.run_number) IS NULL
                            THEN 'task_run_id_fkey'
                            WHEN (SELECT true FROM lane AS other WHERE other.id = task.lane_id AND other.tenant = task.tenant) IS NULL
                            THEN 'task_lane_id_fkey'
                            WHEN task.parent_task_id IS NOT NULL
                                 AND (SELECT true FROM task_spec AS other
                                       WHERE other.id = task.parent_task_id AND other.number = task.parent_number) IS NULL
                            THEN 'task_parent_task_id_fkey'
                       END)
       FROM (SELECT DISTINCT ON (spec.run_number, spec.parent_number, task.lane_id, spec.tenant, spec.run_id, spec.parent_task_id) spec.*, task.lane_id
               FROM new_rows AS task JOIN task_spec AS spec ON spec.number = task.number) AS task;
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT task.created_at, task.number, 1,
           CASE WHEN refuse_row('task', spec.id, task_breaks(ROW(task.*)::task_state)) IS NOT NULL THEN NULL
                WHEN refuse_row('task', spec.id, task_spec_breaks(ROW(spec.*)::task_spec)) IS NOT NULL THEN NULL
                WHEN spec.run_number IS DISTINCT FROM task.run_number OR spec.parent_number IS DISTINCT FROM task.parent_number
                THEN refuse_change('the two rows of a task have the same number, run and parent')::integer
                WHEN task.number > (SELECT coalesce(pg_sequence_last_value('task_number_seq'), 0)) THEN refuse_number('task')::integer
                WHEN spec.id ~ '^(run|j|worker|breaker)_' THEN refuse_id('task', spec.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = task.machine_id AND state.initial AND state.kind = 'task'
                                  AND task.epoch = 0 AND task.attempt_worker_id IS NULL
                                  AND (task.revision = 1
                                       OR (task.revision = 0 AND state.name = task.state AND state.phase = task.phase
                                           AND state.outcome IS NOT DISTINCT FROM task.outcome))),
                              refuse_beginning('task', spec.id, task.machine_id, task.state)::integer) END,
           task.reason, task.actor,
           CASE WHEN task.revision = 1 OR task.metadata = creation_metadata(spec.run_id, spec.critical, task.max_retries) THEN ''
                ELSE task.metadata END
      FROM new_rows AS task LEFT JOIN task_spec AS spec ON spec.number = task.number;
    -- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT task.entered_at, task.number, 1, 1,
           coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                      WHERE rule.machine_id = task.machine_id AND state.initial AND rule.to_state = task.state AND rule.trigger = task.trigger
                        AND rule.to_phase = task.phase AND rule.to_phase IN ('held', 'queued') AND NOT rule.needs_worker
                        AND (NOT rule.needs_session OR task.session_id IS NOT NULL) AND task.open_dependencies = 0
                        AND task.entered_at = task.created_at),
                    refuse_beginning('task', task_id(task.number), task.machine_id, task.state)::integer),
           task.reason, task.actor, task.metadata
      FROM new_rows AS task
     WHERE task.revision = 1;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    unfit text[];
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata, epoch, worker_id, started_at, resumed, session_id, cost_usd,
                       error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    SELECT task.entered_at, task.number, 1, task.revision,
           coalesce((SELECT rule.id FROM rule
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
                    refuse_move(task_id(task.number), was.machine_id, was.state, task.state, task.trigger)::integer),
           task.reason, task.actor, CASE WHEN task.epoch <> was.epoch AND task.metadata = claim_metadata(task.actor, task.epoch) THEN '' ELSE task.metadata END,
           CASE WHEN ends THEN was.epoch WHEN task.epoch <> was.epoch THEN task.epoch END,
           CASE WHEN ends THEN nullif(was.attempt_worker_id, task.actor) END,
           CASE WHEN ends THEN was.attempt_started_at END,
           CASE WHEN ends THEN nullif(was.attempt_resumed, false) END,
           CASE WHEN hands_over THEN was.session_id WHEN ends THEN task.session_id END,
           nullif(CASE WHEN hands_over THEN was.attempt_cost_usd WHEN ends THEN task.attempt_cost_usd END, 0),
           CASE WHEN hands_over THEN was.attempt_error WHEN ends THEN task.attempt_error END,
           CASE WHEN hands_over THEN was.attempt_exit_code WHEN ends THEN task.attempt_exit_code END,
           CASE WHEN hands_over THEN was.attempt_log_path WHEN ends THEN task.attempt_log_path END,
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_in WHEN ends THEN task.attempt_tokens_in END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_out WHEN ends THEN task.attempt_tokens_out END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_cost_is_estimated WHEN ends THEN task.attempt_cost_is_estimated END, false)
      FROM new_rows AS task JOIN old_rows AS was ON was.number = task.number
     CROSS JOIN LATERAL (SELECT was.current_attempt IS NOT NULL AND task.current_attempt IS DISTINCT FROM was.current_attempt AS ends,
                                was.current_attempt IS NOT NULL AND task.current_attempt <> was.current_attempt AS hands_over) AS attempt
     WHERE CASE WHEN task.number <> was.number THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('task', '#' || task.number, task_breaks(ROW(task.*)::task_state)) IS NOT NULL THEN NULL
                WHEN was.lease_expired AND NOT task.lease_expired AND task.current_attempt IS NOT DISTINCT FROM was.current_attempt
                THEN refuse_change('an attempt that has lost its lease does not get it back')
                -- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
                WHEN task.open_dependencies = 0 AND was.open_dependencies > 0
                     AND (SELECT true FROM dependency
                           WHERE dependency.task_id = (SELECT id FROM task_spec AS spec WHERE spec.number = task.number)
                             AND (SELECT outcome FROM task_state WHERE number = (SELECT number FROM task_spec WHERE id = dependency.depends_on_id))
                                 IS DISTINCT FROM 'success'
                           LIMIT 1)
                THEN refuse_change(format('a task waits until all tasks that it depends on have succeeded, and %s depends on others',
                                          task_id(task.number)))
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
    -- A worker begins an attempt only if it serves the tenant, has not ended, and has room. Whether an attempt began is looked up only
    -- about a worker that gets none: that join would cost too much for every move.
    IF EXISTS (SELECT FROM new_rows WHERE current_attempt IS NOT NULL) THEN
        unfit := ARRAY(SELECT worker_id FROM (SELECT DISTINCT attempt_worker_id AS worker_id, lane_id FROM new_rows
                                               WHERE current_attempt IS NOT NULL) AS holder
                        WHERE (SELECT worker.phase <> 'done'
                                      AND worker.max_concurrent_tasks >= (SELECT count(*) FROM task_state AS held
                                                                           WHERE held.attempt_worker_id = worker.id
                                                                             AND held.current_attempt IS NOT NULL AND NOT held.lease_expired)
                                      AND (worker.serves = '"all"'
                                           OR (SELECT lane.tenant = worker.tenant OR worker.serves::jsonb ? lane.tenant
                                                 FROM lane WHERE lane.id = holder.lane_id))
                                 FROM worker WHERE worker.id = holder.worker_id) IS NOT TRUE);
        IF unfit <> '{}' THEN
            PERFORM refuse_change('a worker that has ended gets no task, and no worker gets more than it may hold: ' || task.attempt_worker_id)
               FROM new_rows AS task JOIN old_rows AS was ON was.number = task.number
              WHERE task.attempt_worker_id = ANY (unfit) AND task.epoch <> was.epoch;
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER task_is_specified AFTER INSERT ON task_spec REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION task_is_specified();
CREATE TRIGGER task_keeps_its_spec BEFORE UPDATE ON task_spec
    EXECUTE FUNCTION forbid('a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
CREATE TRIGGER task_spec_is_not_deleted BEFORE DELETE OR TRUNCATE ON task_spec EXECUTE FUNCTION forbid('a task cannot be deleted');
CREATE TRIGGER task_begins AFTER INSERT ON task_state REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION task_begins();
CREATE TRIGGER task_moves AFTER UPDATE ON task_state REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION task_moves();
CREATE TRIGGER task_is_not_deleted BEFORE DELETE OR TRUNCATE ON task_state EXECUTE FUNCTION forbid('a task cannot be deleted');
CREATE TRIGGER task_keeps_its_number BEFORE UPDATE OF number ON task_state EXECUTE FUNCTION forbid('a task keeps its number');
CREATE TRIGGER task_keeps_what_it_began_with
    BEFORE UPDATE OF run_number, parent_number, created_at, machine_id, lane_id, priority, is_gate, review_wanted, has_checks, allocated, max_attempts,
                     max_retries, max_reclaims ON task_state FOR EACH ROW
    WHEN ((new.run_number, new.parent_number, new.created_at, new.machine_id, new.lane_id, new.priority, new.is_gate, new.review_wanted,
           new.has_checks, new.allocated, new.max_attempts, new.max_retries, new.max_reclaims)
          IS DISTINCT FROM
          (old.run_number, old.parent_number, old.created_at, old.machine_id, old.lane_id, old.priority, old.is_gate, old.review_wanted,
           old.has_checks, old.allocated, old.max_attempts, old.max_retries, old.max_reclaims))
    EXECUTE FUNCTION forbid('a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');

-- Moves by hand. What follows from the new state is set before the row is stored, and then it is a move like any other.

CREATE OR REPLACE FUNCTION moved_by_hand() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    SELECT * INTO track FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
     ORDER BY trigger LIMIT 1;
    IF NOT FOUND THEN
        PERFORM refuse_move(old.id, old.machine_id, old.state, new.state, 'by hand');
    END IF;
    new.phase := track.to_phase;
    new.outcome := track.to_outcome;
    new.revision := old.revision + 1;
    new.trigger := track.trigger;
    new.reason := CASE WHEN new.reason IS DISTINCT FROM old.reason THEN new.reason END;
    new.actor := 'sql';
    new.metadata := NULL;
    new.entered_at := greatest(old.entered_at, clock_timestamp());
    new.started_at := CASE WHEN new.phase = 'active' THEN coalesce(old.started_at, new.entered_at) ELSE old.started_at END;
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    IF TG_TABLE_NAME = 'worker' AND new.phase = 'done' THEN
        new.run_id := NULL;
    ELSIF TG_TABLE_NAME = 'breaker' THEN
        new.probe_task_id := NULL;
    END IF;
    RETURN new;
END $$;

-- No hand-typed change begins an attempt: nothing would run.
CREATE FUNCTION task_moved_by_hand() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    SELECT * INTO track FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
       AND NOT needs_worker AND to_phase <> 'active'
       AND (NOT needs_session OR new.session_id IS NOT NULL) AND (NOT needs_dependencies OR new.open_dependencies = 0)
     ORDER BY trigger LIMIT 1;
    IF NOT FOUND THEN
        PERFORM refuse_move(task_id(old.number), old.machine_id, old.state, new.state, 'by hand');
    END IF;
    new.phase := track.to_phase;
    new.outcome := track.to_outcome;
    new.revision := old.revision + 1;
    new.trigger := track.trigger;
    new.reason := CASE WHEN new.reason IS DISTINCT FROM old.reason THEN new.reason END;
    new.actor := 'sql';
    new.metadata := NULL;
    new.entered_at := greatest(old.entered_at, clock_timestamp());
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    new.current_attempt := NULL;
    new.worker_id := NULL;
    new.lease_expired := false;
    new.reserved_usd := 0;
    new.available_at := NULL;
    RETURN new;
END $$;

CREATE TRIGGER task_moved_by_hand BEFORE UPDATE OF state ON task_state FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION task_moved_by_hand();

-- What is written to the view by hand goes to the two tables. Only the columns that the statement has changed are written, and only if no other
-- transaction has changed these since it found the row.
CREATE FUNCTION task_written_by_hand() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    wanted  jsonb;
    columns text;
    written integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        new.number := coalesce(new.number, nextval('task_number_seq'));
        new.run_number := coalesce((SELECT number FROM run WHERE id = new.run_id), 0); -- the law says that there is no such run
        new.parent_number := (SELECT number FROM task_spec WHERE id = new.parent_task_id);
        WITH spec AS (INSERT INTO task_spec SELECT * FROM jsonb_populate_record(NULL::task_spec, to_jsonb(new)))
        INSERT INTO task_state SELECT * FROM jsonb_populate_record(NULL::task_state, to_jsonb(new));
        RETURN new;
    END IF;
    IF new.number IS DISTINCT FROM old.number THEN
        RAISE EXCEPTION 'pointsman: a task keeps its number';
    END IF;
    wanted := (SELECT jsonb_object_agg(change.key, change.value) FROM jsonb_each(to_jsonb(new)) AS change
                WHERE change.value IS DISTINCT FROM to_jsonb(old) -> change.key);
    IF to_jsonb(jsonb_populate_record(NULL::task_spec, to_jsonb(old))) ?| ARRAY(SELECT jsonb_object_keys(wanted)) THEN
        RAISE EXCEPTION 'pointsman: a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with';
    END IF;
    columns := (SELECT string_agg(quote_ident(key), ', ') FROM jsonb_object_keys(wanted) AS key);
    IF columns IS NULL THEN
        RETURN new;
    END IF;
    EXECUTE format('UPDATE task_state SET (%1$s) = (SELECT %1$s FROM jsonb_populate_record(NULL::task_state, $1)) '
                   'WHERE number = $3 AND ROW(%1$s) IS NOT DISTINCT FROM (SELECT ROW(%1$s) FROM jsonb_populate_record(NULL::task_state, $2))', columns)
      USING wanted, to_jsonb(old), old.number;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written = 0 THEN
        RAISE EXCEPTION 'pointsman: another transaction has changed % meanwhile; try again', old.id USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER task_written_by_hand INSTEAD OF INSERT OR UPDATE ON task FOR EACH ROW EXECUTE FUNCTION task_written_by_hand();
CREATE TRIGGER task_deleted_by_hand INSTEAD OF DELETE ON task FOR EACH ROW EXECUTE FUNCTION forbid('a task cannot be deleted');

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE OR REPLACE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM CASE WHEN spec.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_task_id_fkey')
                 WHEN other_spec.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_depends_on_id_fkey')
                 ELSE refuse_change('a task gets its dependencies when it is created, and counts those that are open') END
       FROM new_rows
       LEFT JOIN task_spec AS spec ON spec.id = new_rows.task_id
       LEFT JOIN task_state AS task ON task.number = spec.number
       LEFT JOIN task_spec AS other_spec ON other_spec.id = new_rows.depends_on_id
       LEFT JOIN task_state AS other ON other.number = other_spec.number
      WHERE spec.id IS NULL OR other_spec.id IS NULL OR task.revision > 0
         OR (task.open_dependencies = 0 AND other.outcome IS DISTINCT FROM 'success');
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION run_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT run.entered_at, run.number, 0, run.revision,
           coalesce((SELECT CASE WHEN (run.outcome = 'success' OR rule.needs_dependencies)
                              AND (SELECT true FROM task_state WHERE run_number = run.number AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
                             THEN refuse_change(format('a run is validated and succeeds only when all of its tasks have succeeded, '
                                                       'and %s has others', run.id))::integer
                             ELSE rule.id END FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                        AND rule.trigger = run.trigger AND rule.to_phase = run.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM run.outcome AND run.revision = was.revision + 1),
                    refuse_move(run.id, was.machine_id, was.state, run.state, run.trigger)::integer),
           run.reason, run.actor, run.metadata
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

CREATE OR REPLACE FUNCTION worker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, run_id, reason, actor, metadata)
    SELECT worker.entered_at, worker.number, 2, worker.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = worker.state
                        AND rule.trigger = worker.trigger AND rule.to_phase = worker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = was.revision + 1),
                    refuse_move(worker.id, was.machine_id, was.state, worker.state, worker.trigger)::integer),
           worker.run_id, worker.reason, worker.actor, worker.metadata
      FROM new_rows AS worker JOIN old_rows AS was ON was.id = worker.id
     WHERE CASE WHEN worker.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.run_id IS NOT NULL AND worker.run_id IS DISTINCT FROM was.run_id
                     AND (SELECT true FROM run WHERE run.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')
                WHEN worker.heartbeat_at <> was.heartbeat_at AND (was.phase = 'done' OR worker.missing)
                THEN refuse_change('only a worker that is alive and not missing has a heartbeat')
                WHEN worker.phase = 'done' AND was.phase <> 'done'
                     AND (SELECT true FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL AND NOT lease_expired LIMIT 1)
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

-- Sessions plan their statements once: not before there are statistics. Those of empty tables would be worse than none.
DO $$
BEGIN
    IF EXISTS (SELECT FROM task_spec) THEN
        ANALYZE task_spec, task_state;
    END IF;
END $$;

-- A process of the version before asks for the correction of the clock at the beginning of each transaction, and then learns why it cannot go on.

ALTER TABLE clock_correction RENAME TO clock_offset;
CREATE VIEW clock_correction AS
SELECT refuse_former_version() AS id, NULL::integer AS revision, NULL::double precision AS offset_seconds, NULL::instant AS corrected_at;

REVOKE EXECUTE ON FUNCTION task_is_specified(), task_moved_by_hand() FROM PUBLIC;
