-- The whole schema, for reading: what all migrations together lead to, and a test compares them.

-- The tables. SQLite has neither instants nor decimals: both are whole millionths, of a second since 1970 (UTC) and of a dollar.

CREATE TABLE tenant (
    id         TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Every version of every machine that was ever loaded; an entity keeps the one that it began with.
CREATE TABLE machine (
    id          INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    version     INTEGER NOT NULL CHECK (version > 0),
    kind        TEXT NOT NULL CHECK (kind IN ('run', 'task', 'worker', 'breaker')),
    fingerprint TEXT NOT NULL,
    lifecycle   TEXT NOT NULL,
    definition  TEXT NOT NULL,
    UNIQUE (name, version)
) STRICT;

CREATE TABLE state (
    machine_id INTEGER NOT NULL REFERENCES machine DEFERRABLE INITIALLY DEFERRED,
    name       TEXT NOT NULL,
    phase      TEXT NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome    TEXT CHECK (outcome IN ('success', 'failure', 'canceled')),
    initial    INTEGER NOT NULL CHECK (initial IN (0, 1)),
    kind       TEXT NOT NULL,
    PRIMARY KEY (machine_id, name),
    CHECK ((phase = 'done') = (outcome IS NOT NULL))
) STRICT, WITHOUT ROWID;

-- What is legal: one row for each declared move, with what the state that it leads to is and needs.
CREATE TABLE rule (
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
    PRIMARY KEY (machine_id, from_state, to_state, trigger),
    FOREIGN KEY (machine_id, from_state) REFERENCES state,
    FOREIGN KEY (machine_id, to_state) REFERENCES state
) STRICT, WITHOUT ROWID;

-- Which phases and outcomes there are is said where states are: the law lets no row have another one than its state. (A list in a CHECK is
-- made anew for every row that is written.)
CREATE TABLE run (
    id            TEXT PRIMARY KEY,
    tenant        TEXT NOT NULL REFERENCES tenant,
    machine_id    INTEGER NOT NULL REFERENCES machine,
    state         TEXT NOT NULL,
    phase         TEXT NOT NULL,
    outcome       TEXT,
    revision      INTEGER NOT NULL DEFAULT 0,
    trigger       TEXT NOT NULL DEFAULT 'create',
    reason        TEXT,
    actor         TEXT,
    metadata      TEXT,
    entered_at    INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    completed_at  INTEGER,
    name          TEXT NOT NULL,
    lifecycle     TEXT NOT NULL,
    parent_run_id TEXT REFERENCES run,
    depth         INTEGER NOT NULL CHECK (depth BETWEEN 0 AND 5),
    worker_count  INTEGER NOT NULL CHECK (worker_count BETWEEN 1 AND 10),
    allocates     INTEGER NOT NULL CHECK (allocates IN (0, 1)),
    missing_tasks INTEGER NOT NULL CHECK (missing_tasks >= 0),
    has_checks    INTEGER NOT NULL CHECK (has_checks IN (0, 1)),
    retry_count   INTEGER NOT NULL CHECK (retry_count BETWEEN 0 AND max_retries),
    max_retries   INTEGER NOT NULL,
    policy        TEXT NOT NULL CHECK (json_valid(policy)),
    budget_usd    INTEGER CHECK (budget_usd >= 0),
    spent_usd     INTEGER NOT NULL CHECK (spent_usd >= 0),
    promised_usd  INTEGER NOT NULL CHECK (promised_usd >= 0),
    reserved_usd  INTEGER NOT NULL CHECK (reserved_usd >= 0),
    error         TEXT,
    payload       TEXT NOT NULL,
    output        TEXT,
    CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CHECK (started_at >= created_at),
    CHECK (completed_at >= coalesce(started_at, created_at)),
    CHECK ((depth = 0) = (parent_run_id IS NULL)),
    -- What is reserved always fits; what was really spent is a fact, whatever the limit said.
    CHECK (reserved_usd = 0 OR spent_usd + reserved_usd <= budget_usd)
) STRICT;

CREATE INDEX run_of_tenant ON run (tenant, id);
CREATE INDEX run_with_workers ON run (created_at) WHERE allocates = 1 AND phase IN ('queued', 'active');

CREATE TABLE lane (
    id           INTEGER PRIMARY KEY,
    tenant       TEXT NOT NULL REFERENCES tenant,
    tool         TEXT,
    capabilities TEXT NOT NULL,
    fails_fast   INTEGER NOT NULL CHECK (fails_fast IN (0, 1))
) STRICT;

CREATE UNIQUE INDEX lane_once ON lane (tenant, coalesce(tool, ''), capabilities, fails_fast);

CREATE TABLE task (
    id                  TEXT PRIMARY KEY,
    tenant              TEXT NOT NULL REFERENCES tenant,
    machine_id          INTEGER NOT NULL REFERENCES machine,
    state               TEXT NOT NULL,
    phase               TEXT NOT NULL,
    outcome             TEXT,
    revision            INTEGER NOT NULL DEFAULT 0,
    trigger             TEXT NOT NULL DEFAULT 'create',
    reason              TEXT,
    actor               TEXT,
    metadata            TEXT,
    entered_at          INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    completed_at        INTEGER,
    run_id              TEXT NOT NULL REFERENCES run,
    parent_task_id      TEXT REFERENCES task,
    depth               INTEGER NOT NULL CHECK (depth BETWEEN 0 AND 5),
    position            INTEGER NOT NULL,
    name                TEXT NOT NULL,
    lane_id             INTEGER NOT NULL REFERENCES lane,
    priority            INTEGER NOT NULL,
    is_gate             INTEGER NOT NULL CHECK (is_gate IN (0, 1)),
    critical            INTEGER NOT NULL CHECK (critical IN (0, 1)),
    review_wanted       INTEGER NOT NULL CHECK (review_wanted IN (0, 1)),
    has_checks          INTEGER NOT NULL CHECK (has_checks IN (0, 1)),
    has_subtasks        INTEGER NOT NULL CHECK (has_subtasks IN (0, 1)),
    allocated           INTEGER NOT NULL CHECK (allocated IN (0, 1)),
    run_open            INTEGER NOT NULL CHECK (run_open IN (0, 1)),
    open_dependencies   INTEGER NOT NULL CHECK (open_dependencies >= 0),
    available_at        INTEGER,
    epoch               INTEGER NOT NULL CHECK (epoch >= 0),
    current_attempt     INTEGER,
    worker_id           TEXT,
    lease_expired       INTEGER NOT NULL CHECK (lease_expired IN (0, 1)),
    attempt_count       INTEGER NOT NULL CHECK (attempt_count >= 0),
    max_attempts        INTEGER,
    retry_count         INTEGER NOT NULL CHECK (retry_count BETWEEN 0 AND max_retries),
    max_retries         INTEGER NOT NULL,
    reclaim_count       INTEGER NOT NULL CHECK (reclaim_count BETWEEN 0 AND max_reclaims),
    max_reclaims        INTEGER NOT NULL,
    policy              TEXT NOT NULL CHECK (json_valid(policy)),
    budget_usd          INTEGER CHECK (budget_usd >= 0),
    cost_usd            INTEGER NOT NULL CHECK (cost_usd >= 0),
    reserved_usd        INTEGER NOT NULL CHECK (reserved_usd >= 0),
    session_id          TEXT,
    keep_session        INTEGER NOT NULL CHECK (keep_session IN (0, 1)),
    -- Of the attempt that holds it, or of the last one.
    attempt_worker_id   TEXT, -- of the same tenant; the law looks, also where foreign keys are off
    attempt_started_at  INTEGER,
    attempt_resumed     INTEGER NOT NULL CHECK (attempt_resumed IN (0, 1)),
    attempt_cost_usd    INTEGER NOT NULL CHECK (attempt_cost_usd >= 0),
    attempt_error       TEXT,
    attempt_exit_code   INTEGER,
    attempt_log_path    TEXT,
    question            TEXT,
    answer              TEXT,
    comment             TEXT,
    error               TEXT,
    cancel_requested_at INTEGER,
    payload             TEXT NOT NULL,
    output              TEXT,
    UNIQUE (run_id, name),
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
    CHECK (completed_at >= coalesce(started_at, created_at)),
    CHECK ((depth = 0) = (parent_task_id IS NULL))
) STRICT;

-- Finished work is in none of these.
CREATE INDEX task_claimable ON task (tenant, lane_id, priority DESC, id)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0 AND allocated = 0;
CREATE INDEX task_claimable_of_run ON task (run_id, lane_id, priority DESC, id)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open = 1 AND is_gate = 0;
CREATE INDEX task_reclaimable ON task (tenant, lane_id) WHERE lease_expired = 1;
CREATE INDEX task_held ON task (attempt_worker_id) WHERE current_attempt IS NOT NULL;
CREATE INDEX task_unfinished ON task (run_id, phase) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX task_of_parent ON task (parent_task_id, outcome) WHERE parent_task_id IS NOT NULL;

-- A task without what can be large.
CREATE VIEW task_in_brief AS
    SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
           started_at, completed_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate, critical,
           review_wanted, has_checks, has_subtasks, allocated, run_open, open_dependencies, available_at, epoch, current_attempt, worker_id,
           lease_expired, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, policy, budget_usd,
           cost_usd, reserved_usd, session_id, keep_session, attempt_worker_id, attempt_started_at, attempt_resumed, attempt_cost_usd, attempt_error,
           attempt_exit_code, attempt_log_path, question, answer, comment, error, cancel_requested_at
      FROM task;

-- The same for whoever is to do it.
CREATE VIEW task_to_claim AS
    SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
           started_at, completed_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate, critical,
           review_wanted, has_checks, has_subtasks, allocated, run_open, open_dependencies, available_at, epoch, current_attempt, worker_id,
           lease_expired, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims, policy, budget_usd,
           cost_usd, reserved_usd, session_id, keep_session, attempt_worker_id, attempt_started_at, attempt_resumed, attempt_cost_usd, attempt_error,
           attempt_exit_code, attempt_log_path, question, answer, comment, error, cancel_requested_at, payload
      FROM task;

-- What tells whether tasks are alike. One that is plain asks for nothing but to be done, and nothing has happened to it yet.
CREATE VIEW task_key AS
    SELECT id, tenant, run_id, machine_id, state, lane_id, revision, epoch, current_attempt, attempt_worker_id, attempt_count,
           started_at IS NOT NULL AS started, max_retries, max_reclaims, policy, entered_at, priority, name, payload,
           phase, open_dependencies, available_at, run_open, is_gate, allocated,
           is_gate = 0 AND has_checks = 0 AND has_subtasks = 0 AND review_wanted = 0 AND allocated = 0 AND lease_expired = 0 AND keep_session = 0 AND attempt_resumed = 0
           AND parent_task_id IS NULL AND budget_usd IS NULL AND max_attempts IS NULL AND available_at IS NULL
           AND open_dependencies = 0 AND retry_count = 0 AND reclaim_count = 0 AND cost_usd = 0 AND reserved_usd = 0
           AND attempt_cost_usd = 0 AND attempt_error IS NULL AND attempt_exit_code IS NULL AND attempt_log_path IS NULL
           AND session_id IS NULL AND question IS NULL AND answer IS NULL AND comment IS NULL AND error IS NULL AND reason IS NULL
           AND cancel_requested_at IS NULL AND outcome IS NULL AS plain
      FROM task;

CREATE TABLE dependency (
    task_id       TEXT NOT NULL REFERENCES task,
    depends_on_id TEXT NOT NULL REFERENCES task,
    PRIMARY KEY (task_id, depends_on_id),
    CHECK (task_id <> depends_on_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependency_dependents ON dependency (depends_on_id);

-- Attempts that are over, written by the law as they end; one that goes on is a matter of its task.
CREATE TABLE attempt (
    task_id    TEXT NOT NULL,
    epoch      INTEGER NOT NULL CHECK (epoch > 0),
    tenant     TEXT NOT NULL,
    worker_id  TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    ended_by   TEXT NOT NULL,
    error      TEXT,
    exit_code  INTEGER,
    cost_usd   INTEGER NOT NULL CHECK (cost_usd >= 0),
    session_id TEXT,
    resumed    INTEGER NOT NULL CHECK (resumed IN (0, 1)),
    log_path   TEXT,
    PRIMARY KEY (task_id, epoch),
    CHECK (ended_at >= started_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
    id                   TEXT PRIMARY KEY,
    tenant               TEXT NOT NULL REFERENCES tenant,
    machine_id           INTEGER NOT NULL REFERENCES machine,
    state                TEXT NOT NULL,
    phase                TEXT NOT NULL,
    outcome              TEXT,
    revision             INTEGER NOT NULL DEFAULT 0,
    trigger              TEXT NOT NULL DEFAULT 'create',
    reason               TEXT,
    actor                TEXT,
    metadata             TEXT,
    entered_at           INTEGER NOT NULL,
    created_at           INTEGER NOT NULL,
    started_at           INTEGER,
    completed_at         INTEGER,
    name                 TEXT NOT NULL,
    lifecycle            TEXT NOT NULL,
    capabilities         TEXT NOT NULL CHECK (json_valid(capabilities)),
    max_concurrent_tasks INTEGER NOT NULL CHECK (max_concurrent_tasks > 0),
    lease_seconds        REAL NOT NULL CHECK (lease_seconds > 0),
    heartbeat_at         INTEGER NOT NULL,
    missing              INTEGER NOT NULL CHECK (missing IN (0, 1)),
    run_id               TEXT REFERENCES run,
    drain_wanted         INTEGER NOT NULL CHECK (drain_wanted IN (0, 1)),
    pause_wanted         INTEGER NOT NULL CHECK (pause_wanted IN (0, 1)),
    error                TEXT,
    CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CHECK (started_at >= created_at),
    CHECK (completed_at >= coalesce(started_at, created_at)),
    CHECK (run_id IS NULL OR phase <> 'done')
) STRICT;

CREATE INDEX worker_alive ON worker (tenant, phase) WHERE phase <> 'done';
CREATE INDEX worker_of_run ON worker (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE breaker (
    id                TEXT PRIMARY KEY,
    tenant            TEXT NOT NULL REFERENCES tenant,
    machine_id        INTEGER NOT NULL REFERENCES machine,
    state             TEXT NOT NULL,
    phase             TEXT NOT NULL,
    outcome           TEXT,
    revision          INTEGER NOT NULL DEFAULT 0,
    trigger           TEXT NOT NULL DEFAULT 'create',
    reason            TEXT,
    actor             TEXT,
    metadata          TEXT,
    entered_at        INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    started_at        INTEGER,
    completed_at      INTEGER,
    tool              TEXT NOT NULL,
    failure_count     INTEGER NOT NULL CHECK (failure_count >= 0),
    failure_threshold INTEGER NOT NULL CHECK (failure_threshold > 0),
    success_count     INTEGER NOT NULL CHECK (success_count >= 0),
    success_threshold INTEGER NOT NULL CHECK (success_threshold > 0),
    cooldown_seconds  REAL NOT NULL CHECK (cooldown_seconds >= 0),
    retry_at          INTEGER,
    probe_task_id     TEXT REFERENCES task,
    max_concurrent    INTEGER CHECK (max_concurrent > 0),
    rate_count        INTEGER CHECK (rate_count > 0),
    rate_seconds      REAL CHECK (rate_seconds > 0),
    begun             TEXT NOT NULL CHECK (json_valid(begun)),
    UNIQUE (tenant, tool),
    CHECK ((rate_count IS NULL) = (rate_seconds IS NULL)),
    -- Only a half-open breaker has a probe, and only one.
    CHECK (probe_task_id IS NULL OR phase = 'active')
) STRICT;

CREATE INDEX breaker_guarded ON breaker (tenant) WHERE phase <> 'queued' OR max_concurrent IS NOT NULL OR rate_count IS NOT NULL;

CREATE TABLE timer (
    entity_id TEXT NOT NULL,
    purpose   TEXT NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('run', 'task', 'worker', 'breaker')),
    tenant    TEXT NOT NULL,
    run_id    TEXT,
    revision  INTEGER NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (entity_id, purpose)
) STRICT, WITHOUT ROWID;

CREATE INDEX timer_due ON timer (due_at);

-- The audit trail and the event stream: one sequence, written by the triggers of the law and by nobody else.
CREATE TABLE transition (
    position         INTEGER PRIMARY KEY,
    tenant           TEXT NOT NULL,
    kind             TEXT NOT NULL,
    entity_id        TEXT NOT NULL,
    revision         INTEGER NOT NULL,
    run_id           TEXT,
    machine_id       INTEGER NOT NULL,
    from_state       TEXT,
    to_state         TEXT NOT NULL,
    trigger          TEXT NOT NULL,
    severity         TEXT NOT NULL,
    reason           TEXT,
    actor            TEXT,
    metadata         TEXT,
    at               INTEGER NOT NULL,
    seconds_in_state REAL
) STRICT;

CREATE UNIQUE INDEX transition_of_entity ON transition (entity_id, revision);

-- What happened without moving anything: a state that lasts longer than it should.
CREATE TABLE notice (
    position  INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    kind      TEXT NOT NULL,
    entity_id TEXT NOT NULL,
    run_id    TEXT,
    subject   TEXT NOT NULL,
    message   TEXT NOT NULL,
    at        INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency_key (
    tenant       TEXT NOT NULL REFERENCES tenant,
    endpoint     TEXT NOT NULL,
    key          TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    status       INTEGER NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL CHECK (expires_at > created_at),
    PRIMARY KEY (tenant, endpoint, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_key_expiry ON idempotency_key (expires_at);

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
