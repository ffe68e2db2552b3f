-- The tables. SQLite has neither instants nor decimals: instants are microseconds since 1970 (UTC), money is millionths of a dollar.
-- Instants end with the year 9999: readers cannot represent later ones.

CREATE TABLE tenant (
    id         TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999)
) STRICT, WITHOUT ROWID;

-- Every version of every machine that was ever loaded. An entity keeps the version with which it was created.
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
    CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK (initial = 0 OR phase <> 'done')
) STRICT, WITHOUT ROWID;

-- The legal moves: one row for each, with the phase, the outcome and the needs of the state to which it leads.
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

-- The phases and outcomes are checked in `state`: the law lets no row have a phase or outcome that differs from its state. (SQLite would
-- build the list of a CHECK again for every row that it writes.)
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
    metadata      TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    entered_at    INTEGER NOT NULL CHECK (entered_at BETWEEN 0 AND 253402300799999999),
    created_at    INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    started_at    INTEGER CHECK (started_at BETWEEN 0 AND 253402300799999999),
    completed_at  INTEGER CHECK (completed_at BETWEEN 0 AND 253402300799999999),
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
    -- Reservations must fit into the budget. Spent money is a fact, also beyond it.
    CHECK (reserved_usd = 0 OR spent_usd + reserved_usd <= budget_usd)
) STRICT;

CREATE INDEX run_of_tenant ON run (tenant, id);
CREATE INDEX run_with_workers ON run (created_at) WHERE allocates AND phase IN ('queued', 'active');

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
    metadata            TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    entered_at          INTEGER NOT NULL CHECK (entered_at BETWEEN 0 AND 253402300799999999),
    created_at          INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    started_at          INTEGER CHECK (started_at BETWEEN 0 AND 253402300799999999),
    completed_at        INTEGER CHECK (completed_at BETWEEN 0 AND 253402300799999999),
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
    available_at        INTEGER CHECK (available_at BETWEEN 0 AND 253402300799999999),
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
    -- About the current attempt, or else the last one.
    attempt_worker_id   TEXT, -- one that serves this tenant, as the law checks; foreign keys may be off
    attempt_started_at  INTEGER CHECK (attempt_started_at BETWEEN 0 AND 253402300799999999),
    attempt_resumed     INTEGER NOT NULL CHECK (attempt_resumed IN (0, 1)),
    attempt_cost_usd    INTEGER NOT NULL CHECK (attempt_cost_usd >= 0),
    attempt_error       TEXT,
    attempt_exit_code   INTEGER,
    attempt_log_path    TEXT,
    question            TEXT,
    answer              TEXT,
    comment             TEXT,
    error               TEXT,
    cancel_requested_at INTEGER CHECK (cancel_requested_at BETWEEN 0 AND 253402300799999999),
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

-- No index but the last one has tasks that have succeeded.
CREATE INDEX task_claimable ON task (tenant, lane_id, priority DESC, id)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated;
CREATE INDEX task_claimable_of_run ON task (run_id, lane_id, priority DESC, id)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate;
CREATE INDEX task_reclaimable ON task (tenant, lane_id) WHERE lease_expired;
CREATE INDEX task_held ON task (attempt_worker_id) WHERE current_attempt IS NOT NULL;
CREATE INDEX task_unfinished ON task (run_id, phase) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX task_of_parent ON task (parent_task_id, outcome) WHERE parent_task_id IS NOT NULL;

