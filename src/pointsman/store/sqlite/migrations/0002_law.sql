-- The law: whatever moves, moves along a rule of its machine, and the row that says so is written by the database itself.
--
-- Whoever knows the law bumps `revision` with each move and says `trigger`, `reason`, `actor`, `metadata` and `entered_at`. A change of
-- `state` alone was typed by hand: when a rule allows it, it is audited all the same, and what follows from the state is put right here,
-- the revision too. That correction moves nothing itself, which is how the triggers tell it: the state stays, and the actor is 'sql'.
-- The messages of RAISE are constant, so that the shells that people have (3.40) can open the file. Lines are written with VALUES: an
-- INSERT … SELECT into a table that has triggers itself takes the way round a temporary table, for every row.

-- for each kind
--   run:     new_run = new.id
--            its_run = entity.id
--   task:    new_run = new.run_id
--            its_run = entity.run_id
--            needs = AND needs_worker = (new.worker_id IS NOT NULL) AND (needs_session = 0 OR new.session_id IS NOT NULL) AND (needs_dependencies = 0 OR new.open_dependencies = 0) AND new.epoch = old.epoch + (new.current_attempt IS NOT NULL AND new.current_attempt IS NOT old.current_attempt) AND (new.worker_id IS NULL OR new.worker_id IS new.attempt_worker_id) AND (new.attempt_worker_id IS old.attempt_worker_id OR EXISTS (SELECT 1 FROM worker WHERE worker.id = new.attempt_worker_id AND worker.tenant = new.tenant))
--            fresh = AND new.epoch = 0 AND new.attempt_worker_id IS NULL
--            by_hand = AND needs_worker = 0 AND to_phase <> 'active' AND new.epoch = old.epoch AND new.attempt_worker_id IS old.attempt_worker_id AND (needs_session = 0 OR new.session_id IS NOT NULL) AND (needs_dependencies = 0 OR new.open_dependencies = 0)
--            clear = , current_attempt = NULL, worker_id = NULL, lease_expired = 0, reserved_usd = 0, available_at = NULL
--            keeps = , worker_id, attempt_worker_id, current_attempt, epoch
--            kept = OR new.worker_id IS NOT old.worker_id OR new.attempt_worker_id IS NOT old.attempt_worker_id OR new.current_attempt IS NOT old.current_attempt OR new.epoch <> old.epoch
--            identity = , run_id, name
--            identified = OR new.run_id <> old.run_id OR new.name <> old.name
--            taken = OR EXISTS (SELECT 1 FROM task WHERE run_id = new.run_id AND name = new.name)
--   worker:  new_run = new.run_id
--            its_run = entity.run_id
--            clear = , run_id = CASE WHEN to_phase <> 'done' THEN run_id END
--   breaker: new_run = NULL
--            its_run = NULL
--            clear = , probe_task_id = NULL
--            identity = , tool
--            identified = OR new.tool <> old.tool
--            taken = OR EXISTS (SELECT 1 FROM breaker WHERE tenant = new.tenant AND tool = new.tool)
-- do
CREATE TRIGGER {kind}_begins AFTER INSERT ON {kind} BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, '{kind}', new.id, 0, {new_run}, new.machine_id, NULL, new.state, 'create',
            coalesce((SELECT 'info' FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = '{kind}' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 {fresh}),
                     RAISE(ABORT, 'pointsman: a {kind} begins once, in the initial state of a {kind} machine, and nowhere else')),
            new.reason, new.actor, new.metadata, new.created_at, NULL);
END;

CREATE TRIGGER {kind}_moves AFTER UPDATE OF revision ON {kind}
    WHEN new.revision <> old.revision AND (new.state <> old.state OR new.actor IS NOT 'sql') BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, '{kind}', new.id, new.revision, {new_run}, new.machine_id, old.state, new.state, new.trigger,
            coalesce((SELECT severity FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1
                         {needs}),
                     RAISE(ABORT, 'pointsman: no rule of its machine lets this {kind} move so')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

-- Whatever else is changed in what only moves may change. One trigger for all of it, because the engine pays for each, fired or not.
CREATE TRIGGER {kind}_changed_by_hand AFTER UPDATE OF state, phase, outcome, revision{keeps} ON {kind}
    WHEN new.revision = old.revision OR (new.state = old.state AND new.actor IS 'sql') BEGIN
    SELECT RAISE(ABORT, 'pointsman: revision, phase, outcome, worker and epoch of a {kind} follow from its moves; change the state')
     WHERE new.revision <> old.revision
        OR (new.state = old.state AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome {kept}));
    UPDATE {kind}
       SET revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql', metadata = NULL,
           entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END
           {clear}
      FROM (SELECT trigger AS cause, to_phase, to_outcome,
                   max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) AS at
              FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
               {by_hand}
             ORDER BY trigger LIMIT 1) AS moved
     WHERE {kind}.id = new.id AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine lets this {kind} move so') WHERE new.state <> old.state AND changes() = 0;
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT entity.tenant, '{kind}', entity.id, entity.revision, {its_run}, entity.machine_id, old.state, entity.state,
           entity.trigger, severity, entity.reason, 'sql', NULL, entity.entered_at, (entity.entered_at - old.entered_at) / 1e6
      FROM {kind} AS entity JOIN rule
        ON rule.machine_id = entity.machine_id AND from_state = old.state AND to_state = entity.state AND rule.trigger = entity.trigger
     WHERE entity.id = new.id AND new.state <> old.state;
END;

