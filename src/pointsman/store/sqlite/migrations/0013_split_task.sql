-- A task is stored in two rows: what was asked for (`task_spec`), which never changes, and where it stands (`task_state`), which moves. A move
-- writes its row again, and its entries in indexes. So that row is short, and refers to the task, its run and its parent by number.
--
-- `task` is a view of both, with the columns of the table that it replaces. What is written to it by hand is written to the two tables, under the
-- same law.

-- A process of the version before asks for the correction of the clock at the beginning of each transaction, and then learns why it cannot go on.
-- While a view is broken, SQLite renames nothing.

DROP VIEW clock;
ALTER TABLE clock_correction RENAME TO clock_offset;
CREATE VIEW clock AS
SELECT * FROM "pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.";
CREATE VIEW clock_correction AS
SELECT * FROM "pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.";

-- The law looks up the run, the parent and the lane of a new task, so there are no foreign keys to them. One whose second row is missing cannot be
-- committed.
CREATE TABLE task_spec (
    number         INTEGER PRIMARY KEY REFERENCES task_state DEFERRABLE INITIALLY DEFERRED,
    run_number     INTEGER NOT NULL,
    parent_number  INTEGER,
    position       INTEGER NOT NULL,
    depth          INTEGER NOT NULL CHECK (depth BETWEEN 0 AND 5),
    critical       INTEGER NOT NULL CHECK (critical IN (0, 1)),
    id             TEXT NOT NULL UNIQUE,
    tenant         TEXT NOT NULL REFERENCES tenant,
    run_id         TEXT NOT NULL,
    name           TEXT NOT NULL,
    parent_task_id TEXT,
    budget_usd     INTEGER CHECK (budget_usd >= 0),
    policy         TEXT NOT NULL CHECK (json_valid(policy)),
    payload        TEXT NOT NULL,
    UNIQUE (run_id, name),
    CHECK ((depth = 0) = (parent_task_id IS NULL) AND (depth = 0) = (parent_number IS NULL))
) STRICT;

