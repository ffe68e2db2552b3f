-- Narrow lines: the audit trail refers to the entity and to the rule of its machine instead of repeating what they say, and the line that ends
-- an attempt has what is known of it. `transition` and `attempt` are views of the trail, and say the same as the tables that they replace.
--
-- A process of the version before notices with its next transaction, which asks for the time: see `clock` below.

-- Entities get numbers, by which lines refer to them: their rowids, which a VACUUM keeps only if a column has them. That changes nothing in the
-- file but the text of the tables, so that is what this changes.

PRAGMA writable_schema = ON;
UPDATE sqlite_schema
   SET sql = replace(replace(replace(replace(sql, 'TEXT PRIMARY KEY', 'TEXT NOT NULL UNIQUE'), 'REFERENCES run', 'REFERENCES run (id)'),
                             'REFERENCES task', 'REFERENCES task (id)'),
                     CASE name WHEN 'task' THEN 'UNIQUE (run_id, name)' WHEN 'breaker' THEN 'UNIQUE (tenant, tool)'
                               ELSE 'CHECK ((phase = ''done'') = (outcome IS NOT NULL))' END,
                     'number INTEGER PRIMARY KEY, '
                     || CASE name WHEN 'task' THEN 'UNIQUE (run_id, name)' WHEN 'breaker' THEN 'UNIQUE (tenant, tool)'
                                  ELSE 'CHECK ((phase = ''done'') = (outcome IS NOT NULL))' END)
 WHERE type = 'table' AND name IN ('run', 'task', 'worker', 'breaker');
UPDATE sqlite_schema SET sql = replace(replace(sql, 'REFERENCES run', 'REFERENCES run (id)'), 'REFERENCES task', 'REFERENCES task (id)')
 WHERE type = 'table' AND name IN ('dependency', 'run_tag', 'tombstone');
PRAGMA writable_schema = RESET;

-- A machine begins in one state.
CREATE UNIQUE INDEX state_of_beginning ON state (machine_id) WHERE initial = 1;

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

-- Rules get a number, too.

CREATE TEMP TABLE former_rule AS SELECT * FROM rule;
DROP TABLE rule;
CREATE TABLE rule (
    id                 INTEGER PRIMARY KEY,
    machine_id         INTEGER NOT NULL REFERENCES machine DEFERRABLE INITIALLY DEFERRED,
    from_state         TEXT NOT NULL,
    to_state           TEXT NOT NULL,
    trigger            TEXT NOT NULL,
    severity           TEXT NOT NULL CHECK (severity IN ('info', 'warning', 'error', 'critical')),
    to_phase           TEXT NOT NULL,
    to_outcome         TEXT,
    needs_worker       INTEGER NOT NULL CHECK (needs_worker IN (0, 1)),
    needs_session      INTEGER NOT NULL CHECK (needs_session IN (0, 1)),
    needs_dependencies INTEGER NOT NULL CHECK (needs_dependencies IN (0, 1)),
    UNIQUE (machine_id, from_state, to_state, trigger),
    FOREIGN KEY (machine_id, from_state) REFERENCES state,
    FOREIGN KEY (machine_id, to_state) REFERENCES state
) STRICT;
INSERT INTO rule (machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session, needs_dependencies)
SELECT machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session, needs_dependencies
  FROM temp.former_rule;
DROP TABLE temp.former_rule;

-- The audit trail, which is also the event stream. Only the triggers of the law write it. The columns from `started_at` on are about the
-- attempt that the move ends; what is zero there is null.
CREATE TABLE trail (
    position          INTEGER PRIMARY KEY,
    at                INTEGER NOT NULL,
    number            INTEGER NOT NULL, -- of the entity
    kind              INTEGER NOT NULL, -- 0 for a run, 1 for a task, 2 for a worker, 3 for a breaker
    revision          INTEGER NOT NULL,
    rule_id           INTEGER, -- null for the creation, which leads to the initial state
    run_id            TEXT, -- to which a worker is allocated; a task keeps its run
    reason            TEXT,
    actor             TEXT,
    metadata          TEXT, -- empty for what follows from the rest
    epoch             INTEGER, -- of the attempt that the move ends, or else begins
    started_at        INTEGER,
    worker_id         TEXT, -- null for the actor
    error             TEXT,
    exit_code         INTEGER,
    cost_usd          INTEGER,
    session_id        TEXT,
    resumed           INTEGER,
    log_path          TEXT,
    tokens_in         INTEGER,
    tokens_out        INTEGER,
    cost_is_estimated INTEGER
) STRICT;