CREATE TRIGGER {kind}_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant{identity} ON {kind}
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant {identified} BEGIN
    SELECT RAISE(ABORT, 'pointsman: a {kind} keeps its id, its machine and its tenant, a task its run and name, a breaker its tool');
END;

-- REPLACE deletes what is in its way, and no trigger hears of that.
CREATE TRIGGER {kind}_is_not_replaced BEFORE INSERT ON {kind}
    WHEN EXISTS (SELECT 1 FROM {kind} WHERE rowid = new.rowid) {taken} BEGIN
    SELECT RAISE(ABORT, 'pointsman: there is such a {kind} already, and it is not replaced');
END;
-- end

-- An attempt that ends is written down, whoever ended it. Where another one takes over in the same move, the task speaks of that one.
-- Only a move that begins an attempt spends an epoch, and each of them one: so every epoch before the last has its attempt.
CREATE TRIGGER attempt_ends AFTER UPDATE OF current_attempt ON task
    WHEN old.current_attempt IS NOT NULL AND new.current_attempt IS NOT old.current_attempt BEGIN
    INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error,
                         exit_code, log_path)
    VALUES (old.id, old.current_attempt, old.tenant, old.attempt_worker_id, old.attempt_started_at,
            max(new.entered_at, old.attempt_started_at), new.trigger, old.attempt_resumed,
            CASE WHEN new.current_attempt IS NULL THEN new.session_id ELSE old.session_id END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_cost_usd ELSE old.attempt_cost_usd END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_error ELSE old.attempt_error END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_exit_code ELSE old.attempt_exit_code END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_log_path ELSE old.attempt_log_path END);
END;

-- A run that succeeded has only tasks that did.
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE OF outcome ON run
    WHEN new.outcome = 'success' AND old.outcome IS NOT 'success' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run succeeds only when all of its tasks have')
     WHERE EXISTS (SELECT 1 FROM task WHERE run_id = new.id AND (outcome IS NULL OR outcome <> 'success'));
END;

CREATE TRIGGER attempt_is_not_changed BEFORE UPDATE ON attempt BEGIN
    SELECT RAISE(ABORT, 'pointsman: an attempt that has ended stays as it is');
END;

-- What was written stays written.
CREATE TRIGGER transition_is_not_changed BEFORE UPDATE ON transition BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail is not changed');
END;
CREATE TRIGGER transition_is_not_deleted BEFORE DELETE ON transition BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail is not deleted');
END;
CREATE TRIGGER machine_is_not_changed BEFORE UPDATE ON machine BEGIN
    SELECT RAISE(ABORT, 'pointsman: a machine is not changed; load a new version');
END;
CREATE TRIGGER machine_is_not_replaced BEFORE INSERT ON machine
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.id OR (name = new.name AND version = new.version)) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a machine is not replaced; load a new version');
END;
CREATE TRIGGER machine_is_not_deleted BEFORE DELETE ON machine BEGIN
    SELECT RAISE(ABORT, 'pointsman: a machine is not deleted');
END;
CREATE TRIGGER state_is_not_changed BEFORE UPDATE ON state BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state is not changed; load a new version of its machine');
END;
CREATE TRIGGER state_is_not_deleted BEFORE DELETE ON state BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state is not deleted; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule is not changed; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_deleted BEFORE DELETE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule is not deleted; load a new version of its machine');
END;

-- Rules are laid before their machine stands; none is added afterwards.
CREATE TRIGGER state_comes_before_its_machine BEFORE INSERT ON state
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: no state is added to a machine; load a new version');
END;
CREATE TRIGGER rule_comes_before_its_machine BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: no rule is added to a machine; load a new version');
END;

-- What is, is not deleted; and nobody but the law writes the trail: every revision up to the last has its line already, and a new one comes
-- with its row.
-- for each kind
--   run:     law = yes
--   task:    law = yes
--   worker:  law = yes
--   breaker: law = yes
-- do
CREATE TRIGGER {kind}_is_not_deleted BEFORE DELETE ON {kind} BEGIN
    SELECT RAISE(ABORT, 'pointsman: a {kind} is not deleted');
END;
-- end
CREATE TRIGGER attempt_is_not_deleted BEFORE DELETE ON attempt BEGIN
    SELECT RAISE(ABORT, 'pointsman: an attempt is not deleted');
END;
CREATE TRIGGER attempt_was_current BEFORE INSERT ON attempt
    WHEN EXISTS (SELECT 1 FROM attempt WHERE task_id = new.task_id AND epoch = new.epoch)
      OR NOT EXISTS (SELECT 1 FROM task WHERE id = new.task_id AND epoch >= new.epoch AND current_attempt IS NOT new.epoch) BEGIN
    SELECT RAISE(ABORT, 'pointsman: attempts are written by the law, and by nobody else');
END;
CREATE TRIGGER transition_goes_on BEFORE INSERT ON transition
    WHEN EXISTS (SELECT 1 FROM transition WHERE entity_id = new.entity_id AND revision = new.revision)
      OR CASE new.kind WHEN 'task' THEN (SELECT revision FROM task WHERE id = new.entity_id)
                       WHEN 'run' THEN (SELECT revision FROM run WHERE id = new.entity_id)
                       WHEN 'worker' THEN (SELECT revision FROM worker WHERE id = new.entity_id)
                       WHEN 'breaker' THEN (SELECT revision FROM breaker WHERE id = new.entity_id) END IS NOT new.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail is written by the law, and by nobody else');
END;