-- What claims look at stands first, and long texts last: SQLite reads a row from its beginning.
CREATE TABLE task_state (
    number              INTEGER PRIMARY KEY,
    run_number          INTEGER NOT NULL,
    parent_number       INTEGER,
    lane_id             INTEGER NOT NULL,
    priority            INTEGER NOT NULL,
    phase               TEXT NOT NULL,
    open_dependencies   INTEGER NOT NULL CHECK (open_dependencies >= 0),
    available_at        INTEGER CHECK (available_at BETWEEN 0 AND 253402300799999999),
    run_open            INTEGER NOT NULL CHECK (run_open IN (0, 1)),
    is_gate             INTEGER NOT NULL CHECK (is_gate IN (0, 1)),
    allocated           INTEGER NOT NULL CHECK (allocated IN (0, 1)),
    lease_expired       INTEGER NOT NULL CHECK (lease_expired IN (0, 1)),
    current_attempt     INTEGER,
    attempt_worker_id   TEXT, -- one that serves this tenant, as the law checks; foreign keys may be off
    outcome             TEXT,
    revision            INTEGER NOT NULL DEFAULT 0,
    machine_id          INTEGER NOT NULL REFERENCES machine,
    state               TEXT NOT NULL,
    trigger             TEXT NOT NULL DEFAULT 'create',
    epoch               INTEGER NOT NULL CHECK (epoch >= 0),
    worker_id           TEXT,
    entered_at          INTEGER NOT NULL CHECK (entered_at BETWEEN 0 AND 253402300799999999),
    created_at          INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    started_at          INTEGER CHECK (started_at BETWEEN 0 AND 253402300799999999),
    completed_at        INTEGER CHECK (completed_at BETWEEN 0 AND 253402300799999999),
    cancel_requested_at INTEGER CHECK (cancel_requested_at BETWEEN 0 AND 253402300799999999),
    -- Those that begin with `attempt` are about the current attempt, or else the last one.
    attempt_started_at  INTEGER CHECK (attempt_started_at BETWEEN 0 AND 253402300799999999),
    attempt_count       INTEGER NOT NULL CHECK (attempt_count >= 0),
    max_attempts        INTEGER,
    retry_count         INTEGER NOT NULL CHECK (retry_count BETWEEN 0 AND max_retries),
    max_retries         INTEGER NOT NULL,
    reclaim_count       INTEGER NOT NULL CHECK (reclaim_count BETWEEN 0 AND max_reclaims),
    max_reclaims        INTEGER NOT NULL,
    review_wanted       INTEGER NOT NULL CHECK (review_wanted IN (0, 1)),
    has_checks          INTEGER NOT NULL CHECK (has_checks IN (0, 1)),
    has_subtasks        INTEGER NOT NULL CHECK (has_subtasks IN (0, 1)),
    keep_session        INTEGER NOT NULL CHECK (keep_session IN (0, 1)),
    attempt_resumed     INTEGER NOT NULL CHECK (attempt_resumed IN (0, 1)),
    attempt_exit_code   INTEGER,
    cost_usd            INTEGER NOT NULL CHECK (cost_usd >= 0),
    reserved_usd        INTEGER NOT NULL CHECK (reserved_usd >= 0),
    attempt_cost_usd    INTEGER NOT NULL CHECK (attempt_cost_usd >= 0),
    tokens_in           INTEGER NOT NULL DEFAULT 0 CHECK (tokens_in >= 0),
    tokens_out          INTEGER NOT NULL DEFAULT 0 CHECK (tokens_out >= 0),
    cost_is_estimated   INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimated IN (0, 1)),
    attempt_tokens_in   INTEGER NOT NULL DEFAULT 0 CHECK (attempt_tokens_in >= 0),
    attempt_tokens_out  INTEGER NOT NULL DEFAULT 0 CHECK (attempt_tokens_out >= 0),
    attempt_cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (attempt_cost_is_estimated IN (0, 1)),
    session_id          TEXT,
    reason              TEXT,
    actor               TEXT,
    metadata            TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    attempt_error       TEXT,
    attempt_log_path    TEXT,
    question            TEXT,
    answer              TEXT,
    comment             TEXT,
    error               TEXT,
    output              TEXT,
    CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CHECK ((phase = 'active') = (current_attempt IS NOT NULL)),
    CHECK (current_attempt = epoch),
    CHECK (worker_id IS NULL OR phase = 'active'),
    CHECK (current_attempt IS NULL OR (attempt_worker_id IS NOT NULL AND attempt_started_at IS NOT NULL)),
    CHECK (lease_expired = 0 OR phase = 'active'),
    CHECK (available_at IS NULL OR phase IN ('held', 'queued')),
    CHECK (phase <> 'active' OR (open_dependencies = 0 AND is_gate = 0)),
    CHECK (max_attempts IS NULL OR attempt_count <= max_attempts),
    CHECK (reserved_usd = 0 OR phase = 'active'),
    CHECK (started_at >= created_at),
    CHECK (completed_at >= coalesce(started_at, created_at))
) STRICT;

-- Conversion

CREATE TEMP TABLE converted (
    lost          INTEGER CONSTRAINT "a task has a run or a parent that does not exist" CHECK (lost = 0),
    foreign_lanes INTEGER CONSTRAINT "a task has the lane of another tenant" CHECK (foreign_lanes = 0)
);
INSERT INTO temp.converted
SELECT count(*) FILTER (WHERE run.id IS NULL OR (task.parent_task_id IS NOT NULL AND parent.id IS NULL)),
       count(*) FILTER (WHERE task.tenant IS NOT lane.tenant)
  FROM task
  LEFT JOIN run ON run.id = task.run_id
  LEFT JOIN task AS parent ON parent.id = task.parent_task_id
  LEFT JOIN lane ON lane.id = task.lane_id;
DROP TABLE temp.converted;