-- Conversion
--
-- An attempt ended with the first move after its claim that has the trigger and the instant of its end. A line whose entity, rule or attempt
-- cannot be found was not written by the law: then nothing is converted. Whoever moves a row by hand chooses the metadata, also of a claim.

CREATE TEMP TABLE claimed AS
SELECT entity_id AS task_id, revision, metadata ->> 'epoch' AS epoch
  FROM transition
 WHERE kind = 'task' AND revision > 0 AND json_type(metadata, '$.epoch') = 'integer' AND metadata ->> 'epoch' BETWEEN 1 AND 2147483647;
CREATE INDEX temp.claimed_of_task ON claimed (task_id, revision);

CREATE TEMP TABLE ending AS
SELECT attempt.*,
       (SELECT min(line.revision)
          FROM transition AS line JOIN state ON state.machine_id = line.machine_id AND state.name = line.from_state
         WHERE line.entity_id = attempt.task_id AND line.trigger = attempt.ended_by AND state.phase = 'active'
           AND max(line.at, attempt.started_at) = attempt.ended_at
           AND line.revision > coalesce((SELECT min(claimed.revision) FROM temp.claimed
                                          WHERE claimed.task_id = attempt.task_id AND claimed.epoch = attempt.epoch), 0)) AS revision
  FROM attempt;
CREATE INDEX temp.ending_of_task ON ending (task_id, revision);

INSERT INTO trail (position, at, number, kind, revision, rule_id, run_id, reason, actor, metadata, epoch, worker_id, started_at, resumed,
                   session_id, cost_usd, error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
SELECT line.position, line.at, coalesce(run.number, task.number, worker.number, breaker.number),
       CASE line.kind WHEN 'run' THEN 0 WHEN 'task' THEN 1 WHEN 'worker' THEN 2 WHEN 'breaker' THEN 3 END, line.revision, rule.id,
       CASE line.kind WHEN 'worker' THEN line.run_id END, line.reason, line.actor,
       CASE WHEN line.revision = 0 AND line.metadata = '{"run_id":' || json_quote(task.run_id) || ',"depends_on":[],"critical":' || iif(task.critical, 'true', 'false') || ',"max_retries":' || task.max_retries || '}' THEN ''
            WHEN claimed.epoch <> ending.epoch + 1 THEN line.metadata
            WHEN line.metadata = '{"worker_id":' || json_quote(line.actor) || ',"epoch":' || claimed.epoch || '}' THEN ''
            ELSE line.metadata END,
       coalesce(ending.epoch, claimed.epoch),
       nullif(ending.worker_id, line.actor), ending.started_at, nullif(ending.resumed, 0), ending.session_id, nullif(ending.cost_usd, 0),
       ending.error, ending.exit_code, ending.log_path, nullif(ending.tokens_in, 0), nullif(ending.tokens_out, 0),
       nullif(ending.cost_is_estimated, 0)
  FROM transition AS line
  LEFT JOIN run ON line.kind = 'run' AND run.id = line.entity_id
  LEFT JOIN task ON line.kind = 'task' AND task.id = line.entity_id
  LEFT JOIN worker ON line.kind = 'worker' AND worker.id = line.entity_id
  LEFT JOIN breaker ON line.kind = 'breaker' AND breaker.id = line.entity_id
  LEFT JOIN rule ON rule.machine_id = line.machine_id AND rule.from_state = line.from_state AND rule.to_state = line.to_state
                AND rule.trigger = line.trigger
  LEFT JOIN temp.claimed ON line.kind = 'task' AND claimed.task_id = line.entity_id AND claimed.revision = line.revision
  LEFT JOIN temp.ending ON line.kind = 'task' AND ending.task_id = line.entity_id AND ending.revision = line.revision
 ORDER BY line.position;

CREATE TEMP TABLE converted (
    without_rule INTEGER CONSTRAINT "the audit trail has a move for which its machine has no rule" CHECK (without_rule = 0),
    without_end  INTEGER CONSTRAINT "an attempt is stored whose end is not in the audit trail" CHECK (without_end = 0)
);
INSERT INTO temp.converted
SELECT count(*) FILTER (WHERE revision > 0 AND rule_id IS NULL), (SELECT count(*) FROM attempt) - count(started_at) FROM trail;
DROP TABLE temp.converted;
DROP TABLE temp.ending;
DROP TABLE temp.claimed;

CREATE UNIQUE INDEX trail_of_entity ON trail (number, kind, revision);

DROP TRIGGER run_begins;
DROP TRIGGER run_moves;
DROP TRIGGER task_begins;
DROP TRIGGER task_moves;
DROP TRIGGER worker_begins;
DROP TRIGGER worker_moves;
DROP TRIGGER breaker_begins;
DROP TRIGGER breaker_moves;
DROP TRIGGER attempt_ends;
DROP TRIGGER seal_goes_on;
DROP TRIGGER run_keeps_its_rowid;
DROP TRIGGER task_keeps_its_rowid;
DROP TRIGGER worker_keeps_its_rowid;
DROP TRIGGER breaker_keeps_its_rowid;
DROP TRIGGER run_is_not_replaced;
DROP TRIGGER task_is_not_replaced;
DROP TRIGGER worker_is_not_replaced;
DROP TRIGGER breaker_is_not_replaced;
DROP TABLE transition;
DROP TABLE attempt;

-- The time. A process of the version before reads `clock` at the beginning of each transaction, and then learns why it cannot go on: there is no
-- table of the name that this view names.

ALTER TABLE clock RENAME TO clock_correction;
CREATE VIEW clock AS
SELECT * FROM "pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.";

-- The views

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       CASE trail.kind WHEN 0 THEN 'run' WHEN 1 THEN 'task' WHEN 2 THEN 'worker' WHEN 3 THEN 'breaker' END AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS NOT '' THEN trail.metadata
            WHEN trail.revision = 0 THEN '{"run_id":' || json_quote(task.run_id) || ',"depends_on":[],"critical":' || iif(task.critical, 'true', 'false') || ',"max_retries":' || task.max_retries || '}'
            ELSE '{"worker_id":' || json_quote(trail.actor) || ',"epoch":' || (trail.epoch + (trail.started_at IS NOT NULL)) || '}' END AS metadata,
       trail.at,
       (trail.at - prior.at) / 1e6 AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial = 1
       AND beginning.machine_id = coalesce(task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       max(trail.at, trail.started_at) AS ended_at, rule.trigger AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0) AS cost_usd, trail.session_id, coalesce(trail.resumed, 0) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, 0) AS cost_is_estimated
  FROM task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

