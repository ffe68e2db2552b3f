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

-- Narrow lines: the audit trail refers to the entity and to the rule of its machine instead of repeating what they say, and the line that ends
-- an attempt has what is known of it. `transition` and `attempt` are views of the trail, and say the same as the tables that they replace.
--
-- A process of the version before notices with its next transaction, which asks for the time: see `clock` below.

-- Entities and rules get numbers, by which lines refer to them.

ALTER TABLE rule ADD COLUMN id integer GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE run ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE task ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE worker ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE breaker ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;

CREATE TRIGGER run_keeps_its_number BEFORE UPDATE OF number ON run EXECUTE FUNCTION forbid('a run keeps its number');
CREATE TRIGGER task_keeps_its_number BEFORE UPDATE OF number ON task EXECUTE FUNCTION forbid('a task keeps its number');
CREATE TRIGGER worker_keeps_its_number BEFORE UPDATE OF number ON worker EXECUTE FUNCTION forbid('a worker keeps its number');
CREATE TRIGGER breaker_keeps_its_number BEFORE UPDATE OF number ON breaker EXECUTE FUNCTION forbid('a breaker keeps its number');

-- A machine begins in one state.
CREATE UNIQUE INDEX state_of_beginning ON state (machine_id) WHERE initial;

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

-- What most lines would say of a task that begins without dependencies, and of a claim. It follows from the rest.
CREATE FUNCTION creation_metadata(run_id text, critical boolean, max_retries integer) RETURNS text LANGUAGE sql STABLE
RETURN '{"run_id":' || to_json(run_id) || ',"depends_on":[],"critical":' || critical || ',"max_retries":' || max_retries || '}';
CREATE FUNCTION claim_metadata(worker_id text, epoch integer) RETURNS text LANGUAGE sql STABLE
RETURN '{"worker_id":' || to_json(worker_id) || ',"epoch":' || epoch || '}';

-- The audit trail, which is also the event stream. Only the triggers of the law write it. The columns from `started_at` on are about the attempt
-- that the move ends; what is zero or false there is null. The order of columns leaves no gaps.
CREATE TABLE trail (
    position          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                instant NOT NULL,
    number            bigint NOT NULL, -- of the entity
    kind              smallint NOT NULL, -- 0 for a run, 1 for a task, 2 for a worker, 3 for a breaker
    revision          integer NOT NULL,
    rule_id           integer, -- null for the creation, which leads to the initial state
    run_id            text COLLATE "C", -- to which a worker is allocated; a task keeps its run
    reason            text,
    actor             text,
    metadata          text, -- empty for what follows from the rest
    epoch             integer, -- of the attempt that the move ends, or else begins
    started_at        instant,
    worker_id         text COLLATE "C", -- null for the actor
    error             text,
    exit_code         integer,
    cost_usd          numeric(14, 6),
    session_id        text,
    resumed           boolean,
    log_path          text,
    tokens_in         bigint,
    tokens_out        bigint,
    cost_is_estimated boolean
);

-- Conversion
--
-- An attempt ended with the first move after its claim that has the trigger and the instant of its end. A line whose entity, rule or attempt
-- cannot be found was not written by the law: then nothing is converted. Whoever moves a row by hand chooses the metadata, also of a claim:
-- it may be JSON that PostgreSQL stores and cannot take apart.

CREATE TEMPORARY TABLE claimed ON COMMIT DROP AS
SELECT entity_id AS task_id, revision, substring(metadata FROM '"epoch": ?([0-9]{1,9})[,}]')::integer AS epoch
  FROM transition
 WHERE kind = 'task' AND revision > 0 AND metadata ~ '"epoch": ?[0-9]{1,9}[,}]';
CREATE INDEX ON claimed (task_id, revision);

