-- The law: whatever moves, moves along a rule of its machine, and the row that says so is written by the database itself.
--
-- Whoever knows the law bumps `revision` with each move and says `trigger`, `reason`, `actor`, `metadata` and `entered_at`. A change of
-- `state` alone was typed by hand: before it is stored, whatever follows from the state is put right, and then it is a move like others.
--
-- Moves are judged by the statement, not by the row: 100 rows cost one look at the rules. A row-level trigger stands only where its
-- WHEN costs the engine nothing. Every function keeps the search path that it was made with, so that nobody slips another table in.

-- Refuse whatever the trigger that calls it stands for.
CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: %', TG_ARGV[0];
END $$;

-- Refuse a move, and say what would be allowed.
CREATE FUNCTION refuse_move(entity_id text, of_machine integer, before text, after text, cause text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    called  text := (SELECT name || ' ' || version FROM machine WHERE id = of_machine);
    allowed text := (SELECT string_agg(to_state || ' : ' || trigger, ', ') FROM rule WHERE machine_id = of_machine AND from_state = before);
    fits    boolean := EXISTS (SELECT 1 FROM rule
                                WHERE machine_id = of_machine AND from_state = before AND to_state = after
                                  AND cause IN (trigger, 'by hand'));
BEGIN
    RAISE EXCEPTION 'pointsman: no rule of machine % lets % move % -> % : % %', coalesce(called, of_machine::text), entity_id, before,
        after, cause, CASE WHEN fits THEN 'with this phase, outcome, revision, worker, session and open dependencies'
                           ELSE '(allowed: ' || coalesce(allowed, 'nothing') || ')' END;
END $$;

CREATE FUNCTION refuse_beginning(kind text, entity_id text, of_machine integer, state text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a % begins once, in the initial state of a % machine, and nowhere else: not % in % of %',
        kind, kind, entity_id, state, coalesce((SELECT name || ' ' || version FROM machine WHERE id = of_machine), of_machine::text);
END $$;

-- A task's attempt that ends is written down with the move that ends it. Where another attempt takes over in the same move, the task
-- speaks of that one already, and what is known of the ended one is in the row before.
--
-- for each kind
--   run:     run = entity.id
--   task:    run = entity.run_id
--            needs = AND needs_worker = (entity.worker_id IS NOT NULL) AND entity.epoch = was.epoch + (entity.current_attempt IS NOT NULL AND entity.current_attempt IS DISTINCT FROM was.current_attempt)::integer AND (entity.worker_id IS NULL OR entity.worker_id = entity.attempt_worker_id) AND (NOT needs_session OR entity.session_id IS NOT NULL) AND (NOT needs_dependencies OR entity.open_dependencies = 0) AND (entity.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id OR EXISTS (SELECT 1 FROM worker WHERE worker.id = entity.attempt_worker_id AND worker.tenant = entity.tenant))
--            more = , was.current_attempt AS ended, was.attempt_worker_id AS worker_id, was.attempt_started_at AS started_at, was.attempt_resumed AS resumed, CASE WHEN entity.current_attempt IS NULL THEN entity.session_id ELSE was.session_id END AS session_id, CASE WHEN entity.current_attempt IS NULL THEN entity.attempt_cost_usd ELSE was.attempt_cost_usd END AS cost_usd, CASE WHEN entity.current_attempt IS NULL THEN entity.attempt_error ELSE was.attempt_error END AS error, CASE WHEN entity.current_attempt IS NULL THEN entity.attempt_exit_code ELSE was.attempt_exit_code END AS exit_code, CASE WHEN entity.current_attempt IS NULL THEN entity.attempt_log_path ELSE was.attempt_log_path END AS log_path, entity.current_attempt IS DISTINCT FROM was.current_attempt AS lets_go
--            also = , attempts AS (INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error, exit_code, log_path) SELECT id, ended, tenant, worker_id, started_at, greatest(entered_at, started_at), trigger, resumed, session_id, cost_usd, error, exit_code, log_path FROM moved WHERE ended IS NOT NULL AND lets_go)
--            fresh = AND entity.epoch = 0 AND entity.attempt_worker_id IS NULL
--            by_hand = AND NOT needs_worker AND to_phase <> 'active' AND (NOT needs_session OR new.session_id IS NOT NULL) AND (NOT needs_dependencies OR new.open_dependencies = 0)
--            clear = new.current_attempt := NULL; new.worker_id := NULL; new.lease_expired := false; new.reserved_usd := 0; new.available_at := NULL;
--   worker:  run = entity.run_id
--            clear = IF new.phase = 'done' THEN new.run_id := NULL; END IF;
--   breaker: run = NULL
--            clear = new.probe_task_id := NULL;
-- do
CREATE FUNCTION {kind}_begins() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT entity.tenant, '{kind}', entity.id, 0, {run}, entity.machine_id, NULL, entity.state, 'create',
           coalesce((SELECT 'info' FROM state
                      WHERE state.machine_id = entity.machine_id AND state.name = entity.state AND state.initial
                        AND state.kind = '{kind}' AND state.phase = entity.phase
                        AND state.outcome IS NOT DISTINCT FROM entity.outcome AND entity.revision = 0 {fresh}),
                    refuse_beginning('{kind}', entity.id, entity.machine_id, entity.state)),
           entity.reason, entity.actor, entity.metadata, entity.created_at, NULL
      FROM new_rows AS entity;
    RETURN NULL;
END $$;
CREATE TRIGGER {kind}_begins AFTER INSERT ON {kind} REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {kind}_begins();

-- The planner knows nothing of transition tables and keeps the plan of the first batch, which may have had one row: it is told to hash.
CREATE FUNCTION {kind}_moves() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    WITH moved AS MATERIALIZED (
        SELECT entity.tenant, entity.id, entity.revision, {run} AS run_id, entity.machine_id, was.state AS from_state,
               entity.state AS to_state, entity.trigger, entity.reason, entity.actor, entity.metadata, entity.entered_at,
               was.entered_at AS since,
               coalesce((SELECT severity FROM rule
                          WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = entity.state
                            AND rule.trigger = entity.trigger AND rule.to_phase = entity.phase
                            AND rule.to_outcome IS NOT DISTINCT FROM entity.outcome AND entity.revision = was.revision + 1
                            {needs}),
                        refuse_move(entity.id, was.machine_id, was.state, entity.state, entity.trigger)) AS severity
               {more}
          FROM new_rows AS entity JOIN old_rows AS was ON was.id = entity.id
         WHERE entity.revision <> was.revision
    ) {also}
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT tenant, '{kind}', id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor, metadata,
           entered_at, extract(epoch FROM entered_at - since)::double precision
      FROM moved;
    RETURN NULL;
END $$;
CREATE TRIGGER {kind}_moves AFTER UPDATE ON {kind} REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION {kind}_moves();

CREATE FUNCTION {kind}_moved_by_hand() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    SELECT * INTO track FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
       {by_hand}
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
    new.started_at := CASE WHEN new.phase = 'active' THEN coalesce(new.started_at, new.entered_at) ELSE new.started_at END;
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    {clear}
    RETURN new;
END $$;
CREATE TRIGGER {kind}_moved_by_hand BEFORE UPDATE OF state ON {kind} FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION {kind}_moved_by_hand();

CREATE TRIGGER {kind}_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant ON {kind} FOR EACH ROW
    WHEN (new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant)
    EXECUTE FUNCTION forbid('a {kind} keeps its id, its machine and its tenant');

CREATE FUNCTION {kind}_phase_follows_state() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM state WHERE machine_id = new.machine_id AND name = new.state
                      AND phase = new.phase AND outcome IS NOT DISTINCT FROM new.outcome) THEN
        RAISE EXCEPTION 'pointsman: the phase of a {kind} follows from its state; change the state';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER {kind}_phase_follows_state AFTER UPDATE OF phase, outcome ON {kind} FOR EACH ROW
    WHEN (new.revision = old.revision AND (new.phase <> old.phase OR new.outcome IS DISTINCT FROM old.outcome))
    EXECUTE FUNCTION {kind}_phase_follows_state();
