-- The tables. Keys and columns that queries sort by have the collation "C", so that PostgreSQL and SQLite sort alike. Tables of entities
-- that move are written often: they keep free space on their pages and are vacuumed early.

-- Readers cannot represent an instant after the year 9999, nor infinity.
CREATE DOMAIN instant AS timestamptz
    CONSTRAINT instant_is_in_the_calendar CHECK (value >= '1970-01-01 00:00:00+00' AND value < '10000-01-01 00:00:00+00');

CREATE TABLE tenant (
    id         text COLLATE "C" PRIMARY KEY,
    created_at instant NOT NULL
);

-- Every version of every machine that was ever loaded. An entity keeps the version with which it was created.
CREATE TABLE machine (
    id          integer PRIMARY KEY,
    name        text COLLATE "C" NOT NULL,
    version     integer NOT NULL CHECK (version > 0),
    kind        text NOT NULL CHECK (kind IN ('run', 'task', 'worker', 'breaker')),
    fingerprint text NOT NULL,
    lifecycle   text NOT NULL,
    definition  text NOT NULL,
    UNIQUE (name, version)
);

CREATE TABLE state (
    machine_id integer NOT NULL REFERENCES machine DEFERRABLE INITIALLY DEFERRED,
    name       text COLLATE "C" NOT NULL,
    phase      text NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome    text CHECK (outcome IN ('success', 'failure', 'canceled')),
    initial    boolean NOT NULL,
    kind       text NOT NULL,
    PRIMARY KEY (machine_id, name),
    CONSTRAINT state_done_has_outcome CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CONSTRAINT state_initial_is_not_done CHECK (NOT initial OR phase <> 'done')
);

-- The legal moves: one row for each, with the phase, the outcome and the needs of the state to which it leads.
CREATE TABLE rule (
    machine_id         integer NOT NULL REFERENCES machine DEFERRABLE INITIALLY DEFERRED,
    from_state         text COLLATE "C" NOT NULL,
    to_state           text COLLATE "C" NOT NULL,
    trigger            text COLLATE "C" NOT NULL,
    severity           text NOT NULL CHECK (severity IN ('info', 'warning', 'error', 'critical')),
    to_phase           text NOT NULL,
    to_outcome         text,
    needs_worker       boolean NOT NULL,
    needs_session      boolean NOT NULL,
    needs_dependencies boolean NOT NULL,
    PRIMARY KEY (machine_id, from_state, to_state, trigger),
    FOREIGN KEY (machine_id, from_state) REFERENCES state,
    FOREIGN KEY (machine_id, to_state) REFERENCES state
);

