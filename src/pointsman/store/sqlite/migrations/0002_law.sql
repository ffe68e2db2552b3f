-- The law: an entity moves only along a rule of its machine, and the database itself writes the audit trail.
--
-- A writer that knows the law increments `revision` with each move and sets `trigger`, `reason`, `actor`, `metadata` and `entered_at`.
-- A change of `state` alone was typed by hand. If a rule allows it, the trigger <kind>_changed_by_hand takes it back and repeats it as a
-- move, with everything that follows from the state.
--
-- SQLite has no functions, so the triggers of the four kinds are alike. The messages of RAISE are constant, so that older sqlite3 shells
-- (3.40) can open the file. Rows of `transition` are written with VALUES: INSERT … SELECT into a table that has triggers itself would
-- build a temporary table for every row.

-- Runs

CREATE TRIGGER run_begins AFTER INSERT ON run BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'run', new.id, 0, new.id, new.machine_id, NULL, new.state, 'create',
            coalesce((SELECT 'info' FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'run' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0),
                     RAISE(ABORT, 'pointsman: a run is created once, in the initial state of a run machine')),
            new.reason, new.actor, new.metadata, new.created_at, NULL);
END;

CREATE TRIGGER run_moves AFTER UPDATE OF revision ON run
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'run', new.id, new.revision, new.id, new.machine_id, old.state, new.state, new.trigger,
            coalesce((SELECT severity FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this run to move like this')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

-- Handles every other change of columns that only moves may change. It is one trigger, because the engine pays for each, fired or not.
CREATE TRIGGER run_changed_by_hand AFTER UPDATE OF state, phase, outcome ON run
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase and outcome of a run; change its state instead')
     WHERE new.state = old.state AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome);
    UPDATE run SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE run
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END
      FROM (SELECT trigger AS cause, to_phase, to_outcome,
                   max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) AS at
              FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
             ORDER BY trigger LIMIT 1) AS moved
     WHERE run.id = new.id AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine allows this run to move like this')
     WHERE new.state <> old.state AND changes() = 0;
END;

CREATE TRIGGER run_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant ON run
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its id, machine and tenant');
END;

-- REPLACE deletes the row that it replaces, and no trigger fires for that.
CREATE TRIGGER run_is_not_replaced BEFORE INSERT ON run
    WHEN EXISTS (SELECT 1 FROM run WHERE rowid = new.rowid) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this run exists already and cannot be replaced');
END;

CREATE TRIGGER run_is_not_deleted BEFORE DELETE ON run BEGIN SELECT RAISE(ABORT, 'pointsman: a run cannot be deleted'); END;

-- A run succeeds only if all of its tasks have.
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE OF outcome ON run
    WHEN new.outcome = 'success' AND old.outcome IS NOT 'success' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run succeeds only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM task WHERE run_id = new.id AND (outcome IS NULL OR outcome <> 'success'));
END;

-- Tasks: a state may need a worker, a session or met dependencies, and only a move begins or ends an attempt.

CREATE TRIGGER task_begins AFTER INSERT ON task BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'task', new.id, 0, new.run_id, new.machine_id, NULL, new.state, 'create',
            coalesce((SELECT 'info' FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'task' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.epoch = 0 AND new.attempt_worker_id IS NULL),
                     RAISE(ABORT, 'pointsman: a task is created once, in the initial state of a task machine')),
            new.reason, new.actor, new.metadata, new.created_at, NULL);
END;

CREATE TRIGGER task_moves AFTER UPDATE OF revision ON task
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'task', new.id, new.revision, new.run_id, new.machine_id, old.state, new.state, new.trigger,
            coalesce((SELECT severity FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1
                         AND needs_worker = (new.worker_id IS NOT NULL)
                         AND (needs_session = 0 OR new.session_id IS NOT NULL)
                         AND (needs_dependencies = 0 OR new.open_dependencies = 0)
                         -- A new attempt has the next epoch; otherwise the epoch stays.
                         AND new.epoch = old.epoch + (new.current_attempt IS NOT NULL AND new.current_attempt IS NOT old.current_attempt)
                         -- The worker is the worker of the attempt, and serves the tenant.
                         AND (new.worker_id IS NULL OR new.worker_id IS new.attempt_worker_id)
                         AND (new.attempt_worker_id IS old.attempt_worker_id
                              OR EXISTS (SELECT 1 FROM worker
                                          WHERE worker.id = new.attempt_worker_id
                                            AND (worker.tenant = new.tenant OR worker.serves = '"all"'
                                                 OR EXISTS (SELECT 1 FROM json_each(worker.serves) WHERE value = new.tenant))))),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

CREATE TRIGGER task_changed_by_hand AFTER UPDATE OF state, phase, outcome, worker_id, attempt_worker_id, current_attempt, epoch ON task
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, worker and epoch of a task; change its state instead')
     WHERE new.state = old.state AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome
                                       OR new.worker_id IS NOT old.worker_id OR new.attempt_worker_id IS NOT old.attempt_worker_id
                                       OR new.current_attempt IS NOT old.current_attempt OR new.epoch <> old.epoch);
    UPDATE task SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE task
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END,
           current_attempt = NULL, worker_id = NULL, lease_expired = 0, reserved_usd = 0, available_at = NULL
      FROM (SELECT trigger AS cause, to_phase, to_outcome,
                   max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) AS at
              FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
               -- No hand-typed change begins an attempt: nothing would run.
               AND needs_worker = 0 AND to_phase <> 'active'
               AND new.epoch = old.epoch AND new.attempt_worker_id IS old.attempt_worker_id
               AND (needs_session = 0 OR new.session_id IS NOT NULL)
               AND (needs_dependencies = 0 OR new.open_dependencies = 0)
             ORDER BY trigger LIMIT 1) AS moved
     WHERE task.id = new.id AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')
     WHERE new.state <> old.state AND changes() = 0;