INSERT INTO task_state (number, run_number, parent_number, lane_id, priority, phase, open_dependencies, available_at, run_open, is_gate,
                        allocated, lease_expired, current_attempt, attempt_worker_id, outcome, revision, machine_id, state, trigger,
                        epoch, worker_id, entered_at, created_at, started_at, completed_at, cancel_requested_at, attempt_started_at,
                        attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, review_wanted, has_checks,
                        has_subtasks, keep_session, attempt_resumed, attempt_exit_code, cost_usd, reserved_usd, attempt_cost_usd,
                        tokens_in, tokens_out, cost_is_estimated, attempt_tokens_in, attempt_tokens_out, attempt_cost_is_estimated,
                        session_id, reason, actor, metadata, attempt_error, attempt_log_path, question, answer, comment, error, output)
SELECT task.number, run.number, (SELECT parent.number FROM task AS parent WHERE parent.id = task.parent_task_id),
       task.lane_id, task.priority, task.phase, task.open_dependencies, task.available_at, task.run_open, task.is_gate, task.allocated,
       task.lease_expired, task.current_attempt, task.attempt_worker_id, task.outcome, task.revision, task.machine_id, task.state,
       task.trigger, task.epoch, task.worker_id, task.entered_at, task.created_at, task.started_at, task.completed_at,
       task.cancel_requested_at, task.attempt_started_at, task.attempt_count, task.max_attempts, task.retry_count, task.max_retries,
       task.reclaim_count, task.max_reclaims, task.review_wanted, task.has_checks, task.has_subtasks, task.keep_session,
       task.attempt_resumed, task.attempt_exit_code, task.cost_usd, task.reserved_usd, task.attempt_cost_usd, task.tokens_in,
       task.tokens_out, task.cost_is_estimated, task.attempt_tokens_in, task.attempt_tokens_out, task.attempt_cost_is_estimated,
       task.session_id, task.reason, task.actor, task.metadata, task.attempt_error, task.attempt_log_path, task.question, task.answer,
       task.comment, task.error, task.output
  FROM task JOIN run ON run.id = task.run_id
 ORDER BY task.number;

INSERT INTO task_spec (number, run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id, budget_usd,
                       policy, payload)
SELECT task.number, task_state.run_number, task_state.parent_number,
       task.position, task.depth, task.critical, task.id, task.tenant, task.run_id, task.name, task.parent_task_id, task.budget_usd,
       task.policy, task.payload
  FROM task JOIN task_state ON task_state.number = task.number
 ORDER BY task.number;

-- Whatever referred to the table refers to `task_spec`, which changes nothing in the file but the text of the tables.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'REFERENCES task (id)', 'REFERENCES task_spec (id)')
 WHERE type = 'table' AND name IN ('task', 'dependency', 'breaker', 'tombstone');
PRAGMA writable_schema = RESET;

DROP VIEW entity;
DROP VIEW transition;
DROP VIEW attempt;
DROP TABLE task;