CREATE TABLE dependency (
    task_id       TEXT NOT NULL REFERENCES task,
    depends_on_id TEXT NOT NULL REFERENCES task,
    PRIMARY KEY (task_id, depends_on_id),
    CHECK (task_id <> depends_on_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependency_dependents ON dependency (depends_on_id);

-- Attempts that have ended; the law writes them. The current attempt is in the columns of its task.
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
    metadata             TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    entered_at           INTEGER NOT NULL CHECK (entered_at BETWEEN 0 AND 253402300799999999),
    created_at           INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    started_at           INTEGER CHECK (started_at BETWEEN 0 AND 253402300799999999),
    completed_at         INTEGER CHECK (completed_at BETWEEN 0 AND 253402300799999999),
    name                 TEXT NOT NULL,
    lifecycle            TEXT NOT NULL,
    serves               TEXT NOT NULL, -- besides its own tenant
    last_tenant          TEXT,
    capabilities         TEXT NOT NULL CHECK (json_valid(capabilities)),
    max_concurrent_tasks INTEGER NOT NULL CHECK (max_concurrent_tasks > 0),
    lease_seconds        REAL NOT NULL CHECK (lease_seconds > 0),
    heartbeat_at         INTEGER NOT NULL CHECK (heartbeat_at BETWEEN 0 AND 253402300799999999),
    missing              INTEGER NOT NULL CHECK (missing IN (0, 1)),
    run_id               TEXT REFERENCES run,
    drain_wanted         INTEGER NOT NULL CHECK (drain_wanted IN (0, 1)),
    pause_wanted         INTEGER NOT NULL CHECK (pause_wanted IN (0, 1)),
    error                TEXT,
    CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CHECK (started_at >= created_at),
    CHECK (completed_at >= coalesce(started_at, created_at)),
    CHECK (run_id IS NULL OR phase <> 'done'),
    CHECK (json_valid(serves) AND (json_type(serves) = 'array' OR serves = '"all"'))
) STRICT;

CREATE INDEX worker_alive ON worker (tenant, phase) WHERE phase <> 'done';
CREATE INDEX worker_shared ON worker (phase) WHERE serves <> '[]';
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
    metadata          TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    entered_at        INTEGER NOT NULL CHECK (entered_at BETWEEN 0 AND 253402300799999999),
    created_at        INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    started_at        INTEGER CHECK (started_at BETWEEN 0 AND 253402300799999999),
    completed_at      INTEGER CHECK (completed_at BETWEEN 0 AND 253402300799999999),
    tool              TEXT NOT NULL,
    failure_count     INTEGER NOT NULL CHECK (failure_count >= 0),
    failure_threshold INTEGER NOT NULL CHECK (failure_threshold > 0),
    success_count     INTEGER NOT NULL CHECK (success_count >= 0),
    success_threshold INTEGER NOT NULL CHECK (success_threshold > 0),
    cooldown_seconds  REAL NOT NULL CHECK (cooldown_seconds >= 0),
    retry_at          INTEGER CHECK (retry_at BETWEEN 0 AND 253402300799999999),
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
    due_at    INTEGER NOT NULL CHECK (due_at BETWEEN 0 AND 253402300799999999),
    PRIMARY KEY (entity_id, purpose)
) STRICT, WITHOUT ROWID;

CREATE INDEX timer_due ON timer (due_at);

-- The audit trail, which is also the event stream. Only the triggers of the law write it.
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

-- The hash chain over the audit trail. Each seal covers the transitions after `previous` up to `position`, and the seal before it.
CREATE TABLE seal (
    position  INTEGER PRIMARY KEY CHECK (position > previous),
    previous  INTEGER NOT NULL UNIQUE,
    digest    TEXT NOT NULL,
    sealed_at INTEGER NOT NULL CHECK (sealed_at BETWEEN 0 AND 253402300799999999)
) STRICT;

-- Events that moved nothing: an entity has been in a state for longer than it should.
CREATE TABLE notice (
    position  INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    kind      TEXT NOT NULL,
    entity_id TEXT NOT NULL,
    run_id    TEXT,
    subject   TEXT NOT NULL,
    message   TEXT NOT NULL,
    at        INTEGER NOT NULL CHECK (at BETWEEN 0 AND 253402300799999999)
) STRICT;

CREATE TABLE duty_failure (
    name      TEXT NOT NULL,
    process   TEXT NOT NULL,
    failures  INTEGER NOT NULL CHECK (failures > 0),
    error     TEXT NOT NULL,
    failed_at INTEGER NOT NULL CHECK (failed_at BETWEEN 0 AND 253402300799999999),
    PRIMARY KEY (name, process)
) STRICT;

-- The correction of the clock: one row at most. Database time is what the clock shows plus the offset, which shrinks slowly. It
-- leads to an instant of the calendar.
CREATE TABLE clock (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    revision       INTEGER NOT NULL,
    offset_seconds REAL NOT NULL CHECK (offset_seconds BETWEEN -corrected_at / 1000000 AND 4000000000),
    corrected_at   INTEGER NOT NULL CHECK (corrected_at BETWEEN 0 AND 253402300799999999)
) STRICT;

CREATE TABLE idempotency_key (
    tenant       TEXT NOT NULL REFERENCES tenant,
    endpoint     TEXT NOT NULL,
    key          TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    status       INTEGER NOT NULL,
    body         TEXT NOT NULL,
    created_at   INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    expires_at   INTEGER NOT NULL CHECK (expires_at > created_at AND expires_at <= 253402300799999999),
    PRIMARY KEY (tenant, endpoint, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_key_expiry ON idempotency_key (expires_at);