-- The law

-- Beginnings

CREATE TRIGGER run_begins AFTER INSERT ON run BEGIN
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 0,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'run' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.number > 0),
                     RAISE(ABORT, 'pointsman: a run is created once, in the initial state of a run machine')),
            new.reason, new.actor, new.metadata);
END;

CREATE TRIGGER task_begins AFTER INSERT ON task BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run that has succeeded gets no more tasks')
     WHERE EXISTS (SELECT 1 FROM run WHERE id = new.run_id AND outcome = 'success');
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 1,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND initial = 1 AND kind = 'task' AND new.epoch = 0 AND new.attempt_worker_id IS NULL AND new.number > 0
                         AND (new.revision = 1
                              OR (new.revision = 0 AND name = new.state AND phase = new.phase AND outcome IS new.outcome))),
                     RAISE(ABORT, 'pointsman: a task is created once, in the initial state of a task machine')),
            new.reason, new.actor,
            CASE WHEN new.revision = 1 OR new.metadata = '{"run_id":' || json_quote(new.run_id) || ',"depends_on":[],"critical":' || iif(new.critical, 'true', 'false') || ',"max_retries":' || new.max_retries || '}' THEN ''
                 ELSE new.metadata END);
    -- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT new.entered_at, new.number, 1, 1,
           coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                      WHERE rule.machine_id = new.machine_id AND state.initial = 1 AND rule.to_state = new.state AND rule.trigger = new.trigger
                        AND rule.to_phase = new.phase AND rule.to_phase IN ('held', 'queued') AND rule.needs_worker = 0
                        AND (rule.needs_session = 0 OR new.session_id IS NOT NULL) AND new.open_dependencies = 0
                        AND new.entered_at = new.created_at),
                    RAISE(ABORT, 'pointsman: a task is created once, in the initial state of a task machine')),
           new.reason, new.actor, new.metadata
     WHERE new.revision = 1;
END;

CREATE TRIGGER worker_begins AFTER INSERT ON worker BEGIN
    INSERT INTO trail (at, number, kind, revision, run_id, reason, actor, metadata)
    VALUES (new.created_at, new.number, 2,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'worker' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.number > 0),
                     RAISE(ABORT, 'pointsman: a worker is created once, in the initial state of a worker machine')),
            new.run_id, new.reason, new.actor, new.metadata);
END;

CREATE TRIGGER breaker_begins AFTER INSERT ON breaker BEGIN
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 3,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'breaker' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.number > 0),
                     RAISE(ABORT, 'pointsman: a breaker is created once, in the initial state of a breaker machine')),
            new.reason, new.actor, new.metadata);