-- No index but the last one has tasks that have succeeded. Within a lane and a priority, tasks begin in the order of their numbers.
CREATE INDEX task_claimable ON task_state (lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated;
CREATE INDEX task_claimable_of_run ON task_state (run_number, lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate;
CREATE INDEX task_reclaimable ON task_state (lane_id) WHERE lease_expired;
CREATE INDEX task_held ON task_state (attempt_worker_id) WHERE current_attempt IS NOT NULL;
CREATE INDEX task_unfinished ON task_state (run_number, phase) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX task_of_parent ON task_state (parent_number, outcome) WHERE parent_number IS NOT NULL;

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

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       CASE trail.kind WHEN 0 THEN 'run' WHEN 1 THEN 'task' WHEN 2 THEN 'worker' WHEN 3 THEN 'breaker' END AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS NOT '' THEN trail.metadata
            WHEN trail.revision = 0 THEN '{"run_id":' || json_quote(task.run_id) || ',"depends_on":[],"critical":' || iif(task.critical, 'true', 'false') || ',"max_retries":' || created.max_retries || '}'
            ELSE '{"worker_id":' || json_quote(trail.actor) || ',"epoch":' || (trail.epoch + (trail.started_at IS NOT NULL)) || '}' END AS metadata,
       trail.at,
       (trail.at - prior.at) / 1e6 AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task_spec AS task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN task_state AS created ON created.number = CASE WHEN trail.kind = 1 AND trail.revision = 0 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial = 1
       AND beginning.machine_id = coalesce(created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       max(trail.at, trail.started_at) AS ended_at, rule.trigger AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0) AS cost_usd, trail.session_id, coalesce(trail.resumed, 0) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, 0) AS cost_is_estimated
  FROM task_spec AS task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

CREATE TRIGGER transition_is_not_inserted INSTEAD OF INSERT ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;
CREATE TRIGGER transition_is_not_changed INSTEAD OF UPDATE ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;
CREATE TRIGGER transition_is_not_deleted INSTEAD OF DELETE ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;
CREATE TRIGGER attempt_is_not_inserted INSTEAD OF INSERT ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;
CREATE TRIGGER attempt_is_not_changed INSTEAD OF UPDATE ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;
CREATE TRIGGER attempt_is_not_deleted INSTEAD OF DELETE ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;

-- The law

-- REPLACE deletes what is in its way without a trigger, so this looks first.
CREATE TRIGGER task_is_specified BEFORE INSERT ON task_spec BEGIN
    SELECT RAISE(ABORT, 'pointsman: this task exists already and cannot be replaced')
     WHERE EXISTS (SELECT 1 FROM task_spec WHERE id = new.id)
        OR EXISTS (SELECT 1 FROM task_spec WHERE run_id = new.run_id AND name = new.name)
        OR EXISTS (SELECT 1 FROM task_spec WHERE number = new.number);
    SELECT RAISE(ABORT, 'pointsman: the id of a task does not begin like that of another kind')
     WHERE new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'worker_*' OR new.id GLOB 'breaker_*';
    SELECT RAISE(ABORT, 'pointsman: a task belongs to a run that exists, and has a parent that exists or none')
     WHERE new.run_id IS NOT (SELECT id FROM run WHERE number = new.run_number)
        OR new.parent_task_id IS NOT (SELECT id FROM task_spec WHERE number = new.parent_number);
END;

-- Before a row is inserted, SQLite says -1 for the number that it is still to get.
CREATE TRIGGER task_has_a_number AFTER INSERT ON task_spec
    WHEN new.number < 1 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task is created once, with a number from 1 on');
END;

CREATE TRIGGER task_spec_keeps_its_place BEFORE UPDATE OF number, rowid, oid, _rowid_ ON task_spec BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its place in the file');
END;

CREATE TRIGGER task_keeps_its_spec
    BEFORE UPDATE OF run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id, budget_usd, policy,
                     payload ON task_spec BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
END;

CREATE TRIGGER task_spec_is_not_deleted BEFORE DELETE ON task_spec BEGIN SELECT RAISE(ABORT, 'pointsman: a task cannot be deleted'); END;

-- The second row of a task begins it. A lane belongs to the tenant of its tasks: claims ask for lanes only.
CREATE TRIGGER task_fits_its_spec AFTER INSERT ON task_state BEGIN
    SELECT CASE WHEN (SELECT outcome FROM run WHERE number = new.run_number) IS 'success'
                THEN RAISE(ABORT, 'pointsman: a run that has succeeded gets no more tasks')
                WHEN (SELECT (run_number, parent_number) IS NOT (new.run_number, new.parent_number) FROM task_spec WHERE number = new.number) IS NOT 0
                THEN RAISE(ABORT, 'pointsman: the two rows of a task have the same number, run and parent')
                WHEN (SELECT tenant FROM lane WHERE id = new.lane_id) IS NOT (SELECT tenant FROM task_spec WHERE number = new.number)
                THEN RAISE(ABORT, 'pointsman: the lane of a task is one of its tenant') END;
END;

-- A row that replaces another would need a first line in the audit trail, which the other has already.
CREATE TRIGGER task_begins AFTER INSERT ON task_state
    WHEN new.revision <> 1 BEGIN
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 1,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'task' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.epoch = 0 AND new.attempt_worker_id IS NULL),
                     RAISE(ABORT, 'pointsman: a task is created once, in the initial state of a task machine')),
            new.reason, new.actor,
            (SELECT CASE WHEN new.metadata = '{"run_id":' || json_quote(run_id) || ',"depends_on":[],"critical":' || iif(critical, 'true', 'false') || ',"max_retries":' || new.max_retries || '}' THEN ''
                         ELSE new.metadata END FROM task_spec WHERE number = new.number));