CREATE TABLE run (
    id            text COLLATE "C" PRIMARY KEY,
    tenant        text COLLATE "C" NOT NULL REFERENCES tenant,
    machine_id    integer NOT NULL REFERENCES machine,
    state         text COLLATE "C" NOT NULL,
    phase         text NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome       text CHECK (outcome IN ('success', 'failure', 'canceled')),
    revision      integer NOT NULL DEFAULT 0,
    trigger       text COLLATE "C" NOT NULL DEFAULT 'create',
    reason        text,
    actor         text,
    metadata      text CHECK (metadata IS JSON OBJECT),
    entered_at    instant NOT NULL,
    created_at    instant NOT NULL,
    started_at    instant,
    completed_at  instant,
    name          text NOT NULL,
    lifecycle     text NOT NULL,
    parent_run_id text COLLATE "C" REFERENCES run,
    depth         integer NOT NULL CHECK (depth BETWEEN 0 AND 5),
    worker_count  integer NOT NULL CHECK (worker_count BETWEEN 1 AND 10),
    allocates     boolean NOT NULL,
    missing_tasks integer NOT NULL CHECK (missing_tasks >= 0),
    has_checks    boolean NOT NULL,
    retry_count   integer NOT NULL,
    max_retries   integer NOT NULL,
    policy        text NOT NULL CHECK (policy IS JSON),
    budget_usd    numeric(14, 6) CHECK (budget_usd >= 0),
    spent_usd     numeric(14, 6) NOT NULL CHECK (spent_usd >= 0),
    promised_usd  numeric(14, 6) NOT NULL CHECK (promised_usd >= 0),
    reserved_usd  numeric(14, 6) NOT NULL CHECK (reserved_usd >= 0),
    error         text,
    payload       text NOT NULL,
    output        text,
    CONSTRAINT run_done_has_outcome CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CONSTRAINT run_done_is_completed CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CONSTRAINT run_starts_after_creation CHECK (started_at >= created_at),
    CONSTRAINT run_completes_after_start CHECK (completed_at >= coalesce(started_at, created_at)),
    CONSTRAINT run_depth_follows_parent CHECK ((depth = 0) = (parent_run_id IS NULL)),
    CONSTRAINT run_retries_in_bounds CHECK (retry_count BETWEEN 0 AND max_retries),
    -- Reservations must fit into the budget. Spent money is a fact, also beyond it.
    CONSTRAINT run_reservation_fits CHECK (reserved_usd = 0 OR spent_usd + reserved_usd <= budget_usd)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX run_of_tenant ON run (tenant, id);
CREATE INDEX run_with_workers ON run (created_at) WHERE allocates AND phase IN ('queued', 'active');

CREATE TABLE lane (
    id           integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tenant       text COLLATE "C" NOT NULL REFERENCES tenant,
    tool         text COLLATE "C",
    capabilities text NOT NULL,
    fails_fast   boolean NOT NULL
);

CREATE UNIQUE INDEX lane_once ON lane (tenant, coalesce(tool, ''), capabilities, fails_fast);

CREATE TABLE worker (
    id                   text COLLATE "C" PRIMARY KEY,
    tenant               text COLLATE "C" NOT NULL REFERENCES tenant,
    machine_id           integer NOT NULL REFERENCES machine,
    state                text COLLATE "C" NOT NULL,
    phase                text NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome              text CHECK (outcome IN ('success', 'failure', 'canceled')),
    revision             integer NOT NULL DEFAULT 0,
    trigger              text COLLATE "C" NOT NULL DEFAULT 'create',
    reason               text,
    actor                text,
    metadata             text CHECK (metadata IS JSON OBJECT),
    entered_at           instant NOT NULL,
    created_at           instant NOT NULL,
    started_at           instant,
    completed_at         instant,
    name                 text NOT NULL,
    lifecycle            text NOT NULL,
    serves               text NOT NULL CHECK (serves IS JSON ARRAY OR serves = '"all"'), -- besides its own tenant
    last_tenant          text COLLATE "C",
    capabilities         text NOT NULL CHECK (capabilities IS JSON),
    max_concurrent_tasks integer NOT NULL CHECK (max_concurrent_tasks > 0),
    lease_seconds        double precision NOT NULL CHECK (lease_seconds > 0),
    heartbeat_at         instant NOT NULL,
    missing              boolean NOT NULL,
    run_id               text COLLATE "C" REFERENCES run,
    drain_wanted         boolean NOT NULL,
    pause_wanted         boolean NOT NULL,
    error                text,
    CONSTRAINT worker_done_has_outcome CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CONSTRAINT worker_done_is_completed CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CONSTRAINT worker_starts_after_creation CHECK (started_at >= created_at),
    CONSTRAINT worker_completes_after_start CHECK (completed_at >= coalesce(started_at, created_at)),
    CONSTRAINT worker_done_has_no_run CHECK (run_id IS NULL OR phase <> 'done')
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX worker_alive ON worker (tenant, phase) WHERE phase <> 'done';
CREATE INDEX worker_shared ON worker (phase) WHERE serves <> '[]';
CREATE INDEX worker_of_run ON worker (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE task (
    id                  text COLLATE "C" PRIMARY KEY,
    tenant              text COLLATE "C" NOT NULL REFERENCES tenant,
    machine_id          integer NOT NULL REFERENCES machine,
    state               text COLLATE "C" NOT NULL,
    phase               text NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome             text CHECK (outcome IN ('success', 'failure', 'canceled')),
    revision            integer NOT NULL DEFAULT 0,
    trigger             text COLLATE "C" NOT NULL DEFAULT 'create',
    reason              text,
    actor               text,
    metadata            text CHECK (metadata IS JSON OBJECT),
    entered_at          instant NOT NULL,
    created_at          instant NOT NULL,
    started_at          instant,
    completed_at        instant,
    run_id              text COLLATE "C" NOT NULL REFERENCES run,
    parent_task_id      text COLLATE "C" REFERENCES task,
    depth               integer NOT NULL CHECK (depth BETWEEN 0 AND 5),
    position            integer NOT NULL,
    name                text COLLATE "C" NOT NULL,
    lane_id             integer NOT NULL REFERENCES lane,
    priority            integer NOT NULL,
    is_gate             boolean NOT NULL,
    critical            boolean NOT NULL,
    review_wanted       boolean NOT NULL,
    has_checks          boolean NOT NULL,
    has_subtasks        boolean NOT NULL,
    allocated           boolean NOT NULL,
    run_open            boolean NOT NULL,
    open_dependencies   integer NOT NULL CHECK (open_dependencies >= 0),
    available_at        instant,
    epoch               integer NOT NULL CHECK (epoch >= 0),
    current_attempt     integer,
    worker_id           text COLLATE "C",
    lease_expired       boolean NOT NULL,
    attempt_count       integer NOT NULL CHECK (attempt_count >= 0),
    max_attempts        integer,
    retry_count         integer NOT NULL,
    max_retries         integer NOT NULL,
    reclaim_count       integer NOT NULL,
    max_reclaims        integer NOT NULL,
    policy              text NOT NULL CHECK (policy IS JSON),
    budget_usd          numeric(14, 6) CHECK (budget_usd >= 0),
    cost_usd            numeric(14, 6) NOT NULL CHECK (cost_usd >= 0),
    reserved_usd        numeric(14, 6) NOT NULL CHECK (reserved_usd >= 0),
    session_id          text,
    keep_session        boolean NOT NULL,
    -- About the current attempt, or else the last one.
    attempt_worker_id   text COLLATE "C",
    attempt_started_at  instant,
    attempt_resumed     boolean NOT NULL,
    attempt_cost_usd    numeric(14, 6) NOT NULL CHECK (attempt_cost_usd >= 0),
    attempt_error       text,
    attempt_exit_code   integer,
    attempt_log_path    text,
    question            text,
    answer              text,
    comment             text,
    error               text,
    cancel_requested_at instant,
    payload             text NOT NULL,
    output              text,
    UNIQUE (run_id, name),
    CONSTRAINT task_done_has_outcome CHECK ((phase = 'done') = (outcome IS NOT NULL)),
    CONSTRAINT task_done_is_completed CHECK ((phase = 'done') = (completed_at IS NOT NULL)),
    CONSTRAINT task_active_has_attempt CHECK ((phase = 'active') = (current_attempt IS NOT NULL)),
    CONSTRAINT task_attempt_is_latest CHECK (current_attempt = epoch),
    CONSTRAINT task_worker_is_active CHECK (worker_id IS NULL OR phase = 'active'),
    CONSTRAINT task_attempt_has_begun
        CHECK (current_attempt IS NULL OR (attempt_worker_id IS NOT NULL AND attempt_started_at IS NOT NULL)),
    CONSTRAINT task_lost_lease_is_active CHECK (NOT lease_expired OR phase = 'active'),
    CONSTRAINT task_waits_before_it_runs CHECK (available_at IS NULL OR phase IN ('held', 'queued')),
    CONSTRAINT task_runs_when_free CHECK (phase <> 'active' OR (open_dependencies = 0 AND NOT is_gate)),
    CONSTRAINT task_attempts_in_bounds CHECK (max_attempts IS NULL OR attempt_count <= max_attempts),
    CONSTRAINT task_retries_in_bounds CHECK (retry_count BETWEEN 0 AND max_retries),
    CONSTRAINT task_reclaims_in_bounds CHECK (reclaim_count BETWEEN 0 AND max_reclaims),
    CONSTRAINT task_reserves_while_active CHECK (reserved_usd = 0 OR phase = 'active'),
    CONSTRAINT task_starts_after_creation CHECK (started_at >= created_at),
    CONSTRAINT task_completes_after_start CHECK (completed_at >= coalesce(started_at, created_at)),
    CONSTRAINT task_depth_follows_parent CHECK ((depth = 0) = (parent_task_id IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

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
    task_id       text COLLATE "C" NOT NULL REFERENCES task,
    depends_on_id text COLLATE "C" NOT NULL REFERENCES task,
    PRIMARY KEY (task_id, depends_on_id),
    CONSTRAINT dependency_on_another CHECK (task_id <> depends_on_id)
);

CREATE INDEX dependency_dependents ON dependency (depends_on_id);

-- Attempts that have ended; the law writes them. The current attempt is in the columns of its task. The law makes sure that task and
-- worker exist: foreign keys would lock both for every row.
CREATE TABLE attempt (
    task_id    text COLLATE "C" NOT NULL,
    epoch      integer NOT NULL CHECK (epoch > 0),
    tenant     text COLLATE "C" NOT NULL,
    worker_id  text COLLATE "C" NOT NULL,
    started_at instant NOT NULL,
    ended_at   instant NOT NULL,
    ended_by   text NOT NULL,
    error      text,
    exit_code  integer,
    cost_usd   numeric(14, 6) NOT NULL CHECK (cost_usd >= 0),
    session_id text,
    resumed    boolean NOT NULL,
    log_path   text,
    PRIMARY KEY (task_id, epoch),
    CONSTRAINT attempt_ends_after_start CHECK (ended_at >= started_at)
);

CREATE TABLE breaker (
    id                text COLLATE "C" PRIMARY KEY,
    tenant            text COLLATE "C" NOT NULL REFERENCES tenant,
    machine_id        integer NOT NULL REFERENCES machine,
    state             text COLLATE "C" NOT NULL,
    phase             text NOT NULL CHECK (phase IN ('held', 'queued', 'active', 'done')),
    outcome           text CHECK (outcome IN ('success', 'failure', 'canceled')),
    revision          integer NOT NULL DEFAULT 0,
    trigger           text COLLATE "C" NOT NULL DEFAULT 'create',
    reason            text,
    actor             text,
    metadata          text CHECK (metadata IS JSON OBJECT),
    entered_at        instant NOT NULL,
    created_at        instant NOT NULL,
    started_at        instant,
    completed_at      instant,
    tool              text COLLATE "C" NOT NULL,
    failure_count     integer NOT NULL CHECK (failure_count >= 0),
    failure_threshold integer NOT NULL CHECK (failure_threshold > 0),
    success_count     integer NOT NULL CHECK (success_count >= 0),
    success_threshold integer NOT NULL CHECK (success_threshold > 0),
    cooldown_seconds  double precision NOT NULL CHECK (cooldown_seconds >= 0),
    retry_at          instant,
    probe_task_id     text COLLATE "C" REFERENCES task,
    max_concurrent    integer CHECK (max_concurrent > 0),
    rate_count        integer CHECK (rate_count > 0),
    rate_seconds      double precision CHECK (rate_seconds > 0),
    begun             text NOT NULL CHECK (begun IS JSON),
    UNIQUE (tenant, tool),
    CONSTRAINT breaker_rate_is_whole CHECK ((rate_count IS NULL) = (rate_seconds IS NULL)),
    -- Only a half-open breaker has a probe, and only one.
    CONSTRAINT breaker_probes_while_active CHECK (probe_task_id IS NULL OR phase = 'active')
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX breaker_guarded ON breaker (tenant) WHERE phase <> 'queued' OR max_concurrent IS NOT NULL OR rate_count IS NOT NULL;

CREATE TABLE timer (
    entity_id text COLLATE "C" NOT NULL,
    purpose   text COLLATE "C" NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('run', 'task', 'worker', 'breaker')),
    tenant    text COLLATE "C" NOT NULL,
    run_id    text COLLATE "C",
    revision  integer NOT NULL,
    due_at    instant NOT NULL,
    PRIMARY KEY (entity_id, purpose)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX timer_due ON timer (due_at);

-- The audit trail, which is also the event stream. Only the triggers of the law write it.
CREATE TABLE transition (
    position         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant           text COLLATE "C" NOT NULL,
    kind             text NOT NULL,
    entity_id        text COLLATE "C" NOT NULL,
    revision         integer NOT NULL,
    run_id           text COLLATE "C",
    machine_id       integer NOT NULL,
    from_state       text COLLATE "C",
    to_state         text COLLATE "C" NOT NULL,
    trigger          text COLLATE "C" NOT NULL,
    severity         text NOT NULL,
    reason           text,
    actor            text,
    metadata         text,
    at               instant NOT NULL,
    seconds_in_state double precision
);

CREATE UNIQUE INDEX transition_of_entity ON transition (entity_id, revision);

-- Several transactions write at once, so a small position may be committed after a large one. Before a transaction writes, it takes a shared
-- advisory lock whose key is the last position that was assigned: its own positions will be larger. The lock lasts as long as the
-- transaction, so every position up to the smallest key held is settled. Positions are assigned while the entity is locked, so the moves of
-- each entity are in order.
--
-- Every role of the database can take advisory locks. So such a lock counts only if its transaction also holds the lock that it needs to
-- write to `transition`: only roles that may write can take that one.
CREATE FUNCTION stream_lock() RETURNS bigint LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (hashtext(current_schema()) & 32767)::bigint << 48;
END $$;

-- The key stays the same for the whole transaction, so that it needs one lock. Every session can set pointsman.announced to whatever it
-- likes. So the lock is taken again for each statement, which costs nothing, and a key that is too large does not count.
CREATE FUNCTION announce_moves() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned  bigint := coalesce(pg_sequence_last_value('transition_position_seq'), 0);
    announced text := current_setting('pointsman.announced', true);
    most_idle interval := '10 seconds';
BEGIN
    IF announced ~ '^[0-9]{1,18}$' THEN
        assigned := least(assigned, announced::bigint);
    END IF;
    -- Another role may hold the key exclusively. A smaller key bounds readers as well, so there is no need to wait.
    WHILE NOT pg_try_advisory_xact_lock_shared(stream_lock() + assigned) LOOP
        IF assigned = 0 THEN
            RAISE EXCEPTION 'pointsman: another session holds the advisory locks of the event stream' USING ERRCODE = 'lock_not_available';
        END IF;
        assigned := assigned - 1;
    END LOOP;
    IF announced IS DISTINCT FROM assigned::text THEN
        -- Readers wait for this transaction, so it must not be left open, at an SQL prompt or by a process that has stopped.
        IF current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 microsecond' AND most_idle THEN
            PERFORM set_config('idle_in_transaction_session_timeout', extract(milliseconds FROM most_idle)::integer::text, true);
        END IF;
        PERFORM set_config('pointsman.announced', assigned::text, true);
    END IF;
END $$;

-- The last settled position. Call this before the snapshot in which the stream is read. A transaction that is not writing yet when the locks
-- are read will be assigned positions after `assigned`, which was read before.
CREATE FUNCTION stream_end() RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned bigint := (SELECT last_value - (NOT is_called)::integer FROM transition_position_seq);
BEGIN
    RETURN (WITH held AS MATERIALIZED (
                SELECT * FROM pg_locks
                 WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND granted)
            SELECT least(assigned, min(((classid::bigint & 65535) << 32) + objid::bigint))
              FROM held
             WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = stream_lock() >> 48
               AND virtualtransaction IN (SELECT virtualtransaction FROM held
                                           WHERE locktype = 'relation' AND relation = 'transition'::regclass AND mode = 'RowExclusiveLock'));
END $$;

-- The hash chain over the audit trail. Each seal covers the transitions after `previous` up to `position`, and the seal before it.
CREATE TABLE seal (
    position  bigint PRIMARY KEY,
    previous  bigint NOT NULL UNIQUE,
    digest    text NOT NULL,
    sealed_at instant NOT NULL,
    CONSTRAINT seal_goes_on CHECK (position > previous)
);

-- Events that moved nothing: an entity has been in a state for longer than it should.
CREATE TABLE notice (
    position  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant    text COLLATE "C" NOT NULL,
    kind      text NOT NULL,
    entity_id text COLLATE "C" NOT NULL,
    run_id    text COLLATE "C",
    subject   text NOT NULL,
    message   text NOT NULL,
    at        instant NOT NULL
);

CREATE TABLE duty_failure (
    name      text COLLATE "C" NOT NULL,
    process   text COLLATE "C" NOT NULL,
    failures  integer NOT NULL CHECK (failures > 0),
    error     text NOT NULL,
    failed_at instant NOT NULL,
    PRIMARY KEY (name, process)
);

-- The correction of the clock: one row at most. Database time is what the clock shows plus the offset, which shrinks slowly. It
-- leads to an instant of the calendar.
CREATE TABLE clock (
    id             integer PRIMARY KEY CHECK (id = 1),
    revision       integer NOT NULL,
    offset_seconds double precision NOT NULL,
    corrected_at   instant NOT NULL,
    CONSTRAINT clock_stays_in_the_calendar CHECK (offset_seconds BETWEEN -extract(epoch FROM corrected_at) AND 4000000000)
);

CREATE TABLE idempotency_key (
    tenant       text COLLATE "C" NOT NULL REFERENCES tenant,
    endpoint     text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    request_hash text NOT NULL,
    status       integer NOT NULL,
    body         text NOT NULL,
    created_at   instant NOT NULL,
    expires_at   instant NOT NULL,
    PRIMARY KEY (tenant, endpoint, key),
    CONSTRAINT idempotency_key_expires_later CHECK (expires_at > created_at)
);

CREATE INDEX idempotency_key_expiry ON idempotency_key (expires_at);