END;

-- An id tells the kind, so no two entities have the same one. (`j_` begins the ids of runs that are jobs of document 000.)

CREATE TRIGGER run_has_an_id_of_its_kind BEFORE INSERT ON run
    WHEN new.id GLOB 'task_*' OR new.id GLOB 'worker_*' OR new.id GLOB 'breaker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a run does not begin like that of another kind');
END;

CREATE TRIGGER task_has_an_id_of_its_kind BEFORE INSERT ON task
    WHEN new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'worker_*' OR new.id GLOB 'breaker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a task does not begin like that of another kind');
END;

CREATE TRIGGER worker_has_an_id_of_its_kind BEFORE INSERT ON worker
    WHEN new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'task_*' OR new.id GLOB 'breaker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a worker does not begin like that of another kind');
END;

CREATE TRIGGER breaker_has_an_id_of_its_kind BEFORE INSERT ON breaker
    WHEN new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'task_*' OR new.id GLOB 'worker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a breaker does not begin like that of another kind');
END;

-- Moves

CREATE TRIGGER run_moves AFTER UPDATE OF revision ON run
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    VALUES (new.entered_at, new.number, 0, new.revision,
            coalesce((SELECT id FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this run to move like this')),
            new.reason, new.actor, new.metadata);
END;

CREATE TRIGGER task_moves AFTER UPDATE OF revision ON task
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata, epoch, worker_id, started_at, resumed, session_id,
                       cost_usd, error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    SELECT new.entered_at, new.number, 1, new.revision,
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
                              OR EXISTS (SELECT 1 FROM worker
                                          WHERE worker.id = new.attempt_worker_id
                                            AND (worker.tenant = new.tenant OR worker.serves = '"all"'
                                                 OR EXISTS (SELECT 1 FROM json_each(worker.serves) WHERE value = new.tenant))))),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this task to move like this')),
           new.reason, new.actor,
           CASE WHEN new.epoch <> old.epoch AND new.metadata = '{"worker_id":' || json_quote(new.actor) || ',"epoch":' || new.epoch || '}' THEN '' ELSE new.metadata END,
           CASE WHEN ends THEN old.epoch WHEN new.epoch <> old.epoch THEN new.epoch END,
           CASE WHEN ends THEN nullif(old.attempt_worker_id, new.actor) END,
           CASE WHEN ends THEN old.attempt_started_at END,
           CASE WHEN ends THEN nullif(old.attempt_resumed, 0) END,
           CASE WHEN hands_over THEN old.session_id WHEN ends THEN new.session_id END,
           nullif(CASE WHEN hands_over THEN old.attempt_cost_usd WHEN ends THEN new.attempt_cost_usd END, 0),
           CASE WHEN hands_over THEN old.attempt_error WHEN ends THEN new.attempt_error END,
           CASE WHEN hands_over THEN old.attempt_exit_code WHEN ends THEN new.attempt_exit_code END,
           CASE WHEN hands_over THEN old.attempt_log_path WHEN ends THEN new.attempt_log_path END,
           nullif(CASE WHEN hands_over THEN old.attempt_tokens_in WHEN ends THEN new.attempt_tokens_in END, 0),
           nullif(CASE WHEN hands_over THEN old.attempt_tokens_out WHEN ends THEN new.attempt_tokens_out END, 0),
           nullif(CASE WHEN hands_over THEN old.attempt_cost_is_estimated WHEN ends THEN new.attempt_cost_is_estimated END, 0)
      FROM (SELECT old.current_attempt IS NOT NULL AND new.current_attempt IS NOT old.current_attempt AS ends,
                   old.current_attempt IS NOT NULL AND new.current_attempt <> old.current_attempt AS hands_over);
END;