END;

-- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
CREATE TRIGGER task_begins_with_its_first_move AFTER INSERT ON task_state
    WHEN new.revision = 1 BEGIN
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 1, 0, new.reason, new.actor, '');
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    VALUES (new.entered_at, new.number, 1, 1,
            coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                       WHERE rule.machine_id = new.machine_id AND state.initial = 1 AND state.kind = 'task' AND rule.to_state = new.state
                         AND rule.trigger = new.trigger AND rule.to_phase = new.phase AND rule.to_phase IN ('held', 'queued')
                         AND rule.needs_worker = 0 AND (rule.needs_session = 0 OR new.session_id IS NOT NULL)
                         AND new.open_dependencies = 0 AND new.epoch = 0 AND new.attempt_worker_id IS NULL
                         AND new.entered_at = new.created_at),
                     RAISE(ABORT, 'pointsman: a task is created once, in the initial state of a task machine')),
            new.reason, new.actor, new.metadata);
END;

-- An attempt that hands over to the next one ends as its task knew it before the move, and any other one as the move leaves it. VALUES, since SQLite
-- writes what it selects for a table with triggers into a temporary table first.
CREATE TRIGGER task_moves AFTER UPDATE OF revision ON task_state
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata, epoch, worker_id, started_at, resumed, session_id,
                       cost_usd, error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    VALUES (new.entered_at, new.number, 1, new.revision,
            coalesce((SELECT id FROM rule
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
                              OR EXISTS (SELECT 1 FROM lane JOIN worker ON worker.id = new.attempt_worker_id
                                          WHERE lane.id = new.lane_id
                                            AND (worker.tenant = lane.tenant OR worker.serves = '"all"'
                                                 OR EXISTS (SELECT 1 FROM json_each(worker.serves) WHERE value = lane.tenant))))),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')),
            new.reason, new.actor,
            CASE WHEN new.epoch <> old.epoch AND new.metadata = '{"worker_id":' || json_quote(new.actor) || ',"epoch":' || new.epoch || '}' THEN '' ELSE new.metadata END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN old.epoch WHEN new.epoch <> old.epoch THEN new.epoch END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN nullif(old.attempt_worker_id, new.actor) END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN old.attempt_started_at END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN nullif(old.attempt_resumed, 0) END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.session_id, old.session_id) END,
            nullif(CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_cost_usd, old.attempt_cost_usd) END, 0),
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_error, old.attempt_error) END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_exit_code, old.attempt_exit_code) END,
            CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_log_path, old.attempt_log_path) END,
            nullif(CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_tokens_in, old.attempt_tokens_in) END, 0),
            nullif(CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_tokens_out, old.attempt_tokens_out) END, 0),
            nullif(CASE WHEN old.current_attempt <> coalesce(new.current_attempt, -1) THEN iif(new.current_attempt IS NULL, new.attempt_cost_is_estimated, old.attempt_cost_is_estimated) END, 0));
END;

-- The tasks of a worker often follow one another. Then the first and the last number say that it does not hold too many, and nothing is counted.
CREATE TRIGGER attempt_finds_room AFTER UPDATE OF epoch ON task_state
    WHEN new.epoch <> old.epoch AND new.current_attempt IS NOT NULL AND new.lease_expired = 0 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker that has ended gets no task, and no worker gets more than it may hold')
      FROM worker
     WHERE worker.id = new.attempt_worker_id
       AND (worker.phase = 'done'
            OR (max_concurrent_tasks <= (SELECT number FROM task_state
                                          WHERE attempt_worker_id = new.attempt_worker_id AND current_attempt IS NOT NULL ORDER BY number DESC LIMIT 1)
                                      - (SELECT number FROM task_state
                                          WHERE attempt_worker_id = new.attempt_worker_id AND current_attempt IS NOT NULL ORDER BY number LIMIT 1)
                AND max_concurrent_tasks < (SELECT count(*) FROM task_state
                                             WHERE attempt_worker_id = new.attempt_worker_id AND current_attempt IS NOT NULL)
                AND max_concurrent_tasks < (SELECT count(*) FROM task_state
                                             WHERE attempt_worker_id = new.attempt_worker_id AND current_attempt IS NOT NULL AND lease_expired = 0)));