CREATE TEMPORARY TABLE ending ON COMMIT DROP AS
SELECT attempt.*,
       (SELECT min(line.revision)
          FROM transition AS line JOIN state ON state.machine_id = line.machine_id AND state.name = line.from_state
         WHERE line.entity_id = attempt.task_id AND line.trigger = attempt.ended_by AND state.phase = 'active'
           AND greatest(line.at, attempt.started_at) = attempt.ended_at
           AND line.revision > coalesce((SELECT min(claimed.revision) FROM claimed
                                          WHERE claimed.task_id = attempt.task_id AND claimed.epoch = attempt.epoch), 0)) AS revision
  FROM attempt;
CREATE INDEX ON ending (task_id, revision);

INSERT INTO trail (position, at, number, kind, revision, rule_id, run_id, reason, actor, metadata, epoch, worker_id, started_at, resumed,
                   session_id, cost_usd, error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated) OVERRIDING SYSTEM VALUE
SELECT line.position, line.at, entity.number, array_position(ARRAY['run', 'task', 'worker', 'breaker'], line.kind) - 1, line.revision, rule.id,
       CASE line.kind WHEN 'worker' THEN line.run_id END, line.reason, line.actor,
       CASE WHEN line.revision = 0 AND line.metadata = creation_metadata(task.run_id, task.critical, task.max_retries) THEN ''
            WHEN claimed.epoch <> ending.epoch + 1 THEN line.metadata
            WHEN line.metadata = claim_metadata(line.actor, claimed.epoch) THEN ''
            ELSE line.metadata END,
       coalesce(ending.epoch, claimed.epoch),
       nullif(ending.worker_id, line.actor), ending.started_at, nullif(ending.resumed, false), ending.session_id, nullif(ending.cost_usd, 0),
       ending.error, ending.exit_code, ending.log_path, nullif(ending.tokens_in, 0), nullif(ending.tokens_out, 0),
       nullif(ending.cost_is_estimated, false)
  FROM transition AS line
  LEFT JOIN entity ON entity.id = line.entity_id AND entity.kind = line.kind
  LEFT JOIN task ON line.kind = 'task' AND task.id = line.entity_id
  LEFT JOIN rule ON rule.machine_id = line.machine_id AND rule.from_state = line.from_state AND rule.to_state = line.to_state
                AND rule.trigger = line.trigger
  LEFT JOIN claimed ON line.kind = 'task' AND claimed.task_id = line.entity_id AND claimed.revision = line.revision
  LEFT JOIN ending ON ending.task_id = line.entity_id AND ending.revision = line.revision
 ORDER BY line.position;

DO $$
BEGIN
    IF EXISTS (SELECT FROM trail WHERE revision > 0 AND rule_id IS NULL) THEN
        RAISE EXCEPTION 'pointsman: the audit trail has a move for which its machine has no rule';
    ELSIF (SELECT count(started_at) FROM trail) <> (SELECT count(*) FROM attempt) THEN
        RAISE EXCEPTION 'pointsman: an attempt is stored whose end is not in the audit trail';
    END IF;
END $$;

CREATE UNIQUE INDEX trail_of_entity ON trail (number, kind, revision);
SELECT setval('trail_position_seq', last_value, is_called) FROM transition_position_seq;

DROP TABLE transition, attempt;

-- The views. Their columns have the types of those that they replace: otherwise PostgreSQL refuses the statements that readers have prepared.

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       (ARRAY['run', 'task', 'worker', 'breaker'])[trail.kind + 1] AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS DISTINCT FROM '' THEN trail.metadata
            WHEN trail.revision = 0 THEN creation_metadata(task.run_id, task.critical, task.max_retries)
            ELSE claim_metadata(trail.actor, trail.epoch + (trail.started_at IS NOT NULL)::integer) END COLLATE "default" AS metadata,
       trail.at, extract(epoch FROM trail.at - prior.at)::double precision AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial
       AND beginning.machine_id = coalesce(task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       greatest(trail.at, trail.started_at) AS ended_at, rule.trigger COLLATE "default" AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0)::numeric(14, 6) AS cost_usd, trail.session_id, coalesce(trail.resumed, false) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, false) AS cost_is_estimated
  FROM task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

