-- The schema of a new database, and for readers: what all migrations come to. `make docs` writes it; never edit it.
-- 9318c849543a1a911f409260d84b07a9669a97a6e1a5bb69c0d7840b5a5f8198

CREATE TABLE tenant (
    id         TEXT PRIMARY KEY,
    created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE run (
    id            TEXT NOT NULL UNIQUE,
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
    parent_run_id TEXT REFERENCES run (id),
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
    output        TEXT, final_task TEXT CHECK (final_task IS NULL OR json_valid(final_task)), tokens_in INTEGER NOT NULL DEFAULT 0 CHECK (tokens_in >= 0), tokens_out INTEGER NOT NULL DEFAULT 0 CHECK (tokens_out >= 0), cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimated IN (0, 1)), tags TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tags) AND json_type(tags) = 'array'),
    number INTEGER PRIMARY KEY, CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CHECK (started_at >= created_at),
    CHECK (completed_at >= coalesce(started_at, created_at)),
    CHECK ((depth = 0) = (parent_run_id IS NULL)),
    -- Reservations must fit into the budget. Spent money is a fact, also beyond it.
    CHECK (reserved_usd = 0 OR spent_usd + reserved_usd <= budget_usd)
) STRICT;

CREATE INDEX run_with_workers ON run (created_at) WHERE allocates AND phase IN ('queued', 'active');

CREATE TABLE lane (
    id           INTEGER PRIMARY KEY,
    tenant       TEXT NOT NULL REFERENCES tenant,
    tool         TEXT,
    capabilities TEXT NOT NULL,
    fails_fast   INTEGER NOT NULL CHECK (fails_fast IN (0, 1))
) STRICT;

CREATE UNIQUE INDEX lane_once ON lane (tenant, coalesce(tool, ''), capabilities, fails_fast);