-- end

-- Only a move gives a task to a worker, or takes it away: so only states that need one have one, and no attempt ends unseen.
CREATE TRIGGER task_gets_its_worker_by_a_move BEFORE UPDATE OF worker_id, attempt_worker_id, current_attempt ON task FOR EACH ROW
    WHEN (new.revision = old.revision
          AND ((new.worker_id IS DISTINCT FROM old.worker_id AND (new.state = old.state OR new.worker_id IS NOT NULL))
               OR (new.state = old.state AND new.current_attempt IS DISTINCT FROM old.current_attempt)
               OR new.attempt_worker_id IS DISTINCT FROM old.attempt_worker_id))
    EXECUTE FUNCTION forbid('a task gets its worker by a move, and not otherwise');

-- A run that succeeded has only tasks that did.
CREATE FUNCTION run_succeeds_with_its_tasks() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    too_soon text := (
        SELECT run.id FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
         WHERE run.outcome = 'success' AND was.outcome IS DISTINCT FROM 'success'
           AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
         LIMIT 1);
BEGIN
    IF too_soon IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run succeeds only when all of its tasks have, and % has others', too_soon;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION run_succeeds_with_its_tasks();

-- Only a move that begins an attempt spends an epoch, and each of them one: so every epoch before the last has its attempt.
CREATE TRIGGER task_epoch_grows BEFORE UPDATE OF epoch ON task FOR EACH ROW
    WHEN (new.epoch <> old.epoch AND new.revision = old.revision)
    EXECUTE FUNCTION forbid('the epoch of a task grows with the attempts at it, and not otherwise');