END;

-- A state that is typed is a move, with everything that follows from it.
CREATE TRIGGER task_moved_by_hand
    AFTER UPDATE OF state, phase, outcome, worker_id, attempt_worker_id, current_attempt, epoch, trigger, reason, actor, metadata,
                    entered_at, started_at, completed_at, output ON task_state
    WHEN new.revision = old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a move changes the phase, outcome, output, worker, epoch, times and cause of a task; change its state instead')
     WHERE new.state = old.state
       AND (new.phase, new.outcome, new.worker_id, new.attempt_worker_id, new.current_attempt, new.epoch, new.trigger, new.reason,
            new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at, new.output)
    IS NOT (old.phase, old.outcome, old.worker_id, old.attempt_worker_id, old.current_attempt, old.epoch, old.trigger, old.reason,
            old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at, old.output);
    UPDATE task_state SET state = old.state WHERE number = new.number AND new.state <> old.state;
    UPDATE task_state
       SET state = new.state, revision = new.revision + 1, phase = to_phase, outcome = to_outcome, trigger = moved.cause, actor = 'sql',
           metadata = NULL, entered_at = moved.at, reason = CASE WHEN new.reason IS NOT old.reason THEN new.reason END,
           started_at = old.started_at, completed_at = CASE WHEN to_phase = 'done' THEN moved.at END,
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
     WHERE number = new.number AND new.state <> old.state;
    SELECT RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')
     WHERE new.state <> old.state AND changes() = 0;
END;

CREATE TRIGGER task_keeps_its_place BEFORE UPDATE OF number, rowid, oid, _rowid_ ON task_state BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its place in the file');
END;

CREATE TRIGGER task_keeps_what_it_began_with
    BEFORE UPDATE OF run_number, parent_number, machine_id, created_at, lane_id, priority, is_gate, review_wanted, has_checks, allocated,
                     max_attempts, max_retries, max_reclaims ON task_state
    WHEN (new.run_number, new.parent_number, new.machine_id, new.created_at, new.lane_id, new.priority, new.is_gate, new.review_wanted,
          new.has_checks, new.allocated, new.max_attempts, new.max_retries, new.max_reclaims)
  IS NOT (old.run_number, old.parent_number, old.machine_id, old.created_at, old.lane_id, old.priority, old.is_gate, old.review_wanted,
          old.has_checks, old.allocated, old.max_attempts, old.max_retries, old.max_reclaims) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
END;

CREATE TRIGGER task_is_not_deleted BEFORE DELETE ON task_state BEGIN SELECT RAISE(ABORT, 'pointsman: a task cannot be deleted'); END;

CREATE TRIGGER task_waits_for_others AFTER UPDATE OF open_dependencies ON task_state
    WHEN new.open_dependencies = 0 AND old.open_dependencies > 0 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task waits until all tasks that it depends on have succeeded')
     WHERE EXISTS (SELECT 1 FROM dependency JOIN task_spec AS other ON other.id = dependency.depends_on_id
                                            JOIN task_state AS awaited ON awaited.number = other.number
                    WHERE dependency.task_id = (SELECT id FROM task_spec WHERE number = new.number)
                      AND (awaited.outcome IS NULL OR awaited.outcome <> 'success'));
END;

CREATE TRIGGER attempt_stays_lost AFTER UPDATE OF lease_expired ON task_state
    WHEN new.lease_expired < old.lease_expired AND new.current_attempt IS old.current_attempt BEGIN
    SELECT RAISE(ABORT, 'pointsman: an attempt that has lost its lease does not get it back');
END;

-- What is written to the view by hand goes to the two tables, which are under the law.