-- The time. A process of the version before reads `clock` at the beginning of each transaction, and then learns why it cannot go on. It has
-- prepared that, so the columns have the types that they had.

ALTER TABLE clock RENAME TO clock_correction;
CREATE FUNCTION refuse_former_version() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.';
END $$;
CREATE VIEW clock AS
SELECT refuse_former_version() AS id, NULL::integer AS revision, NULL::double precision AS offset_seconds, NULL::instant AS corrected_at;

-- The law

CREATE TRIGGER trail_goes_on BEFORE INSERT ON trail FOR EACH STATEMENT EXECUTE FUNCTION comes_by_law('the audit trail');
CREATE TRIGGER trail_is_not_changed BEFORE UPDATE ON trail EXECUTE FUNCTION forbid('the audit trail cannot be changed');
CREATE TRIGGER trail_is_not_deleted BEFORE DELETE OR TRUNCATE ON trail EXECUTE FUNCTION forbid('the audit trail cannot be deleted');
CREATE TRIGGER transition_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON transition
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes the audit trail');
CREATE TRIGGER attempt_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes attempts');

-- The key stays the same for the whole transaction, so that it needs one lock. Every session can set pointsman.announced to whatever it
-- likes. So the lock is taken again for each statement, which costs nothing, and a key that is too large does not count.
CREATE OR REPLACE FUNCTION announce_moves() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned  bigint := coalesce(pg_sequence_last_value('trail_position_seq'), 0);
    announced text := current_setting('pointsman.announced', true);
    most_idle interval := '10 seconds';
BEGIN
    IF announced ~ '^[0-9]{1,18}$' THEN
        assigned := least(assigned, announced::bigint);
    END IF;
    -- Another role may hold the key exclusively. A smaller key bounds readers as well, so there is no need to wait.
    WHILE NOT pg_try_advisory_xact_lock_shared(stream_lock() + assigned) LOOP
        IF assigned = 0 THEN
            RAISE EXCEPTION 'pointsman: another session holds the advisory locks of the event stream' USING ERRCODE = 'lock_not_available';
        END IF;
        assigned := assigned - 1;
    END LOOP;
    IF announced IS DISTINCT FROM assigned::text THEN
        -- Readers wait for this transaction, so it must not be left open, at an SQL prompt or by a process that has stopped.
        IF current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 microsecond' AND most_idle THEN
            PERFORM set_config('idle_in_transaction_session_timeout', extract(milliseconds FROM most_idle)::integer::text, true);
        END IF;
        PERFORM set_config('pointsman.announced', assigned::text, true);
    END IF;
END $$;

-- The last settled position. Call this before the snapshot in which the stream is read. A transaction that is not writing yet when the locks
-- are read will be assigned positions after `assigned`, which was read before.
CREATE OR REPLACE FUNCTION stream_end() RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned bigint := (SELECT last_value - (NOT is_called)::integer FROM trail_position_seq);
BEGIN
    RETURN (WITH held AS MATERIALIZED (
                SELECT * FROM pg_locks
                 WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND granted)
            SELECT least(assigned, min(((classid::bigint & 65535) << 32) + objid::bigint))
              FROM held
             WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = stream_lock() >> 48
               AND virtualtransaction IN (SELECT virtualtransaction FROM held
                                           WHERE locktype = 'relation' AND relation = 'trail'::regclass AND mode = 'RowExclusiveLock'));
END $$;

CREATE OR REPLACE FUNCTION continues_the_last_one() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF new.previous <> (SELECT coalesce(max(position), 0) FROM seal)
       OR new.position > (SELECT coalesce(max(position), 0) FROM trail) THEN
        RAISE EXCEPTION 'pointsman: a seal continues the last one, and ends with a transition';
    END IF;
    RETURN new;