CREATE TRIGGER attempt_is_not_changed BEFORE UPDATE ON attempt EXECUTE FUNCTION forbid('an attempt that has ended stays as it is');

-- What was written stays written.
CREATE TRIGGER transition_is_not_changed BEFORE UPDATE ON transition EXECUTE FUNCTION forbid('the audit trail is not changed');
CREATE TRIGGER transition_is_not_deleted BEFORE DELETE OR TRUNCATE ON transition EXECUTE FUNCTION forbid('the audit trail is not deleted');

CREATE TRIGGER machine_is_not_changed BEFORE UPDATE ON machine EXECUTE FUNCTION forbid('a machine is not changed; load a new version');
CREATE TRIGGER machine_is_not_deleted BEFORE DELETE OR TRUNCATE ON machine EXECUTE FUNCTION forbid('a machine is not deleted');
CREATE TRIGGER state_is_not_changed BEFORE UPDATE ON state
    EXECUTE FUNCTION forbid('a state is not changed; load a new version of its machine');
CREATE TRIGGER state_is_not_deleted BEFORE DELETE OR TRUNCATE ON state
    EXECUTE FUNCTION forbid('a state is not deleted; load a new version of its machine');
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule
    EXECUTE FUNCTION forbid('a rule is not changed; load a new version of its machine');
CREATE TRIGGER rule_is_not_deleted BEFORE DELETE OR TRUNCATE ON rule
    EXECUTE FUNCTION forbid('a rule is not deleted; load a new version of its machine');

-- Rules are laid before their machine stands; none is added afterwards.
CREATE FUNCTION comes_before_its_machine() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM new_rows JOIN machine ON machine.id = new_rows.machine_id) THEN
        RAISE EXCEPTION 'pointsman: no % is added to a machine; load a new version', TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER state_comes_before_its_machine AFTER INSERT ON state REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION comes_before_its_machine();
CREATE TRIGGER rule_comes_before_its_machine AFTER INSERT ON rule REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION comes_before_its_machine();

-- What is, is not deleted; and nobody but the law writes the trail.
-- for each kind
--   run:     law = yes
--   task:    law = yes
--   worker:  law = yes
--   breaker: law = yes
-- do
CREATE TRIGGER {kind}_is_not_deleted BEFORE DELETE OR TRUNCATE ON {kind} EXECUTE FUNCTION forbid('a {kind} is not deleted');
-- end
CREATE TRIGGER attempt_is_not_deleted BEFORE DELETE OR TRUNCATE ON attempt EXECUTE FUNCTION forbid('an attempt is not deleted');
CREATE FUNCTION comes_by_law() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        RAISE EXCEPTION 'pointsman: %', TG_ARGV[0];
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER transition_goes_on BEFORE INSERT ON transition FOR EACH STATEMENT
    EXECUTE FUNCTION comes_by_law('the audit trail is written by the law, and by nobody else');
CREATE TRIGGER attempt_was_current BEFORE INSERT ON attempt FOR EACH STATEMENT
    EXECUTE FUNCTION comes_by_law('attempts are written by the law, and by nobody else');