CREATE TRIGGER task_created_by_hand INSTEAD OF INSERT ON task BEGIN
    INSERT INTO task_spec (number, run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id,
                           budget_usd, policy, payload)
    VALUES (new.number, (SELECT number FROM run WHERE id = new.run_id), (SELECT number FROM task_spec WHERE id = new.parent_task_id),
            new.position, new.depth, new.critical, new.id, new.tenant, new.run_id, new.name, new.parent_task_id, new.budget_usd,
            new.policy, new.payload);
    INSERT INTO task_state (number, run_number, parent_number, lane_id, priority, phase, open_dependencies, available_at, run_open,
                            is_gate, allocated, lease_expired, current_attempt, attempt_worker_id, outcome, revision, machine_id, state,
                            trigger, epoch, worker_id, entered_at, created_at, started_at, completed_at, cancel_requested_at,
                            attempt_started_at, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims,
                            review_wanted, has_checks, has_subtasks, keep_session, attempt_resumed, attempt_exit_code, cost_usd,
                            reserved_usd, attempt_cost_usd, tokens_in, tokens_out, cost_is_estimated, attempt_tokens_in,
                            attempt_tokens_out, attempt_cost_is_estimated, session_id, reason, actor, metadata, attempt_error,
                            attempt_log_path, question, answer, comment, error, output)
    VALUES (last_insert_rowid(), (SELECT number FROM run WHERE id = new.run_id), (SELECT number FROM task_spec WHERE id = new.parent_task_id),
            new.lane_id, new.priority, new.phase, new.open_dependencies, new.available_at, new.run_open, new.is_gate, new.allocated,
            new.lease_expired, new.current_attempt, new.attempt_worker_id, new.outcome, coalesce(new.revision, 0), new.machine_id,
            new.state, coalesce(new.trigger, 'create'), new.epoch, new.worker_id, new.entered_at, new.created_at, new.started_at,
            new.completed_at, new.cancel_requested_at, new.attempt_started_at, new.attempt_count, new.max_attempts, new.retry_count,
            new.max_retries, new.reclaim_count, new.max_reclaims, new.review_wanted, new.has_checks, new.has_subtasks, new.keep_session,
            new.attempt_resumed, new.attempt_exit_code, new.cost_usd, new.reserved_usd, new.attempt_cost_usd, coalesce(new.tokens_in, 0),
            coalesce(new.tokens_out, 0), coalesce(new.cost_is_estimated, 0), coalesce(new.attempt_tokens_in, 0),
            coalesce(new.attempt_tokens_out, 0), coalesce(new.attempt_cost_is_estimated, 0), new.session_id, new.reason, new.actor,
            new.metadata, new.attempt_error, new.attempt_log_path, new.question, new.answer, new.comment, new.error, new.output);
END;

