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
CREATE TRIGGER run_changed_by_hand
    AFTER UPDATE OF state, phase, outcome, trigger, reason, actor, metadata, entered_at, started_at, completed_at, output ON run
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, output, times and cause of a run; change its state instead')
     WHERE new.state = old.state
       AND (new.phase, new.outcome, new.trigger, new.reason, new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at,
            new.output)
    IS NOT (old.phase, old.outcome, old.trigger, old.reason, old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at,
            old.output);
    UPDATE run SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE run
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(old.started_at, moved.at) ELSE old.started_at END,
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

CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     max_retries, policy, payload ON run
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
          new.allocates, new.has_checks, new.max_retries, new.policy, new.payload)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
          old.allocates, old.has_checks, old.max_retries, old.policy, old.payload) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its id, machine, tenant, payload and everything else that it was created with');
END;

CREATE TRIGGER run_keeps_its_rowid BEFORE UPDATE OF rowid, oid, _rowid_ ON run BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its place in the file');
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
    SELECT RAISE(ABORT, 'pointsman: a run that has succeeded gets no more tasks')
     WHERE EXISTS (SELECT 1 FROM run WHERE id = new.run_id AND outcome = 'success');
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
                         -- The worker is the worker of the attempt, begins it itself, and serves the tenant.
                         AND (new.worker_id IS NULL OR new.worker_id IS new.attempt_worker_id)
                         AND (new.epoch = old.epoch OR new.actor IS new.attempt_worker_id)
                         AND (new.attempt_worker_id IS old.attempt_worker_id
                              OR EXISTS (SELECT 1 FROM worker
                                          WHERE worker.id = new.attempt_worker_id
                                            AND (worker.tenant = new.tenant OR worker.serves = '"all"'
                                                 OR EXISTS (SELECT 1 FROM json_each(worker.serves) WHERE value = new.tenant))))),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')),
            new.reason, new.actor, new.metadata, new.entered_at, (new.entered_at - old.entered_at) / 1e6);
END;

CREATE TRIGGER task_changed_by_hand
    AFTER UPDATE OF state, phase, outcome, worker_id, attempt_worker_id, current_attempt, epoch, trigger, reason, actor, metadata,
                    entered_at, started_at, completed_at, output ON task
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, output, worker, epoch, times and cause of a task; change its state instead')
     WHERE new.state = old.state
       AND (new.phase, new.outcome, new.worker_id, new.attempt_worker_id, new.current_attempt, new.epoch, new.trigger, new.reason,
            new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at, new.output)
    IS NOT (old.phase, old.outcome, old.worker_id, old.attempt_worker_id, old.current_attempt, old.epoch, old.trigger, old.reason,
            old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at, old.output);
    UPDATE task SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE task
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(old.started_at, moved.at) ELSE old.started_at END,
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

CREATE TRIGGER task_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate,
                     critical, review_wanted, has_checks, allocated, max_attempts, max_retries, max_reclaims, policy, budget_usd, payload ON task
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.run_id, new.parent_task_id, new.depth, new.position, new.name,
          new.lane_id, new.priority, new.is_gate, new.critical, new.review_wanted, new.has_checks, new.allocated, new.max_attempts,
          new.max_retries, new.max_reclaims, new.policy, new.budget_usd, new.payload)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.run_id, old.parent_task_id, old.depth, old.position, old.name,
          old.lane_id, old.priority, old.is_gate, old.critical, old.review_wanted, old.has_checks, old.allocated, old.max_attempts,
          old.max_retries, old.max_reclaims, old.policy, old.budget_usd, old.payload) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
END;

CREATE TRIGGER task_keeps_its_rowid BEFORE UPDATE OF rowid, oid, _rowid_ ON task BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its place in the file');
END;

CREATE TRIGGER task_is_not_replaced BEFORE INSERT ON task
    WHEN EXISTS (SELECT 1 FROM task WHERE rowid = new.rowid)
      OR EXISTS (SELECT 1 FROM task WHERE run_id = new.run_id AND name = new.name) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this task exists already and cannot be replaced');
END;

CREATE TRIGGER task_is_not_deleted BEFORE DELETE ON task BEGIN SELECT RAISE(ABORT, 'pointsman: a task cannot be deleted'); END;

-- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
CREATE TRIGGER task_waits_for_others AFTER UPDATE OF open_dependencies ON task
    WHEN new.open_dependencies = 0 AND old.open_dependencies > 0 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task waits until all tasks that it depends on have succeeded')
     WHERE EXISTS (SELECT 1 FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                    WHERE dependency.task_id = new.id AND (other.outcome IS NULL OR other.outcome <> 'success'));
END;

CREATE TRIGGER dependency_is_not_changed BEFORE UPDATE ON dependency BEGIN
    SELECT RAISE(ABORT, 'pointsman: a dependency cannot be changed');