END;

CREATE TRIGGER task_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant, run_id, name ON task
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant
      OR new.run_id <> old.run_id OR new.name <> old.name BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its id, machine, tenant, run and name');
END;

CREATE TRIGGER task_is_not_replaced BEFORE INSERT ON task
    WHEN EXISTS (SELECT 1 FROM task WHERE rowid = new.rowid)
      OR EXISTS (SELECT 1 FROM task WHERE run_id = new.run_id AND name = new.name) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this task exists already and cannot be replaced');
END;

CREATE TRIGGER task_is_not_deleted BEFORE DELETE ON task BEGIN SELECT RAISE(ABORT, 'pointsman: a task cannot be deleted'); END;

-- Workers

CREATE TRIGGER worker_begins AFTER INSERT ON worker BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'worker', new.id, 0, new.run_id, new.machine_id, NULL, new.state, 'create',
            coalesce((SELECT 'info' FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'worker' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0),
                     RAISE(ABORT, 'pointsman: a worker is created once, in the initial state of a worker machine')),
            new.reason, new.actor, new.metadata, new.created_at, NULL);
END;

CREATE TRIGGER worker_moves AFTER UPDATE OF revision ON worker
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'worker', new.id, new.revision, new.run_id, new.machine_id, old.state, new.state, new.trigger,
            coalesce((SELECT severity FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this worker to move like this')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

CREATE TRIGGER worker_changed_by_hand AFTER UPDATE OF state, phase, outcome ON worker
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase and outcome of a worker; change its state instead')
     WHERE new.state = old.state AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome);
    UPDATE worker SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE worker
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END,
           run_id = CASE WHEN to_phase <> 'done' THEN run_id END
      FROM (SELECT trigger AS cause, to_phase, to_outcome,
                   max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) AS at
              FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
             ORDER BY trigger LIMIT 1) AS moved
     WHERE worker.id = new.id AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine allows this worker to move like this')
     WHERE new.state <> old.state AND changes() = 0;
END;

CREATE TRIGGER worker_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant, serves ON worker
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant OR new.serves <> old.serves BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its id, machine and tenant, and the tenants that it serves');
END;

CREATE TRIGGER worker_is_not_replaced BEFORE INSERT ON worker
    WHEN EXISTS (SELECT 1 FROM worker WHERE rowid = new.rowid) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this worker exists already and cannot be replaced');
END;

CREATE TRIGGER worker_is_not_deleted BEFORE DELETE ON worker BEGIN SELECT RAISE(ABORT, 'pointsman: a worker cannot be deleted'); END;

-- Breakers

CREATE TRIGGER breaker_begins AFTER INSERT ON breaker BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'breaker', new.id, 0, NULL, new.machine_id, NULL, new.state, 'create',
            coalesce((SELECT 'info' FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'breaker' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0),
                     RAISE(ABORT, 'pointsman: a breaker is created once, in the initial state of a breaker machine')),
            new.reason, new.actor, new.metadata, new.created_at, NULL);
END;