CREATE TRIGGER worker_moves AFTER UPDATE OF revision ON worker
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO trail (at, number, kind, revision, rule_id, run_id, reason, actor, metadata)
    VALUES (new.entered_at, new.number, 2, new.revision,
            coalesce((SELECT id FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this worker to move like this')),
            new.run_id, new.reason, new.actor, new.metadata);
END;

CREATE TRIGGER breaker_moves AFTER UPDATE OF revision ON breaker
    WHEN new.revision <> old.revision BEGIN
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    VALUES (new.entered_at, new.number, 3, new.revision,
            coalesce((SELECT id FROM rule
                       WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                         AND to_phase = new.phase AND to_outcome IS new.outcome AND new.revision = old.revision + 1),
                     RAISE(ABORT, 'pointsman: no rule of its machine allows this breaker to move like this')),
            new.reason, new.actor, new.metadata);
END;

CREATE TRIGGER seal_goes_on BEFORE INSERT ON seal
    WHEN new.previous IS NOT (SELECT coalesce(max(position), 0) FROM seal)
      OR new.position > (SELECT coalesce(max(position), 0) FROM trail) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a seal continues the last one, and ends with a transition');
END;

-- Numbers. Before a row is inserted, SQLite says -1 for the number that it is still to get; no row has that.

CREATE TRIGGER run_keeps_its_rowid BEFORE UPDATE OF number, rowid, oid, _rowid_ ON run BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its place in the file');
END;

CREATE TRIGGER run_is_not_replaced BEFORE INSERT ON run
    WHEN EXISTS (SELECT 1 FROM run WHERE id = new.id OR number = new.number) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this run exists already and cannot be replaced');
END;

CREATE TRIGGER task_keeps_its_rowid BEFORE UPDATE OF number, rowid, oid, _rowid_ ON task BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task keeps its place in the file');
END;

CREATE TRIGGER task_is_not_replaced BEFORE INSERT ON task
    WHEN EXISTS (SELECT 1 FROM task WHERE id = new.id OR number = new.number)
      OR EXISTS (SELECT 1 FROM task WHERE run_id = new.run_id AND name = new.name) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this task exists already and cannot be replaced');
END;

CREATE TRIGGER worker_keeps_its_rowid BEFORE UPDATE OF number, rowid, oid, _rowid_ ON worker BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its place in the file');
END;

CREATE TRIGGER worker_is_not_replaced BEFORE INSERT ON worker
    WHEN EXISTS (SELECT 1 FROM worker WHERE id = new.id OR number = new.number) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this worker exists already and cannot be replaced');
END;

CREATE TRIGGER breaker_keeps_its_rowid BEFORE UPDATE OF number, rowid, oid, _rowid_ ON breaker BEGIN
    SELECT RAISE(ABORT, 'pointsman: a breaker keeps its place in the file');
END;

CREATE TRIGGER breaker_is_not_replaced BEFORE INSERT ON breaker
    WHEN EXISTS (SELECT 1 FROM breaker WHERE id = new.id OR number = new.number)
      OR EXISTS (SELECT 1 FROM breaker WHERE tenant = new.tenant AND tool = new.tool) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this breaker exists already and cannot be replaced');
END;

-- The trail and the rules

-- Every move has its line already, but for the one that the law is writing.
CREATE TRIGGER trail_goes_on BEFORE INSERT ON trail
    WHEN new.revision < 0
      OR EXISTS (SELECT 1 FROM trail WHERE number = new.number AND kind = new.kind AND revision = new.revision)
      OR new.revision <= CASE new.kind WHEN 1 THEN (SELECT revision FROM task WHERE number = new.number)
                                       WHEN 0 THEN (SELECT revision FROM run WHERE number = new.number)
                                       WHEN 2 THEN (SELECT revision FROM worker WHERE number = new.number)
                                       WHEN 3 THEN (SELECT revision FROM breaker WHERE number = new.number) END IS NOT TRUE BEGIN
    SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail');
END;

CREATE TRIGGER trail_is_not_changed BEFORE UPDATE ON trail BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be changed');
END;

CREATE TRIGGER trail_is_not_deleted BEFORE DELETE ON trail BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be deleted');
END;

CREATE TRIGGER transition_is_not_inserted INSTEAD OF INSERT ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;

CREATE TRIGGER transition_is_not_changed INSTEAD OF UPDATE ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;

CREATE TRIGGER transition_is_not_deleted INSTEAD OF DELETE ON transition BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail'); END;

CREATE TRIGGER attempt_is_not_inserted INSTEAD OF INSERT ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;

CREATE TRIGGER attempt_is_not_changed INSTEAD OF UPDATE ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;

CREATE TRIGGER attempt_is_not_deleted INSTEAD OF DELETE ON attempt BEGIN SELECT RAISE(ABORT, 'pointsman: only the law writes attempts'); END;

CREATE TRIGGER rule_comes_before_its_machine BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be added to a machine; load a new version');
END;

-- Lines of the trail refer to rules.
CREATE TRIGGER rule_is_not_replaced BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM rule WHERE id = new.id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this rule exists already and cannot be replaced');
END;

CREATE TRIGGER rule_has_a_number AFTER INSERT ON rule
    WHEN new.id < 1 BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule has a number from 1 on');
END;

CREATE TRIGGER rule_is_not_deleted BEFORE DELETE ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = old.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be deleted; load a new version of its machine');
END;

CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be changed; load a new version of its machine');
END;