END;
CREATE TRIGGER dependency_is_not_deleted BEFORE DELETE ON dependency BEGIN
    SELECT RAISE(ABORT, 'pointsman: a dependency cannot be deleted');
END;

-- Tenants and lanes: tasks refer to them, and other programs may have switched foreign keys off.

CREATE TRIGGER tenant_is_not_changed BEFORE UPDATE ON tenant BEGIN SELECT RAISE(ABORT, 'pointsman: a tenant cannot be changed'); END;
CREATE TRIGGER tenant_is_not_deleted BEFORE DELETE ON tenant BEGIN SELECT RAISE(ABORT, 'pointsman: a tenant cannot be deleted'); END;
CREATE TRIGGER lane_is_not_changed BEFORE UPDATE ON lane BEGIN SELECT RAISE(ABORT, 'pointsman: a lane cannot be changed'); END;
CREATE TRIGGER lane_is_not_deleted BEFORE DELETE ON lane BEGIN SELECT RAISE(ABORT, 'pointsman: a lane cannot be deleted'); END;
CREATE TRIGGER lane_is_not_replaced BEFORE INSERT ON lane WHEN EXISTS (SELECT 1 FROM lane WHERE id = new.id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a lane cannot be replaced');
END;

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

CREATE TRIGGER worker_changed_by_hand
    AFTER UPDATE OF state, phase, outcome, trigger, reason, actor, metadata, entered_at, started_at, completed_at ON worker
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, times and cause of a worker; change its state instead')
     WHERE new.state = old.state
       AND (new.phase, new.outcome, new.trigger, new.reason, new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at)
    IS NOT (old.phase, old.outcome, old.trigger, old.reason, old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at);
    UPDATE worker SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE worker
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(old.started_at, moved.at) ELSE old.started_at END,
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

CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, lease_seconds ON worker
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.lease_seconds)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.lease_seconds) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');
END;

CREATE TRIGGER worker_keeps_its_rowid BEFORE UPDATE OF rowid, oid, _rowid_ ON worker BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its place in the file');
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

CREATE TRIGGER breaker_changed_by_hand
    AFTER UPDATE OF state, phase, outcome, trigger, reason, actor, metadata, entered_at, started_at, completed_at ON breaker
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, times and cause of a breaker; change its state instead')
     WHERE new.state = old.state
       AND (new.phase, new.outcome, new.trigger, new.reason, new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at)
    IS NOT (old.phase, old.outcome, old.trigger, old.reason, old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at);
    UPDATE breaker SET state = old.state WHERE id = new.id AND new.state <> old.state;
    UPDATE breaker
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = CASE WHEN to_phase = 'active' THEN coalesce(old.started_at, moved.at) ELSE old.started_at END,
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

CREATE TRIGGER breaker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, tool ON breaker
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.tool)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.tool) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a breaker keeps its id, machine, tenant and tool');
END;

CREATE TRIGGER breaker_keeps_its_rowid BEFORE UPDATE OF rowid, oid, _rowid_ ON breaker BEGIN
    SELECT RAISE(ABORT, 'pointsman: a breaker keeps its place in the file');
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

-- Seals: each continues the last one.
CREATE TRIGGER seal_goes_on BEFORE INSERT ON seal
    WHEN new.previous IS NOT (SELECT coalesce(max(position), 0) FROM seal)
      OR new.position > (SELECT coalesce(max(position), 0) FROM transition) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a seal continues the last one, and ends with a transition');
END;
CREATE TRIGGER seal_is_not_changed BEFORE UPDATE ON seal BEGIN SELECT RAISE(ABORT, 'pointsman: a seal cannot be changed'); END;
CREATE TRIGGER seal_is_not_deleted BEFORE DELETE ON seal BEGIN SELECT RAISE(ABORT, 'pointsman: a seal cannot be deleted'); END;

-- Machines

-- States and rules are inserted before their machine; afterwards none can be added. A program that has switched foreign keys off can lay
-- some without a machine. These can be deleted, and whoever loads a machine under their number does so.
CREATE TRIGGER state_comes_before_its_machine BEFORE INSERT ON state
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be added to a machine; load a new version');
END;
CREATE TRIGGER rule_comes_before_its_machine BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be added to a machine; load a new version');
END;
CREATE TRIGGER machine_has_the_next_number BEFORE INSERT ON machine
    WHEN new.id <> (SELECT coalesce(max(id), 0) + 1 FROM machine) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a new machine has the next number');
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
CREATE TRIGGER state_is_not_deleted BEFORE DELETE ON state
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = old.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be deleted; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be changed; load a new version of its machine');
END;
CREATE TRIGGER rule_is_not_deleted BEFORE DELETE ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = old.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be deleted; load a new version of its machine');
END;