END $$;

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

-- A number that is still to come would stop the row that is to get it.
CREATE FUNCTION refuse_number(kind text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a new % gets the next number', kind;
END $$;

-- An id tells the kind, so no two entities have the same one. (`j_` begins the ids of runs that are jobs of document 000.)
CREATE FUNCTION refuse_id(kind text, id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: the id of a % does not begin like that of another kind: %', kind, id;
END $$;

CREATE FUNCTION run_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT run.created_at, run.number, 0,
           CASE WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN run.number > (SELECT coalesce(pg_sequence_last_value('run_number_seq'), 0)) THEN refuse_number('run')::integer
                WHEN run.id ~ '^(task|worker|breaker)_' THEN refuse_id('run', run.id)::integer
                WHEN (SELECT true FROM tenant AS other WHERE other.id = run.tenant) IS NULL
                THEN refuse_row('run', run.id, 'run_tenant_fkey')::integer
                WHEN run.parent_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = run.parent_run_id) IS NULL
                THEN refuse_row('run', run.id, 'run_parent_run_id_fkey')::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = run.machine_id AND state.name = run.state AND state.initial
                                  AND state.kind = 'run' AND state.phase = run.phase
                                  AND state.outcome IS NOT DISTINCT FROM run.outcome AND run.revision = 0),
                              refuse_beginning('run', run.id, run.machine_id, run.state)::integer) END,
           run.reason, run.actor, run.metadata
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
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT task.created_at, task.number, 1,
           CASE WHEN refuse_row('task', task.id, task_breaks(ROW(task.*)::task)) IS NOT NULL THEN NULL
                WHEN task.number > (SELECT coalesce(pg_sequence_last_value('task_number_seq'), 0)) THEN refuse_number('task')::integer
                WHEN task.id ~ '^(run|j|worker|breaker)_' THEN refuse_id('task', task.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = task.machine_id AND state.initial AND state.kind = 'task'
                                  AND task.epoch = 0 AND task.attempt_worker_id IS NULL
                                  AND (task.revision = 1
                                       OR (task.revision = 0 AND state.name = task.state AND state.phase = task.phase
                                           AND state.outcome IS NOT DISTINCT FROM task.outcome))),
                              refuse_beginning('task', task.id, task.machine_id, task.state)::integer) END,
           task.reason, task.actor,
           CASE WHEN task.revision = 1 OR task.metadata = creation_metadata(task.run_id, task.critical, task.max_retries) THEN ''
                ELSE task.metadata END
      FROM new_rows AS task;
    -- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT task.entered_at, task.number, 1, 1,
           coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                      WHERE rule.machine_id = task.machine_id AND state.initial AND rule.to_state = task.state AND rule.trigger = task.trigger
                        AND rule.to_phase = task.phase AND rule.to_phase IN ('held', 'queued') AND NOT rule.needs_worker
                        AND (NOT rule.needs_session OR task.session_id IS NOT NULL) AND task.open_dependencies = 0
                        AND task.entered_at = task.created_at),
                    refuse_beginning('task', task.id, task.machine_id, task.state)::integer),
           task.reason, task.actor, task.metadata
      FROM new_rows AS task
     WHERE task.revision = 1;
    RETURN NULL;
END $$;

CREATE FUNCTION worker_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, run_id, reason, actor, metadata)
    SELECT worker.created_at, worker.number, 2,
           CASE WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.number > (SELECT coalesce(pg_sequence_last_value('worker_number_seq'), 0)) THEN refuse_number('worker')::integer
                WHEN worker.id ~ '^(run|j|task|breaker)_' THEN refuse_id('worker', worker.id)::integer
                WHEN (SELECT true FROM tenant AS other WHERE other.id = worker.tenant) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_tenant_fkey')::integer
                WHEN worker.run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')::integer
                WHEN worker.only_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.only_run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_only_run_id_fkey')::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = worker.machine_id AND state.name = worker.state AND state.initial
                                  AND state.kind = 'worker' AND state.phase = worker.phase
                                  AND state.outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = 0),
                              refuse_beginning('worker', worker.id, worker.machine_id, worker.state)::integer) END,
           worker.run_id, worker.reason, worker.actor, worker.metadata
      FROM new_rows AS worker;
    RETURN NULL;