CREATE TABLE dependency (
    task_id       TEXT NOT NULL REFERENCES task_spec (id),
    depends_on_id TEXT NOT NULL REFERENCES task_spec (id),
    PRIMARY KEY (task_id, depends_on_id),
    CHECK (task_id <> depends_on_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependency_dependents ON dependency (depends_on_id);

CREATE TABLE worker (
    id                   TEXT NOT NULL UNIQUE,
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
    run_id               TEXT REFERENCES run (id),
    drain_wanted         INTEGER NOT NULL CHECK (drain_wanted IN (0, 1)),
    pause_wanted         INTEGER NOT NULL CHECK (pause_wanted IN (0, 1)),
    error                TEXT, terminate_wanted INTEGER NOT NULL DEFAULT 0 CHECK (terminate_wanted IN (0, 1)), only_run_id TEXT REFERENCES run (id), worker_metadata TEXT NOT NULL DEFAULT '{}'
    CHECK (json_valid(worker_metadata) AND json_type(worker_metadata) = 'object'), key_id TEXT,
    number INTEGER PRIMARY KEY, CHECK ((phase = 'done') = (outcome IS NOT NULL)),
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
    id                TEXT NOT NULL UNIQUE,
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
    probe_task_id     TEXT REFERENCES task_spec (id),
    max_concurrent    INTEGER CHECK (max_concurrent > 0),
    rate_count        INTEGER CHECK (rate_count > 0),
    rate_seconds      REAL CHECK (rate_seconds > 0),
    begun             TEXT NOT NULL CHECK (json_valid(begun)), limited_until INTEGER CHECK (limited_until BETWEEN 0 AND 253402300799999999),
    number INTEGER PRIMARY KEY, UNIQUE (tenant, tool),
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

CREATE TABLE seal (
    position  INTEGER PRIMARY KEY CHECK (position > previous),
    previous  INTEGER NOT NULL UNIQUE,
    digest    TEXT NOT NULL,
    sealed_at INTEGER NOT NULL CHECK (sealed_at BETWEEN 0 AND 253402300799999999)
) STRICT;

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

CREATE TABLE "clock_offset" (
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

CREATE TRIGGER run_is_not_deleted BEFORE DELETE ON run BEGIN SELECT RAISE(ABORT, 'pointsman: a run cannot be deleted'); END;

CREATE TRIGGER dependency_is_not_changed BEFORE UPDATE ON dependency BEGIN
    SELECT RAISE(ABORT, 'pointsman: a dependency cannot be changed');
END;

CREATE TRIGGER dependency_is_not_deleted BEFORE DELETE ON dependency BEGIN
    SELECT RAISE(ABORT, 'pointsman: a dependency cannot be deleted');
END;

CREATE TRIGGER tenant_is_not_changed BEFORE UPDATE ON tenant BEGIN SELECT RAISE(ABORT, 'pointsman: a tenant cannot be changed'); END;

CREATE TRIGGER tenant_is_not_deleted BEFORE DELETE ON tenant BEGIN SELECT RAISE(ABORT, 'pointsman: a tenant cannot be deleted'); END;

CREATE TRIGGER lane_is_not_changed BEFORE UPDATE ON lane BEGIN SELECT RAISE(ABORT, 'pointsman: a lane cannot be changed'); END;

CREATE TRIGGER lane_is_not_deleted BEFORE DELETE ON lane BEGIN SELECT RAISE(ABORT, 'pointsman: a lane cannot be deleted'); END;

CREATE TRIGGER lane_is_not_replaced BEFORE INSERT ON lane WHEN EXISTS (SELECT 1 FROM lane WHERE id = new.id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a lane cannot be replaced');
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

CREATE TRIGGER worker_is_not_deleted BEFORE DELETE ON worker BEGIN SELECT RAISE(ABORT, 'pointsman: a worker cannot be deleted'); END;

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

CREATE TRIGGER breaker_is_not_deleted BEFORE DELETE ON breaker BEGIN SELECT RAISE(ABORT, 'pointsman: a breaker cannot be deleted'); END;

CREATE TRIGGER seal_is_not_changed BEFORE UPDATE ON seal BEGIN SELECT RAISE(ABORT, 'pointsman: a seal cannot be changed'); END;

CREATE TRIGGER seal_is_not_deleted BEFORE DELETE ON seal BEGIN SELECT RAISE(ABORT, 'pointsman: a seal cannot be deleted'); END;

CREATE TRIGGER state_comes_before_its_machine BEFORE INSERT ON state
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a state cannot be added to a machine; load a new version');
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

CREATE TRIGGER worker_is_heard_of_while_it_lives BEFORE UPDATE OF heartbeat_at ON worker
    WHEN new.heartbeat_at <> old.heartbeat_at AND (old.phase = 'done' OR new.missing = 1) BEGIN
    SELECT RAISE(ABORT, 'pointsman: only a worker that is alive and not missing has a heartbeat');
END;

CREATE INDEX run_of_tenant ON run (tenant, created_at, id);

CREATE TABLE account (
    tenant            TEXT PRIMARY KEY REFERENCES tenant,
    budget_usd        INTEGER CHECK (budget_usd >= 0),
    spent_usd         INTEGER NOT NULL CHECK (spent_usd >= 0),
    tokens_in         INTEGER NOT NULL CHECK (tokens_in >= 0),
    tokens_out        INTEGER NOT NULL CHECK (tokens_out >= 0),
    cost_is_estimated INTEGER NOT NULL CHECK (cost_is_estimated IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    id           TEXT PRIMARY KEY,
    position     INTEGER NOT NULL,
    origin       TEXT NOT NULL CHECK (origin IN ('settings', 'flow')),
    target       TEXT NOT NULL,
    method       TEXT NOT NULL CHECK (method IN ('command', 'webhook')),
    tenant       TEXT NOT NULL,
    run_id       TEXT,
    event        TEXT NOT NULL,
    subject      TEXT NOT NULL,
    body         TEXT NOT NULL CHECK (json_valid(body) AND json_type(body) = 'object'),
    created_at   INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    due_at       INTEGER CHECK (due_at BETWEEN 0 AND 253402300799999999),
    claimed_by   TEXT,
    tries        INTEGER NOT NULL CHECK (tries >= 0),
    error        TEXT,
    delivered_at INTEGER CHECK (delivered_at BETWEEN 0 AND 253402300799999999),
    dead_at      INTEGER CHECK (dead_at BETWEEN 0 AND 253402300799999999),
    UNIQUE (position, origin, target),
    CHECK ((due_at IS NOT NULL) + (delivered_at IS NOT NULL) + (dead_at IS NOT NULL) = 1),
    CHECK (claimed_by IS NULL OR due_at IS NOT NULL)
) STRICT;

CREATE INDEX outbox_due ON outbox (due_at) WHERE due_at IS NOT NULL;

CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

CREATE TABLE outbox_cursor (
    origin   TEXT NOT NULL CHECK (origin IN ('settings', 'flow')),
    target   TEXT NOT NULL,
    position INTEGER NOT NULL CHECK (position >= 0),
    PRIMARY KEY (origin, target)
) STRICT, WITHOUT ROWID;

CREATE TABLE api_key (
    id                  TEXT PRIMARY KEY,
    tenant              TEXT NOT NULL REFERENCES tenant,
    name                TEXT NOT NULL CHECK (name <> ''),
    scopes              TEXT NOT NULL CHECK (json_valid(scopes) AND json_type(scopes) = 'array' AND scopes <> '[]' AND instr(substr(scopes, 2), '[') = 0
                                            AND trim(replace(replace(replace(replace(replace(replace(scopes, '"read"', ''), '"submit"', ''),
                                                     '"operate"', ''), '"approve"', ''), '"worker"', ''), '"admin"', ''), '[],') = ''),
    created_at          INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    created_by          TEXT NOT NULL,
    expires_at          INTEGER CHECK (expires_at > created_at AND expires_at <= 253402300799999999),
    revoked_at          INTEGER CHECK (revoked_at >= created_at AND revoked_at <= 253402300799999999),
    last_used_at        INTEGER CHECK (last_used_at >= created_at AND last_used_at <= 253402300799999999),
    previous_expires_at INTEGER CHECK (previous_expires_at > created_at AND previous_expires_at <= 253402300799999999),
    secret_hash         TEXT NOT NULL CHECK (length(secret_hash) = 64 AND secret_hash NOT GLOB '*[^0-9a-f]*'),
    previous_hash       TEXT CHECK (length(previous_hash) = 64 AND previous_hash NOT GLOB '*[^0-9a-f]*'),
    CHECK ((previous_hash IS NULL) = (previous_expires_at IS NULL)),
    CHECK (previous_hash <> secret_hash)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX api_key_name ON api_key (tenant, name) WHERE revoked_at IS NULL;

CREATE TRIGGER api_key_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, name, scopes, created_at, created_by ON api_key
    WHEN (new.id, new.tenant, new.name, new.scopes, new.created_at, new.created_by)
  IS NOT (old.id, old.tenant, old.name, old.scopes, old.created_at, old.created_by) BEGIN
    SELECT RAISE(ABORT, 'pointsman: an API key keeps its id, tenant, name and scopes, and who created it');
END;

CREATE TRIGGER api_key_stays_revoked
    BEFORE UPDATE OF revoked_at, secret_hash, previous_hash, expires_at, previous_expires_at ON api_key WHEN old.revoked_at IS NOT NULL BEGIN
    SELECT RAISE(ABORT, 'pointsman: an API key that was revoked stays revoked');
END;

CREATE TRIGGER api_key_lives_longer_with_a_new_secret
    BEFORE UPDATE OF expires_at, previous_expires_at ON api_key
    WHEN (new.expires_at, new.previous_expires_at) IS NOT (old.expires_at, old.previous_expires_at) AND new.secret_hash = old.secret_hash BEGIN
    SELECT RAISE(ABORT, 'pointsman: the expiry of an API key changes only with its secret');
END;

CREATE TRIGGER api_key_is_not_deleted BEFORE DELETE ON api_key BEGIN SELECT RAISE(ABORT, 'pointsman: an API key cannot be deleted'); END;

CREATE TRIGGER api_key_is_not_replaced BEFORE INSERT ON api_key WHEN EXISTS (SELECT 1 FROM api_key WHERE id = new.id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this API key exists already and cannot be replaced');
END;

CREATE TABLE template (
    tenant    TEXT NOT NULL REFERENCES tenant,
    name      TEXT NOT NULL CHECK (name <> ''),
    text      TEXT NOT NULL,
    stored_at INTEGER NOT NULL CHECK (stored_at BETWEEN 0 AND 253402300799999999),
    stored_by TEXT NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE tombstone (
    task_id    TEXT PRIMARY KEY REFERENCES task_spec (id),
    tenant     TEXT NOT NULL REFERENCES tenant,
    deleted_at INTEGER NOT NULL CHECK (deleted_at BETWEEN 0 AND 253402300799999999),
    deleted_by TEXT NOT NULL,
    reason     TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX run_unfinished ON run (tenant, created_at, id) WHERE outcome IS NULL OR outcome <> 'success';

CREATE INDEX run_of_name ON run (tenant, name, created_at, id);

CREATE TABLE quota (
    tenant    TEXT PRIMARY KEY REFERENCES tenant,
    max_runs  INTEGER CHECK (max_runs >= 0),
    max_tasks INTEGER CHECK (max_tasks >= 0),
    max_bytes INTEGER CHECK (max_bytes >= 0)
) STRICT, WITHOUT ROWID;

CREATE INDEX run_in_progress ON run (tenant) WHERE phase <> 'done';

CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload, tags ON run
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
          new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload, new.tags)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
          old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload, old.tags) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its id, machine, tenant, payload and everything else that it was created with');
END;

CREATE TABLE run_tag (
    tenant     TEXT NOT NULL REFERENCES tenant,
    tag        TEXT NOT NULL CHECK (tag <> ''),
    created_at INTEGER NOT NULL CHECK (created_at BETWEEN 0 AND 253402300799999999),
    run_id     TEXT NOT NULL REFERENCES run (id),
    PRIMARY KEY (tenant, tag, created_at, run_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata, key_id ON worker
    WHEN (new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
          new.lease_seconds, new.only_run_id, new.worker_metadata, new.key_id)
  IS NOT (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
          old.lease_seconds, old.only_run_id, old.worker_metadata, old.key_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');
END;

CREATE UNIQUE INDEX state_of_beginning ON state (machine_id) WHERE initial = 1;

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

CREATE UNIQUE INDEX trail_of_entity ON trail (number, kind, revision);

CREATE TRIGGER run_begins AFTER INSERT ON run BEGIN
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    VALUES (new.created_at, new.number, 0,
            coalesce((SELECT 0 FROM state
                       WHERE machine_id = new.machine_id AND name = new.state AND initial = 1 AND kind = 'run' AND phase = new.phase
                         AND outcome IS new.outcome AND new.revision = 0 AND new.number > 0),
                     RAISE(ABORT, 'pointsman: a run is created once, in the initial state of a run machine')),
            new.reason, new.actor, new.metadata);
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

CREATE TRIGGER run_has_an_id_of_its_kind BEFORE INSERT ON run
    WHEN new.id GLOB 'task_*' OR new.id GLOB 'worker_*' OR new.id GLOB 'breaker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a run does not begin like that of another kind');
END;

CREATE TRIGGER worker_has_an_id_of_its_kind BEFORE INSERT ON worker
    WHEN new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'task_*' OR new.id GLOB 'breaker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a worker does not begin like that of another kind');
END;

CREATE TRIGGER breaker_has_an_id_of_its_kind BEFORE INSERT ON breaker
    WHEN new.id GLOB 'run_*' OR new.id GLOB 'j_*' OR new.id GLOB 'task_*' OR new.id GLOB 'worker_*' BEGIN
    SELECT RAISE(ABORT, 'pointsman: the id of a breaker does not begin like that of another kind');
END;

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

CREATE TRIGGER run_keeps_its_rowid BEFORE UPDATE OF number, rowid, oid, _rowid_ ON run BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run keeps its place in the file');
END;

CREATE TRIGGER run_is_not_replaced BEFORE INSERT ON run
    WHEN EXISTS (SELECT 1 FROM run WHERE id = new.id OR number = new.number) BEGIN
    SELECT RAISE(ABORT, 'pointsman: this run exists already and cannot be replaced');
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

CREATE TRIGGER trail_is_not_changed BEFORE UPDATE ON trail BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be changed');
END;

CREATE TRIGGER trail_is_not_deleted BEFORE DELETE ON trail BEGIN
    SELECT RAISE(ABORT, 'pointsman: the audit trail cannot be deleted');
END;

CREATE TRIGGER rule_comes_before_its_machine BEFORE INSERT ON rule
    WHEN EXISTS (SELECT 1 FROM machine WHERE id = new.machine_id) BEGIN
    SELECT RAISE(ABORT, 'pointsman: a rule cannot be added to a machine; load a new version');
END;

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

CREATE VIEW clock AS
SELECT * FROM "pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.";

CREATE VIEW clock_correction AS
SELECT * FROM "pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.";

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

CREATE INDEX task_claimable ON task_state (lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated;

CREATE INDEX task_claimable_of_run ON task_state (run_number, lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate;

CREATE INDEX task_reclaimable ON task_state (lane_id) WHERE lease_expired;

CREATE INDEX task_held ON task_state (attempt_worker_id) WHERE current_attempt IS NOT NULL;

CREATE INDEX task_unfinished ON task_state (run_number, phase) WHERE outcome IS NULL OR outcome <> 'success';

CREATE INDEX task_of_parent ON task_state (parent_number, outcome) WHERE parent_number IS NOT NULL;

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

CREATE TRIGGER task_fits_its_spec AFTER INSERT ON task_state BEGIN
    SELECT CASE WHEN (SELECT outcome FROM run WHERE number = new.run_number) IS 'success'
                THEN RAISE(ABORT, 'pointsman: a run that has succeeded gets no more tasks')
                WHEN (SELECT (run_number, parent_number) IS NOT (new.run_number, new.parent_number) FROM task_spec WHERE number = new.number) IS NOT 0
                THEN RAISE(ABORT, 'pointsman: the two rows of a task have the same number, run and parent')
                WHEN (SELECT tenant FROM lane WHERE id = new.lane_id) IS NOT (SELECT tenant FROM task_spec WHERE number = new.number)
                THEN RAISE(ABORT, 'pointsman: the lane of a task is one of its tenant') END;
END;

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

CREATE TRIGGER dependency_comes_with_its_task BEFORE INSERT ON dependency
    WHEN new.task_id <> new.depends_on_id BEGIN
    SELECT RAISE(ABORT, 'pointsman: a task gets its dependencies when it is created, and counts those that are open')
     WHERE NOT EXISTS (SELECT 1 FROM task
                        WHERE id = new.task_id AND revision = 0
                          AND (open_dependencies > 0
                               OR EXISTS (SELECT 1 FROM task AS other WHERE other.id = new.depends_on_id AND other.outcome = 'success')));
END;

CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE OF outcome ON run
    WHEN new.outcome = 'success' AND old.outcome IS NOT 'success' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run succeeds only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM task_state WHERE run_number = new.number AND (outcome IS NULL OR outcome <> 'success'));
END;

CREATE TRIGGER run_is_validated_with_its_tasks AFTER UPDATE OF revision ON run
    WHEN new.revision <> old.revision BEGIN
    SELECT RAISE(ABORT, 'pointsman: a run is validated only when all of its tasks have succeeded')
     WHERE EXISTS (SELECT 1 FROM rule
                    WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state AND trigger = new.trigger
                      AND needs_dependencies = 1)
       AND EXISTS (SELECT 1 FROM task_state WHERE run_number = new.number AND (outcome IS NULL OR outcome <> 'success'));
END;

CREATE TRIGGER worker_ends_without_tasks AFTER UPDATE OF phase ON worker
    WHEN new.phase = 'done' AND old.phase <> 'done' BEGIN
    SELECT RAISE(ABORT, 'pointsman: a worker ends only when it holds no task')
     WHERE EXISTS (SELECT 1 FROM task_state WHERE attempt_worker_id = new.id AND current_attempt IS NOT NULL AND lease_expired = 0);
END;

CREATE TRIGGER trail_goes_on BEFORE INSERT ON trail
    WHEN new.revision < 0
      OR EXISTS (SELECT 1 FROM trail WHERE number = new.number AND kind = new.kind AND revision = new.revision)
      OR new.revision <= CASE new.kind WHEN 1 THEN (SELECT revision FROM task_state WHERE number = new.number)
                                       WHEN 0 THEN (SELECT revision FROM run WHERE number = new.number)
                                       WHEN 2 THEN (SELECT revision FROM worker WHERE number = new.number)
                                       WHEN 3 THEN (SELECT revision FROM breaker WHERE number = new.number) END IS NOT TRUE BEGIN
    SELECT RAISE(ABORT, 'pointsman: only the law writes the audit trail');
END;