CREATE TRIGGER task_changed_by_hand INSTEAD OF UPDATE ON task BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its place in the file') WHERE new.number IS NOT old.number;
    UPDATE task_spec
       SET (run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id, budget_usd, policy, payload)
         = (new.run_number, new.parent_number, new.position, new.depth, new.critical, new.id, new.tenant, new.run_id, new.name,
            new.parent_task_id, new.budget_usd, new.policy, new.payload)
     WHERE number = old.number
       AND (new.run_number, new.parent_number, new.position, new.depth, new.critical, new.id, new.tenant, new.run_id, new.name,
            new.parent_task_id, new.budget_usd, new.policy, new.payload)
    IS NOT (old.run_number, old.parent_number, old.position, old.depth, old.critical, old.id, old.tenant, old.run_id, old.name,
            old.parent_task_id, old.budget_usd, old.policy, old.payload);
    UPDATE task_state
       SET (run_number, parent_number, lane_id, priority, phase, open_dependencies, available_at, run_open, is_gate, allocated,
            lease_expired, current_attempt, attempt_worker_id, outcome, revision, machine_id, state, trigger, epoch, worker_id,
            entered_at, created_at, started_at, completed_at, cancel_requested_at, attempt_started_at, attempt_count, max_attempts,
            retry_count, max_retries, reclaim_count, max_reclaims, review_wanted, has_checks, has_subtasks, keep_session, attempt_resumed,
            attempt_exit_code, cost_usd, reserved_usd, attempt_cost_usd, tokens_in, tokens_out, cost_is_estimated, attempt_tokens_in,
            attempt_tokens_out, attempt_cost_is_estimated, session_id, reason, actor, metadata, attempt_error, attempt_log_path, question,
            answer, comment, error, output)
         = (new.run_number, new.parent_number, new.lane_id, new.priority, new.phase, new.open_dependencies, new.available_at,
            new.run_open, new.is_gate, new.allocated, new.lease_expired, new.current_attempt, new.attempt_worker_id, new.outcome,
            new.revision, new.machine_id, new.state, new.trigger, new.epoch, new.worker_id, new.entered_at, new.created_at,
            new.started_at, new.completed_at, new.cancel_requested_at, new.attempt_started_at, new.attempt_count, new.max_attempts,
            new.retry_count, new.max_retries, new.reclaim_count, new.max_reclaims, new.review_wanted, new.has_checks, new.has_subtasks,
            new.keep_session, new.attempt_resumed, new.attempt_exit_code, new.cost_usd, new.reserved_usd, new.attempt_cost_usd,
            new.tokens_in, new.tokens_out, new.cost_is_estimated, new.attempt_tokens_in, new.attempt_tokens_out,
            new.attempt_cost_is_estimated, new.session_id, new.reason, new.actor, new.metadata, new.attempt_error, new.attempt_log_path,
            new.question, new.answer, new.comment, new.error, new.output)
     WHERE number = old.number;
END;

CREATE TRIGGER task_deleted_by_hand INSTEAD OF DELETE ON task BEGIN SELECT RAISE(ABORT, 'pointsman: a task cannot be deleted'); END;

-- Triggers of other tables that looked into the table

DROP TRIGGER dependency_comes_with_its_task;
CREATE TRIGGER dependency_comes_with_its_task BEFORE INSERT ON dependency
    WHEN new.task_id <> new.depends_on_id BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task gets its dependencies when it is created, and counts those that are open')
     WHERE NOT EXISTS (SELECT 1 FROM task
                        WHERE id = new.task_id AND revision = 0
                          AND (open_dependencies > 0
                               OR EXISTS (SELECT 1 FROM task AS other WHERE other.id = new.depends_on_id AND other.outcome = 'success')));
END;

DROP TRIGGER run_succeeds_with_its_tasks;
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE OF outcome ON run
    WHEN new.outcome = 'success' AND old.outcome IS NOT 'success' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run succeeds only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM task_state WHERE run_number = new.number AND (outcome IS NULL OR outcome <> 'success'));
END;

DROP TRIGGER run_is_validated_with_its_tasks;
CREATE TRIGGER run_is_validated_with_its_tasks AFTER UPDATE OF revision ON run
    WHEN new.revision <> old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run is validated only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM rule
                    WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                      AND needs_dependencies = 1)
       AND EXISTS (SELECT 1 FROM task_state WHERE run_number = new.number AND (outcome IS NULL OR outcome <> 'success'));
END;

DROP TRIGGER worker_ends_without_tasks;
CREATE TRIGGER worker_ends_without_tasks AFTER UPDATE OF phase ON worker
    WHEN new.phase = 'done' AND old.phase <> 'done' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker ends only when it holds no task')
     WHERE EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = new.id AND current_attempt IS NOT NULL AND lease_expired = 0);
END;

DROP TRIGGER trail_goes_on;
CREATE TRIGGER trail_goes_on BEFORE INSERT ON trail
    WHEN new.revision < 0
      OR EXISTS (SELECT 1 FROM trail WHERE number = new.number AND kind = new.kind AND revision = new.revision)
      OR new.revision <= CASE new.kind WHEN 1 THEN (SELECT revision FROM task_state WHERE number = new.number)
                                       WHEN 0 THEN (SELECT revision FROM run WHERE number = new.number)
                                       WHEN 2 THEN (SELECT revision FROM worker WHERE number = new.number)
                                       WHEN 3 THEN (SELECT revision FROM breaker WHERE number = new.number) END IS NOT TRUE BEGIN
    SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail');
END;