END $$;

CREATE FUNCTION breaker_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT breaker.created_at, breaker.number, 3,
           CASE WHEN breaker.number > (SELECT coalesce(pg_sequence_last_value('breaker_number_seq'), 0)) THEN refuse_number('breaker')::integer
                WHEN breaker.id ~ '^(run|j|task|worker)_' THEN refuse_id('breaker', breaker.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                           WHERE state.machine_id = breaker.machine_id AND state.name = breaker.state AND state.initial
                             AND state.kind = 'breaker' AND state.phase = breaker.phase
                             AND state.outcome IS NOT DISTINCT FROM breaker.outcome AND breaker.revision = 0),
                         refuse_beginning('breaker', breaker.id, breaker.machine_id, breaker.state)::integer) END,
           breaker.reason, breaker.actor, breaker.metadata
      FROM new_rows AS breaker;
    RETURN NULL;
END $$;

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
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT run.entered_at, run.number, 0, run.revision,
           coalesce((SELECT CASE WHEN (run.outcome = 'success' OR rule.needs_dependencies)
                              AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
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
                    refuse_move(task.id, was.machine_id, was.state, task.state, task.trigger)::integer),
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
      FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
     CROSS JOIN LATERAL (SELECT was.current_attempt IS NOT NULL AND task.current_attempt IS DISTINCT FROM was.current_attempt AS ends,
                                was.current_attempt IS NOT NULL AND task.current_attempt <> was.current_attempt AS hands_over) AS attempt
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
    -- A worker begins an attempt only if it serves the tenant, has not ended, and has room. Whether an attempt began is looked up only
    -- about a worker that gets none: that join would cost too much for every move.
    IF EXISTS (SELECT FROM new_rows WHERE current_attempt IS NOT NULL) THEN
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

CREATE FUNCTION breaker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT breaker.entered_at, breaker.number, 3, breaker.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = breaker.state
                        AND rule.trigger = breaker.trigger AND rule.to_phase = breaker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM breaker.outcome AND breaker.revision = was.revision + 1),
                    refuse_move(breaker.id, was.machine_id, was.state, breaker.state, breaker.trigger)::integer),
           breaker.reason, breaker.actor, breaker.metadata
      FROM new_rows AS breaker JOIN old_rows AS was ON was.id = breaker.id
     WHERE breaker.revision <> was.revision;
    RETURN NULL;
END $$;

DROP TRIGGER run_begins ON run;
DROP TRIGGER worker_begins ON worker;
DROP TRIGGER breaker_begins ON breaker;
DROP TRIGGER run_moves ON run;
DROP TRIGGER worker_moves ON worker;
DROP TRIGGER breaker_moves ON breaker;
DROP FUNCTION entity_begins(), entity_moves();
CREATE TRIGGER run_begins AFTER INSERT ON run REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION run_begins();
CREATE TRIGGER worker_begins AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION worker_begins();
CREATE TRIGGER breaker_begins AFTER INSERT ON breaker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION breaker_begins();
CREATE TRIGGER run_moves AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION run_moves();
CREATE TRIGGER worker_moves AFTER UPDATE ON worker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION worker_moves();
CREATE TRIGGER breaker_moves AFTER UPDATE ON breaker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION breaker_moves();

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

REVOKE EXECUTE ON FUNCTION run_begins(), worker_begins(), breaker_begins(), run_moves(), worker_moves(), breaker_moves() FROM PUBLIC;
