-- The law: whatever moves, moves along a rule of its machine, and the row that says so is written by the database itself.
--
-- Whoever knows the law bumps `revision` with each move and says `trigger`, `reason`, `actor`, `metadata` and `entered_at`. A change of
-- `state` alone was typed by hand: when a rule allows it, it is audited all the same, and what follows from the state is put right here,
-- the revision too. That correction moves nothing itself, which is how the triggers tell it: the state stays, and the actor is 'sql'.
-- The messages of RAISE are constant, so that the shells that people have (3.40) can open the file.

-- for each kind
--   run:     run = new.id
--   task:    run = new.run_id
--            needs = AND needs_worker = (new.worker_id IS NOT NULL) AND (needs_session = 0 OR new.session_id IS NOT NULL) AND (needs_dependencies = 0 OR new.open_dependencies = 0)
--            by_hand = AND needs_worker = 0 AND (needs_session = 0 OR new.session_id IS NOT NULL) AND (needs_dependencies = 0 OR new.open_dependencies = 0)
--            clear = , current_attempt = NULL, worker_id = NULL, lease_expired = 0, reserved_usd = 0, available_at = NULL
--   worker:  run = new.run_id
--            clear = , run_id = CASE WHEN to_phase <> 'done' THEN run_id END
--   breaker: run = NULL
--            clear = , probe_task_id = NULL
-- do
CREATE TRIGGER {kind}_begins AFTER INSERT ON {kind} BEGIN
    INSERT INTO transition (tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor,
                            metadata, at, seconds_in_state)
    SELECT new.tenant, '{kind}', new.id, {run}, new.machine_id, NULL, new.state, 'create', 'info', new.reason, new.actor,
           new.metadata, new.created_at, NULL
      FROM state
     WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = '{kind}' AND phase = new.phase
       AND new.revision = 0 AND NOT EXISTS (SELECT 1 FROM transition WHERE entity_id = new.id AND kind = '{kind}');
    SELECT RAISE(ABORT, 'pointsman: a {kind} begins once, in the initial state of a {kind} machine, and nowhere else') WHERE changes() = 0;
END;

CREATE TRIGGER {kind}_moves AFTER UPDATE OF revision ON {kind}
    WHEN new.revision <> old.revision AND (new.state <> old.state OR new.actor IS NOT 'sql') BEGIN
    INSERT INTO transition (tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor,
                            metadata, at, seconds_in_state)
    SELECT new.tenant, '{kind}', new.id, {run}, new.machine_id, old.state, new.state, new.trigger, severity, new.reason, new.actor,
           new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6
      FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
       AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1
       {needs};
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine lets this {kind} move so') WHERE changes() = 0;
END;

CREATE TRIGGER {kind}_moved_by_hand AFTER UPDATE OF state ON {kind}
    WHEN new.state <> old.state AND new.revision = old.revision BEGIN
    INSERT INTO transition (tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor,
                            metadata, at, seconds_in_state)
    SELECT new.tenant, '{kind}', new.id, {run}, new.machine_id, old.state, new.state, trigger, severity,
           CASE WHEN new.reason IS NOT old.reason THEN new.reason END, 'sql', NULL,
           max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
           (max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) - old.entered_at) / 1e6
      FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
       {by_hand}
     ORDER BY trigger LIMIT 1;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine lets this {kind} move so') WHERE changes() = 0;
    UPDATE {kind}
       SET revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.trigger, actor = 'sql', metadata = NULL,
           entered_at = moved.at, reason = moved.reason,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END
           {clear}
      FROM (SELECT trigger, at, reason FROM transition WHERE position = last_insert_rowid()) AS moved,
           (SELECT to_phase, to_outcome, trigger AS cause FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state) AS rule
     WHERE {kind}.id = new.id AND rule.cause = moved.trigger;
END;

CREATE TRIGGER {kind}_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant ON {kind}
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant BEGIN
    SELECT RAISE(ABORT, 'pointsman: a {kind} keeps its id, its machine and its tenant');
END;

CREATE TRIGGER {kind}_phase_follows_state AFTER UPDATE OF phase, outcome ON {kind}
    WHEN (new.revision = old.revision OR (new.state = old.state AND new.actor IS 'sql'))
     AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome) BEGIN
    SELECT RAISE(ABORT, 'pointsman: the phase of a {kind} follows from its state; change the state')
     WHERE NOT EXISTS (SELECT 1 FROM state WHERE machine_id = new.machine_id AND name = new.state
                          AND phase = new.phase AND outcome IS new.outcome);
END;
-- end

-- An attempt whose task was taken from it by hand is over.
CREATE TRIGGER task_lost_by_hand AFTER UPDATE OF current_attempt ON task
    WHEN old.current_attempt IS NOT NULL AND new.current_attempt IS NULL AND new.actor = 'sql' BEGIN
    UPDATE attempt SET ended_at = max(started_at, new.entered_at), ended_by = new.trigger
     WHERE task_id = new.id AND epoch = old.current_attempt AND ended_at IS NULL;
END;

-- Only a move gives a task to a worker, so that only states that need one have one.
CREATE TRIGGER task_gets_its_worker_by_a_move BEFORE UPDATE OF worker_id ON task
    WHEN new.worker_id IS NOT NULL AND new.worker_id IS NOT old.worker_id AND new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task gets its worker by a move, and not otherwise');
END;

-- A run that succeeded has only tasks that did.
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE OF outcome ON run
    WHEN new.outcome = 'success' AND old.outcome IS NOT 'success' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run succeeds only when all of its tasks have')
     WHERE EXISTS (SELECT 1 FROM task WHERE run_id = new.id AND (outcome IS NULL OR outcome <> 'success'));
END;

-- An epoch is spent once, and never given back.
CREATE TRIGGER task_epoch_grows BEFORE UPDATE OF epoch ON task WHEN new.epoch < old.epoch BEGIN
    SELECT RAISE(ABORT, 'pointsman: the epoch of a task only grows');
END;

CREATE TRIGGER attempt_ends_once BEFORE UPDATE ON attempt WHEN old.ended_at IS NOT NULL BEGIN
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

-- What is, is not deleted; and nobody but the law writes the trail: each line goes on where the one before it ended.
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
CREATE TRIGGER transition_goes_on BEFORE INSERT ON transition
    WHEN (SELECT to_state FROM transition WHERE entity_id = new.entity_id ORDER BY position DESC LIMIT 1) IS NOT new.from_state
      OR CASE new.kind WHEN 'task' THEN (SELECT state FROM task WHERE id = new.entity_id)
                       WHEN 'run' THEN (SELECT state FROM run WHERE id = new.entity_id)
                       WHEN 'worker' THEN (SELECT state FROM worker WHERE id = new.entity_id)
                       WHEN 'breaker' THEN (SELECT state FROM breaker WHERE id = new.entity_id) END IS NOT new.to_state
      OR EXISTS (SELECT 1 FROM transition WHERE position = new.position) BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail is written by the law, and by nobody else');
END;