CREATE TRIGGER breaker_moves AFTER UPDATE OF revision ON breaker
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    VALUES (new.tenant, 'breaker', new.id, new.revision, NULL, new.machine_id, old.state, new.state, new.trigger,
            coalesce((SELECT severity FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this breaker to move like this')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

CREATE TRIGGER breaker_changed_by_hand AFTER UPDATE OF state, phase, outcome ON breaker
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase and outcome of a breaker; change its state instead')
     WHERE new.state = old.state AND (new.phase <> old.phase OR new.outcome IS NOT old.outcome);
    UPDATE breaker SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE breaker
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(started_at, moved.at) ELSE started_at END,
           completed_at = CASE WHEN to_phase = 'done' THEN moved.at END, probe_task_id = NULL
      FROM (SELECT trigger AS cause, to_phase, to_outcome,
                   max(old.entered_at, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000) AS at
              FROM rule
             WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
             ORDER BY trigger LIMIT 1) AS moved
     WHERE breaker.id = new.id AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine allows this breaker to move like this')
     WHERE new.state <> old.state AND changes() = 0;
END;

CREATE TRIGGER breaker_keeps_its_machine BEFORE UPDATE OF id, machine_id, tenant, tool ON breaker
    WHEN new.id <> old.id OR new.machine_id <> old.machine_id OR new.tenant <> old.tenant OR new.tool <> old.tool BEGIN
    SELECT RAISE(ABORT, 'pointsman: a breaker keeps its id, machine, tenant and tool');
END;

CREATE TRIGGER breaker_is_not_replaced BEFORE INSERT ON breaker
    WHEN EXISTS (SELECT 1 FROM breaker WHERE rowid = new.rowid)
      OR EXISTS (SELECT 1 FROM breaker WHERE tenant = new.tenant AND tool = new.tool) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this breaker exists already and cannot be replaced');
END;

CREATE TRIGGER breaker_is_not_deleted BEFORE DELETE ON breaker BEGIN SELECT RAISE(ABORT, 'pointsman: a breaker cannot be deleted'); END;

-- Attempts

-- The move that ends an attempt writes its row. If another attempt takes over in the same move, the new row is about that one, and the old
-- row about the attempt that ends. Every move that begins an attempt uses one epoch, so every epoch before the last has its attempt.
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
CREATE TRIGGER attempt_was_current BEFORE INSERT ON attempt
    WHEN EXISTS (SELECT 1 FROM attempt WHERE task_id = new.task_id AND epoch = new.epoch)
      OR NOT EXISTS (SELECT 1 FROM task WHERE id = new.task_id AND epoch >= new.epoch AND current_attempt IS NOT new.epoch) BEGIN
    SELECT RAISE(ABORT, 'pointsman: only the law writes attempts');
END;
CREATE TRIGGER attempt_is_not_changed BEFORE UPDATE ON attempt BEGIN
    SELECT RAISE(ABORT, 'pointsman: an attempt that has ended cannot be changed');
END;
CREATE TRIGGER attempt_is_not_deleted BEFORE DELETE ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: an attempt cannot be deleted'); END;

-- The audit trail

-- Only the law writes it: every revision up to the last has its line already, and a new line comes with the new revision of its row.
CREATE TRIGGER transition_goes_on BEFORE INSERT ON transition
    WHEN EXISTS (SELECT 1 FROM transition WHERE entity_id = new.entity_id AND revision = new.revision)
      OR CASE new.kind WHEN 'task' THEN (SELECT revision FROM task WHERE id = new.entity_id)
                       WHEN 'run' THEN (SELECT revision FROM run WHERE id = new.entity_id)
                       WHEN 'worker' THEN (SELECT revision FROM worker WHERE id = new.entity_id)
                       WHEN 'breaker' THEN (SELECT revision FROM breaker WHERE id = new.entity_id) END IS NOT new.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail');
END;
CREATE TRIGGER transition_is_not_changed BEFORE UPDATE ON transition BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be changed');
END;
CREATE TRIGGER transition_is_not_deleted BEFORE DELETE ON transition BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be deleted');
END;

-- Machines

-- States and rules are inserted before their machine; afterwards none can be added.
CREATE TRIGGER state_comes_before_its_machine BEFORE INSERT ON state
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be added to a machine; load a new version');
END;
CREATE TRIGGER rule_comes_before_its_machine BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be added to a machine; load a new version');
END;
CREATE TRIGGER machine_is_not_replaced BEFORE INSERT ON machine
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.id OR (name = new.name AND version = new.version)) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a machine cannot be replaced; load a new version');
END;
CREATE TRIGGER machine_is_not_changed BEFORE UPDATE ON machine BEGIN
    SELECT RAISE(ABORT, 'pointsman: a machine cannot be changed; load a new version');
END;
CREATE TRIGGER machine_is_not_deleted BEFORE DELETE ON machine BEGIN SELECT RAISE(ABORT, 'pointsman: a machine cannot be deleted'); END;
CREATE TRIGGER state_is_not_changed BEFORE UPDATE ON state BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be changed; load a new version of its machine');
END;
CREATE TRIGGER state_is_not_deleted BEFORE DELETE ON state BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be deleted; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be changed; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_deleted BEFORE DELETE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be deleted; load a new version of its machine');
END;
