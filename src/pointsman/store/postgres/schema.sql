-- The whole schema, for readers: all migrations in one file. `make docs` writes it and a test compares it; never edit it.

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

-- The law: an entity moves only along a rule of its machine, and the database itself writes the audit trail.
--
-- A writer that knows the law increments `revision` with each move and sets `trigger`, `reason`, `actor`, `metadata` and `entered_at`.
-- A change of `state` alone was typed by hand: before it is stored, moved_by_hand sets what follows from the state, and then it is a move
-- like any other.
--
-- Moves are checked by statement, not by row: 100 rows cost one look at the rules. Row triggers exist only where their WHEN costs the
-- engine nothing. Every function keeps the search path with which it was created, so that no session can substitute another table.
--
-- The functions that read and write for the law run with the rights of the owner (SECURITY DEFINER): nobody else needs the right to write the
-- audit trail and the attempts, and comes_by_law can tell the law from a trigger of somebody else. So nobody else may execute them either:
-- as triggers of a temporary table they would audit what is in that table.

-- Refuses the change for which the trigger fires.
CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: %', TG_ARGV[0];
END $$;

-- Refuses a move, and says what is allowed.
CREATE FUNCTION refuse_move(entity_id text, of_machine integer, before text, after text, cause text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    called  text := (SELECT name || ' ' || version FROM machine WHERE id = of_machine);
    allowed text := (SELECT string_agg(to_state || ' : ' || trigger, ', ') FROM rule WHERE machine_id = of_machine AND from_state = before);
    fits    boolean := EXISTS (SELECT 1 FROM rule
                                WHERE machine_id = of_machine AND from_state = before AND to_state = after
                                  AND cause IN (trigger, 'by hand'));
BEGIN
    RAISE EXCEPTION 'pointsman: no rule of machine % allows % to move % -> % : % %', coalesce(called, of_machine::text), entity_id, before,
        after, cause, CASE WHEN fits THEN 'with this phase, outcome, revision, worker, session and open dependencies'
                           ELSE '(allowed: ' || coalesce(allowed, 'nothing') || ')' END;
END $$;

CREATE FUNCTION refuse_beginning(kind text, entity_id text, of_machine integer, state text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a % is created once, in the initial state of a % machine: not % in % of %',
        kind, kind, entity_id, state, coalesce((SELECT name || ' ' || version FROM machine WHERE id = of_machine), of_machine::text);
END $$;

-- Creation

-- For runs, workers and breakers. Only workers have a column run_id, so it is read by its name, which is slow but rare.
CREATE FUNCTION entity_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT entity.tenant, TG_TABLE_NAME, entity.id, 0,
           CASE TG_TABLE_NAME WHEN 'run' THEN entity.id ELSE to_jsonb(entity) ->> 'run_id' END,
           entity.machine_id, NULL, entity.state, 'create',
           coalesce((SELECT 'info' FROM state
                      WHERE state.machine_id = entity.machine_id AND state.name = entity.state AND state.initial
                        AND state.kind = TG_TABLE_NAME AND state.phase = entity.phase
                        AND state.outcome IS NOT DISTINCT FROM entity.outcome AND entity.revision = 0),
                    refuse_beginning(TG_TABLE_NAME, entity.id, entity.machine_id, entity.state)),
           entity.reason, entity.actor, entity.metadata, entity.created_at, NULL
      FROM new_rows AS entity;
    RETURN NULL;
END $$;

CREATE FUNCTION task_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    runs  text[] := ARRAY(SELECT DISTINCT run_id FROM new_rows ORDER BY run_id);
    ended text;
BEGIN
    -- The lock keeps the runs from succeeding before this transaction ends. The engine holds a stronger one already.
    PERFORM 1 FROM run WHERE id = ANY(runs) ORDER BY id FOR SHARE;
    ended := (SELECT id FROM run WHERE id = ANY(runs) AND outcome = 'success' LIMIT 1);
    IF ended IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run that has succeeded gets no more tasks, and % has', ended;
    END IF;
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT task.tenant, 'task', task.id, 0, task.run_id, task.machine_id, NULL, task.state, 'create',
           coalesce((SELECT 'info' FROM state
                      WHERE state.machine_id = task.machine_id AND state.name = task.state AND state.initial
                        AND state.kind = 'task' AND state.phase = task.phase
                        AND state.outcome IS NOT DISTINCT FROM task.outcome AND task.revision = 0
                        AND task.epoch = 0 AND task.attempt_worker_id IS NULL),
                    refuse_beginning('task', task.id, task.machine_id, task.state)),
           task.reason, task.actor, task.metadata, task.created_at, NULL
      FROM new_rows AS task;
    RETURN NULL;
END $$;

CREATE TRIGGER run_begins AFTER INSERT ON run REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION entity_begins();
CREATE TRIGGER task_begins AFTER INSERT ON task REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION task_begins();
CREATE TRIGGER worker_begins AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION entity_begins();
CREATE TRIGGER breaker_begins AFTER INSERT ON breaker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION entity_begins();

-- Moves

-- The planner has no statistics of transition tables and keeps the plan of the first batch, which may have had one row: so it must hash.
CREATE FUNCTION entity_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT entity.tenant, TG_TABLE_NAME, entity.id, entity.revision,
           CASE TG_TABLE_NAME WHEN 'run' THEN entity.id ELSE to_jsonb(entity) ->> 'run_id' END,
           entity.machine_id, was.state, entity.state, entity.trigger,
           coalesce((SELECT severity FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = entity.state
                        AND rule.trigger = entity.trigger AND rule.to_phase = entity.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM entity.outcome AND entity.revision = was.revision + 1),
                    refuse_move(entity.id, was.machine_id, was.state, entity.state, entity.trigger)),
           entity.reason, entity.actor, entity.metadata, entity.entered_at,
           extract(epoch FROM entity.entered_at - was.entered_at)::double precision
      FROM new_rows AS entity JOIN old_rows AS was ON was.id = entity.id
     WHERE entity.revision <> was.revision;
    RETURN NULL;
END $$;

-- A state of a task may need a worker, a session or met dependencies, and only a move begins or ends an attempt. The move that ends an
-- attempt writes its row. If another attempt takes over in the same move, the new row is about that one, and the old row about the attempt
-- that ends.
CREATE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    WITH moved AS MATERIALIZED (
        SELECT task.tenant, task.id, task.revision, task.run_id, task.machine_id, was.state AS from_state, task.state AS to_state,
               task.trigger, task.reason, task.actor, task.metadata, task.entered_at, was.entered_at AS since,
               coalesce((SELECT severity FROM rule
                          WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = task.state
                            AND rule.trigger = task.trigger AND rule.to_phase = task.phase
                            AND rule.to_outcome IS NOT DISTINCT FROM task.outcome AND task.revision = was.revision + 1
                            AND needs_worker = (task.worker_id IS NOT NULL)
                            AND (NOT needs_session OR task.session_id IS NOT NULL)
                            AND (NOT needs_dependencies OR task.open_dependencies = 0)
                            -- A new attempt has the next epoch; otherwise the epoch stays.
                            AND task.epoch = was.epoch + (task.current_attempt IS NOT NULL
                                                          AND task.current_attempt IS DISTINCT FROM was.current_attempt)::integer
                            -- The worker is the worker of the attempt, begins it itself, and serves the tenant.
                            AND (task.worker_id IS NULL OR task.worker_id = task.attempt_worker_id)
                            AND (task.epoch = was.epoch OR task.actor = task.attempt_worker_id)
                            AND (task.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id
                                 OR EXISTS (SELECT 1 FROM worker
                                             WHERE worker.id = task.attempt_worker_id
                                               AND (worker.tenant = task.tenant OR worker.serves = '"all"'
                                                    OR worker.serves::jsonb ? task.tenant)))),
                        refuse_move(task.id, was.machine_id, was.state, task.state, task.trigger)) AS severity,
               was.current_attempt AS ended, was.attempt_worker_id AS worker_id, was.attempt_started_at AS started_at,
               was.attempt_resumed AS resumed, task.current_attempt IS DISTINCT FROM was.current_attempt AS lets_go,
               CASE WHEN task.current_attempt IS NULL THEN task.session_id ELSE was.session_id END AS session_id,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_cost_usd ELSE was.attempt_cost_usd END AS cost_usd,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_error ELSE was.attempt_error END AS error,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_exit_code ELSE was.attempt_exit_code END AS exit_code,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_log_path ELSE was.attempt_log_path END AS log_path
          FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
         WHERE task.revision <> was.revision
    ), attempts AS (
        INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error,
                             exit_code, log_path)
        SELECT id, ended, tenant, worker_id, started_at, greatest(entered_at, started_at), trigger, resumed, session_id, cost_usd, error,
               exit_code, log_path
          FROM moved
         WHERE ended IS NOT NULL AND lets_go
    )
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT tenant, 'task', id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor, metadata,
           entered_at, extract(epoch FROM entered_at - since)::double precision
      FROM moved;
    RETURN NULL;
END $$;

CREATE TRIGGER run_moves AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION entity_moves();
CREATE TRIGGER task_moves AFTER UPDATE ON task REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION task_moves();
CREATE TRIGGER worker_moves AFTER UPDATE ON worker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION entity_moves();
CREATE TRIGGER breaker_moves AFTER UPDATE ON breaker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION entity_moves();

-- Hand-typed changes

CREATE FUNCTION moved_by_hand() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    IF TG_TABLE_NAME = 'task' THEN
        -- No hand-typed change begins an attempt: nothing would run.
        SELECT * INTO track FROM rule
         WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
           AND NOT needs_worker AND to_phase <> 'active'
           AND (NOT needs_session OR new.session_id IS NOT NULL) AND (NOT needs_dependencies OR new.open_dependencies = 0)
         ORDER BY trigger LIMIT 1;
    ELSE
        SELECT * INTO track FROM rule
         WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
         ORDER BY trigger LIMIT 1;
    END IF;
    IF NOT FOUND THEN
        PERFORM refuse_move(old.id, old.machine_id, old.state, new.state, 'by hand');
    END IF;
    new.phase := track.to_phase;
    new.outcome := track.to_outcome;
    new.revision := old.revision + 1;
    new.trigger := track.trigger;
    new.reason := CASE WHEN new.reason IS DISTINCT FROM old.reason THEN new.reason END;
    new.actor := 'sql';
    new.metadata := NULL;
    new.entered_at := greatest(old.entered_at, clock_timestamp());
    new.started_at := CASE WHEN new.phase = 'active' THEN coalesce(old.started_at, new.entered_at) ELSE old.started_at END;
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    IF TG_TABLE_NAME = 'task' THEN
        new.current_attempt := NULL;
        new.worker_id := NULL;
        new.lease_expired := false;
        new.reserved_usd := 0;
        new.available_at := NULL;
    ELSIF TG_TABLE_NAME = 'worker' AND new.phase = 'done' THEN
        new.run_id := NULL;
    ELSIF TG_TABLE_NAME = 'breaker' THEN
        new.probe_task_id := NULL;
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER run_moved_by_hand BEFORE UPDATE OF state ON run FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION moved_by_hand();
CREATE TRIGGER task_moved_by_hand BEFORE UPDATE OF state ON task FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION moved_by_hand();
CREATE TRIGGER worker_moved_by_hand BEFORE UPDATE OF state ON worker FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION moved_by_hand();
CREATE TRIGGER breaker_moved_by_hand BEFORE UPDATE OF state ON breaker FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION moved_by_hand();

-- What only a move changes

CREATE FUNCTION phase_follows_state() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM state WHERE machine_id = new.machine_id AND name = new.state
                      AND phase = new.phase AND outcome IS NOT DISTINCT FROM new.outcome) THEN
        RAISE EXCEPTION 'pointsman: only a move changes the phase of a %; change its state instead', TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER run_phase_follows_state AFTER UPDATE OF phase, outcome ON run FOR EACH ROW
    WHEN (new.revision = old.revision AND (new.phase <> old.phase OR new.outcome IS DISTINCT FROM old.outcome))
    EXECUTE FUNCTION phase_follows_state();
CREATE TRIGGER task_phase_follows_state AFTER UPDATE OF phase, outcome ON task FOR EACH ROW
    WHEN (new.revision = old.revision AND (new.phase <> old.phase OR new.outcome IS DISTINCT FROM old.outcome))
    EXECUTE FUNCTION phase_follows_state();
CREATE TRIGGER worker_phase_follows_state AFTER UPDATE OF phase, outcome ON worker FOR EACH ROW
    WHEN (new.revision = old.revision AND (new.phase <> old.phase OR new.outcome IS DISTINCT FROM old.outcome))
    EXECUTE FUNCTION phase_follows_state();
CREATE TRIGGER breaker_phase_follows_state AFTER UPDATE OF phase, outcome ON breaker FOR EACH ROW
    WHEN (new.revision = old.revision AND (new.phase <> old.phase OR new.outcome IS DISTINCT FROM old.outcome))
    EXECUTE FUNCTION phase_follows_state();

-- The cause of a state, its times and the output come with the move. So do the worker of a task, its attempt and its epoch: only states that
-- need a worker have one, no attempt ends without its row, and every epoch before the last has its attempt. The comparison is in the function,
-- because PostgreSQL reads the text of a WHEN again for every statement. For tasks this fires before task_moved_by_hand, which sets some of them.
CREATE FUNCTION changes_by_a_move() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF new.state = old.state
       AND (new.trigger, new.reason, new.actor, new.metadata, new.entered_at, new.started_at, new.completed_at)
           IS DISTINCT FROM (old.trigger, old.reason, old.actor, old.metadata, old.entered_at, old.started_at, old.completed_at) THEN
        RAISE EXCEPTION 'pointsman: only a move changes the times and the cause of a %; change its state instead', TG_TABLE_NAME;
    END IF;
    IF TG_TABLE_NAME IN ('run', 'task') THEN
        IF new.state = old.state AND new.output IS DISTINCT FROM old.output THEN
            RAISE EXCEPTION 'pointsman: only a move changes the output of a %; change its state instead', TG_TABLE_NAME;
        END IF;
    END IF;
    IF TG_TABLE_NAME = 'task' THEN
        IF new.epoch <> old.epoch OR new.attempt_worker_id IS DISTINCT FROM old.attempt_worker_id
           OR (new.worker_id IS DISTINCT FROM old.worker_id AND new.worker_id IS NOT NULL)
           OR (new.state = old.state
               AND (new.worker_id, new.current_attempt) IS DISTINCT FROM (old.worker_id, old.current_attempt)) THEN
            RAISE EXCEPTION 'pointsman: only a move changes the worker, attempt and epoch of a task; change its state instead';
        END IF;
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER run_changes_by_a_move
    BEFORE UPDATE OF trigger, reason, actor, metadata, entered_at, started_at, completed_at, output ON run FOR EACH ROW
    WHEN (new.revision = old.revision) EXECUTE FUNCTION changes_by_a_move();
CREATE TRIGGER task_changes_by_a_move
    BEFORE UPDATE OF trigger, reason, actor, metadata, entered_at, started_at, completed_at, output, worker_id, attempt_worker_id,
                     current_attempt, epoch ON task FOR EACH ROW
    WHEN (new.revision = old.revision) EXECUTE FUNCTION changes_by_a_move();
CREATE TRIGGER worker_changes_by_a_move
    BEFORE UPDATE OF trigger, reason, actor, metadata, entered_at, started_at, completed_at ON worker FOR EACH ROW
    WHEN (new.revision = old.revision) EXECUTE FUNCTION changes_by_a_move();
CREATE TRIGGER breaker_changes_by_a_move
    BEFORE UPDATE OF trigger, reason, actor, metadata, entered_at, started_at, completed_at ON breaker FOR EACH ROW
    WHEN (new.revision = old.revision) EXECUTE FUNCTION changes_by_a_move();

-- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
CREATE FUNCTION task_waits_for_others() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM dependency JOIN task AS other ON other.id = dependency.depends_on_id
                WHERE dependency.task_id = new.id AND (other.outcome IS NULL OR other.outcome <> 'success')) THEN
        RAISE EXCEPTION 'pointsman: a task waits until all tasks that it depends on have succeeded, and % depends on others', new.id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER task_waits_for_others AFTER UPDATE OF open_dependencies ON task FOR EACH ROW
    WHEN (new.open_dependencies = 0 AND old.open_dependencies > 0) EXECUTE FUNCTION task_waits_for_others();

CREATE FUNCTION run_succeeds_with_its_tasks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    too_soon text := (
        SELECT run.id FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
         WHERE run.outcome = 'success' AND was.outcome IS DISTINCT FROM 'success'
           AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
         LIMIT 1);
BEGIN
    IF too_soon IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run succeeds only when all of its tasks have succeeded, and % has others', too_soon;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER run_succeeds_with_its_tasks AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION run_succeeds_with_its_tasks();

-- What nothing changes

CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     max_retries, policy, payload ON run FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
           new.allocates, new.has_checks, new.max_retries, new.policy, new.payload)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
           old.allocates, old.has_checks, old.max_retries, old.policy, old.payload))
    EXECUTE FUNCTION forbid('a run keeps its id, machine, tenant, payload and everything else that it was created with');
CREATE TRIGGER task_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, run_id, parent_task_id, depth, position, name, lane_id, priority, is_gate,
                     critical, review_wanted, has_checks, allocated, max_attempts, max_retries, max_reclaims, policy, budget_usd, payload ON task FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.run_id, new.parent_task_id, new.depth, new.position, new.name,
           new.lane_id, new.priority, new.is_gate, new.critical, new.review_wanted, new.has_checks, new.allocated, new.max_attempts,
           new.max_retries, new.max_reclaims, new.policy, new.budget_usd, new.payload)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.run_id, old.parent_task_id, old.depth, old.position, old.name,
           old.lane_id, old.priority, old.is_gate, old.critical, old.review_wanted, old.has_checks, old.allocated, old.max_attempts,
           old.max_retries, old.max_reclaims, old.policy, old.budget_usd, old.payload))
    EXECUTE FUNCTION forbid('a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, lease_seconds ON worker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.lease_seconds)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.lease_seconds))
    EXECUTE FUNCTION forbid('a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');
CREATE TRIGGER breaker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, tool ON breaker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.tool)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.tool))
    EXECUTE FUNCTION forbid('a breaker keeps its id, machine, tenant and tool');

CREATE TRIGGER run_is_not_deleted BEFORE DELETE OR TRUNCATE ON run EXECUTE FUNCTION forbid('a run cannot be deleted');
CREATE TRIGGER task_is_not_deleted BEFORE DELETE OR TRUNCATE ON task EXECUTE FUNCTION forbid('a task cannot be deleted');
CREATE TRIGGER worker_is_not_deleted BEFORE DELETE OR TRUNCATE ON worker EXECUTE FUNCTION forbid('a worker cannot be deleted');
CREATE TRIGGER breaker_is_not_deleted BEFORE DELETE OR TRUNCATE ON breaker EXECUTE FUNCTION forbid('a breaker cannot be deleted');

CREATE TRIGGER attempt_is_not_changed BEFORE UPDATE ON attempt EXECUTE FUNCTION forbid('an attempt that has ended cannot be changed');
CREATE TRIGGER attempt_is_not_deleted BEFORE DELETE OR TRUNCATE ON attempt EXECUTE FUNCTION forbid('an attempt cannot be deleted');

CREATE TRIGGER transition_is_not_changed BEFORE UPDATE ON transition EXECUTE FUNCTION forbid('the audit trail cannot be changed');
CREATE TRIGGER transition_is_not_deleted BEFORE DELETE OR TRUNCATE ON transition EXECUTE FUNCTION forbid('the audit trail cannot be deleted');

CREATE TRIGGER dependency_is_not_changed BEFORE UPDATE ON dependency EXECUTE FUNCTION forbid('a dependency cannot be changed');
CREATE TRIGGER dependency_is_not_deleted BEFORE DELETE OR TRUNCATE ON dependency EXECUTE FUNCTION forbid('a dependency cannot be deleted');
CREATE TRIGGER tenant_is_not_changed BEFORE UPDATE ON tenant EXECUTE FUNCTION forbid('a tenant cannot be changed');
CREATE TRIGGER tenant_is_not_deleted BEFORE DELETE OR TRUNCATE ON tenant EXECUTE FUNCTION forbid('a tenant cannot be deleted');
CREATE TRIGGER lane_is_not_changed BEFORE UPDATE ON lane EXECUTE FUNCTION forbid('a lane cannot be changed');
CREATE TRIGGER lane_is_not_deleted BEFORE DELETE OR TRUNCATE ON lane EXECUTE FUNCTION forbid('a lane cannot be deleted');
CREATE TRIGGER seal_is_not_changed BEFORE UPDATE ON seal EXECUTE FUNCTION forbid('a seal cannot be changed');
CREATE TRIGGER seal_is_not_deleted BEFORE DELETE OR TRUNCATE ON seal EXECUTE FUNCTION forbid('a seal cannot be deleted');

CREATE TRIGGER machine_is_not_changed BEFORE UPDATE ON machine EXECUTE FUNCTION forbid('a machine cannot be changed; load a new version');
CREATE TRIGGER machine_is_not_deleted BEFORE DELETE OR TRUNCATE ON machine EXECUTE FUNCTION forbid('a machine cannot be deleted');
CREATE TRIGGER state_is_not_changed BEFORE UPDATE ON state
    EXECUTE FUNCTION forbid('a state cannot be changed; load a new version of its machine');
CREATE TRIGGER state_is_not_deleted BEFORE DELETE OR TRUNCATE ON state
    EXECUTE FUNCTION forbid('a state cannot be deleted; load a new version of its machine');
CREATE TRIGGER rule_is_not_changed BEFORE UPDATE ON rule
    EXECUTE FUNCTION forbid('a rule cannot be changed; load a new version of its machine');
CREATE TRIGGER rule_is_not_deleted BEFORE DELETE OR TRUNCATE ON rule
    EXECUTE FUNCTION forbid('a rule cannot be deleted; load a new version of its machine');

-- What only the law writes

-- States and rules are inserted before their machine; afterwards none can be added.
CREATE FUNCTION comes_before_its_machine() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM new_rows JOIN machine ON machine.id = new_rows.machine_id) THEN
        RAISE EXCEPTION 'pointsman: a % cannot be added to a machine; load a new version', TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER state_comes_before_its_machine AFTER INSERT ON state REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION comes_before_its_machine();
CREATE TRIGGER rule_comes_before_its_machine AFTER INSERT ON rule REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION comes_before_its_machine();

-- A machine with the largest number of all would leave none for the next.
CREATE FUNCTION has_the_next_number() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF new.id <> (SELECT coalesce(max(id), 0) + 1 FROM machine) THEN
        RAISE EXCEPTION 'pointsman: a new machine has the next number';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER machine_has_the_next_number BEFORE INSERT ON machine FOR EACH ROW EXECUTE FUNCTION has_the_next_number();

CREATE FUNCTION continues_the_last_one() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF new.previous <> (SELECT coalesce(max(position), 0) FROM seal)
       OR new.position > (SELECT coalesce(max(position), 0) FROM transition) THEN
        RAISE EXCEPTION 'pointsman: a seal continues the last one, and ends with a transition';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER seal_continues_the_last_one BEFORE INSERT ON seal FOR EACH ROW EXECUTE FUNCTION continues_the_last_one();

-- The law writes inside of a trigger, as the owner, who may create triggers here. A trigger of another role's temporary table writes as that
-- role. This runs for every statement, so it sets no search path of its own, and names the schema of all that it uses instead.
CREATE FUNCTION comes_by_law() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.<) 2 OR NOT pg_catalog.has_table_privilege(TG_RELID, 'TRIGGER') THEN
        RAISE EXCEPTION 'pointsman: only the law writes %', TG_ARGV[0];
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER transition_goes_on BEFORE INSERT ON transition FOR EACH STATEMENT EXECUTE FUNCTION comes_by_law('the audit trail');
CREATE TRIGGER attempt_was_current BEFORE INSERT ON attempt FOR EACH STATEMENT EXECUTE FUNCTION comes_by_law('attempts');

REVOKE EXECUTE ON FUNCTION entity_begins(), task_begins(), entity_moves(), task_moves(), moved_by_hand(), phase_follows_state(),
    run_succeeds_with_its_tasks(), task_waits_for_others(), comes_before_its_machine(), has_the_next_number(), continues_the_last_one()
    FROM PUBLIC;

-- The task that checks a run when all others have succeeded.

ALTER TABLE run ADD COLUMN final_task text CHECK (final_task IS JSON);

DROP TRIGGER run_keeps_what_it_began_with ON run;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload ON run FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
           new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
           old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload))
    EXECUTE FUNCTION forbid('a run keeps its id, machine, tenant, payload and everything else that it was created with');

-- A worker is terminated when its processes have ended, or its lease has run out.

ALTER TABLE worker ADD COLUMN terminate_wanted boolean NOT NULL DEFAULT false;

-- The invariants of document 002. A rule of a run that needs its tasks uses the same column as a rule of a task that needs its dependencies.

ALTER TABLE rule DISABLE TRIGGER rule_is_not_changed;
UPDATE rule SET needs_dependencies = true
 WHERE (to_outcome = 'success' OR to_state IN ('VALIDATING', 'validating'))
   AND machine_id IN (SELECT id FROM machine
                       WHERE name IN ('standard.run', 'pipeline.workstream', 'orchestrated.workstream', 'approval.run'));
ALTER TABLE rule ENABLE TRIGGER rule_is_not_changed;

CREATE OR REPLACE FUNCTION run_succeeds_with_its_tasks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    too_soon text := (
        SELECT run.id FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
         WHERE run.revision <> was.revision
           AND (run.outcome = 'success'
                OR (SELECT true FROM rule
                     WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                       AND rule.trigger = run.trigger AND rule.needs_dependencies))
           AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
         LIMIT 1);
BEGIN
    IF too_soon IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run is validated and succeeds only when all of its tasks have succeeded, and % has others', too_soon;
    END IF;
    RETURN NULL;
END $$;

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM new_rows JOIN task ON task.id = new_rows.task_id
                WHERE task.revision > 0
                   OR (task.open_dependencies = 0
                       AND (SELECT outcome FROM task AS other WHERE other.id = new_rows.depends_on_id) IS DISTINCT FROM 'success')) THEN
        RAISE EXCEPTION 'pointsman: a task gets its dependencies when it is created, and counts those that are open';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER dependency_comes_with_its_task AFTER INSERT ON dependency REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION dependency_comes_with_its_task();

CREATE TRIGGER attempt_stays_lost BEFORE UPDATE OF lease_expired ON task FOR EACH ROW
    WHEN (old.lease_expired AND NOT new.lease_expired AND new.current_attempt IS NOT DISTINCT FROM old.current_attempt)
    EXECUTE FUNCTION forbid('an attempt that has lost its lease does not get it back');

CREATE FUNCTION worker_ends_without_tasks() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM task WHERE attempt_worker_id = new.id AND current_attempt IS NOT NULL AND NOT lease_expired) THEN
        RAISE EXCEPTION 'pointsman: a worker ends only when it holds no task, and % holds some', new.id;
    END IF;
    RETURN NULL;
END $$;
-- A change of state by hand gets its phase from moved_by_hand, and does not name that column.
CREATE TRIGGER worker_ends_without_tasks AFTER UPDATE OF state, phase ON worker FOR EACH ROW
    WHEN (new.phase = 'done' AND old.phase <> 'done') EXECUTE FUNCTION worker_ends_without_tasks();
CREATE TRIGGER worker_is_heard_of_while_it_lives BEFORE UPDATE OF heartbeat_at ON worker FOR EACH ROW
    WHEN (new.heartbeat_at <> old.heartbeat_at AND (old.phase = 'done' OR new.missing))
    EXECUTE FUNCTION forbid('only a worker that is alive and not missing has a heartbeat');

-- Lists of runs begin with the newest. Ids do not say which that is: those of jobs are random (document 000).
DROP INDEX run_of_tenant;
CREATE INDEX run_of_tenant ON run (tenant, created_at, id);

-- A worker that `pointsman run` starts claims tasks of one run only, so no other run may have it allocated.
ALTER TABLE worker ADD COLUMN only_run_id text REFERENCES run;

-- Only a worker that has not ended begins an attempt, and no more of them than it may hold. A lost attempt does not count, and stays lost.
-- Both databases check the room of a worker when it begins an attempt, and at no other change of a task. A worker that an older version
-- left with too many tasks can still end them. Which of its attempts have begun in this statement is asked only about a worker without room:
-- that join would cost too much for every move.
CREATE FUNCTION attempt_finds_room() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    overloaded text[] := ARRAY(
        SELECT worker.id FROM worker
         WHERE worker.id IN (SELECT attempt_worker_id FROM new_rows WHERE current_attempt IS NOT NULL AND NOT lease_expired)
           AND (worker.phase = 'done'
                OR worker.max_concurrent_tasks < (SELECT count(*) FROM task AS held
                                                   WHERE held.attempt_worker_id = worker.id AND held.current_attempt IS NOT NULL
                                                     AND NOT held.lease_expired)));
    refused text;
BEGIN
    IF overloaded <> '{}' THEN
        refused := (SELECT began.attempt_worker_id FROM new_rows AS began JOIN old_rows AS was ON was.id = began.id
                     WHERE began.attempt_worker_id = ANY (overloaded) AND began.epoch <> was.epoch
                       AND began.current_attempt IS NOT NULL AND NOT began.lease_expired
                     LIMIT 1);
        IF refused IS NOT NULL THEN
            RAISE EXCEPTION 'pointsman: a worker that has ended gets no task, and no worker gets more than it may hold: %', refused;
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER attempt_finds_room AFTER UPDATE ON task REFERENCING NEW TABLE AS new_rows OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION attempt_finds_room();

-- What a worker says of itself, for people and programs. The column `metadata` belongs to its last move.
ALTER TABLE worker ADD COLUMN worker_metadata text NOT NULL DEFAULT '{}' CHECK (worker_metadata IS JSON OBJECT);

DROP TRIGGER worker_keeps_what_it_began_with ON worker;
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata
    ON worker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
           new.lease_seconds, new.only_run_id, new.worker_metadata)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
           old.lease_seconds, old.only_run_id, old.worker_metadata))
    EXECUTE FUNCTION forbid('a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');

REVOKE EXECUTE ON FUNCTION dependency_comes_with_its_task(), attempt_finds_room(), worker_ends_without_tasks() FROM PUBLIC;

-- A tool that has reached its usage limit says when that ends: its circuit is open until then, at least.
ALTER TABLE breaker ADD COLUMN limited_until instant;

-- What agents use: tokens, and whether some of the cost is an estimate. Summed up for each attempt, task and run.
ALTER TABLE attempt
    ADD COLUMN tokens_in bigint NOT NULL DEFAULT 0 CHECK (tokens_in >= 0),
    ADD COLUMN tokens_out bigint NOT NULL DEFAULT 0 CHECK (tokens_out >= 0),
    ADD COLUMN cost_is_estimated boolean NOT NULL DEFAULT false;
ALTER TABLE task
    ADD COLUMN tokens_in bigint NOT NULL DEFAULT 0 CHECK (tokens_in >= 0),
    ADD COLUMN tokens_out bigint NOT NULL DEFAULT 0 CHECK (tokens_out >= 0),
    ADD COLUMN cost_is_estimated boolean NOT NULL DEFAULT false;
ALTER TABLE task
    ADD COLUMN attempt_tokens_in bigint NOT NULL DEFAULT 0 CHECK (attempt_tokens_in >= 0),
    ADD COLUMN attempt_tokens_out bigint NOT NULL DEFAULT 0 CHECK (attempt_tokens_out >= 0),
    ADD COLUMN attempt_cost_is_estimated boolean NOT NULL DEFAULT false;
ALTER TABLE run
    ADD COLUMN tokens_in bigint NOT NULL DEFAULT 0 CHECK (tokens_in >= 0),
    ADD COLUMN tokens_out bigint NOT NULL DEFAULT 0 CHECK (tokens_out >= 0),
    ADD COLUMN cost_is_estimated boolean NOT NULL DEFAULT false;

CREATE OR REPLACE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    WITH moved AS MATERIALIZED (
        SELECT task.tenant, task.id, task.revision, task.run_id, task.machine_id, was.state AS from_state, task.state AS to_state,
               task.trigger, task.reason, task.actor, task.metadata, task.entered_at, was.entered_at AS since,
               coalesce((SELECT severity FROM rule
                          WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = task.state
                            AND rule.trigger = task.trigger AND rule.to_phase = task.phase
                            AND rule.to_outcome IS NOT DISTINCT FROM task.outcome AND task.revision = was.revision + 1
                            AND needs_worker = (task.worker_id IS NOT NULL)
                            AND (NOT needs_session OR task.session_id IS NOT NULL)
                            AND (NOT needs_dependencies OR task.open_dependencies = 0)
                            -- A new attempt has the next epoch; otherwise the epoch stays.
                            AND task.epoch = was.epoch + (task.current_attempt IS NOT NULL
                                                          AND task.current_attempt IS DISTINCT FROM was.current_attempt)::integer
                            -- The worker is the worker of the attempt, begins it itself, and serves the tenant.
                            AND (task.worker_id IS NULL OR task.worker_id = task.attempt_worker_id)
                            AND (task.epoch = was.epoch OR task.actor = task.attempt_worker_id)
                            AND (task.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id
                                 OR EXISTS (SELECT 1 FROM worker
                                             WHERE worker.id = task.attempt_worker_id
                                               AND (worker.tenant = task.tenant OR worker.serves = '"all"'
                                                    OR worker.serves::jsonb ? task.tenant)))),
                        refuse_move(task.id, was.machine_id, was.state, task.state, task.trigger)) AS severity,
               was.current_attempt AS ended, was.attempt_worker_id AS worker_id, was.attempt_started_at AS started_at,
               was.attempt_resumed AS resumed, task.current_attempt IS DISTINCT FROM was.current_attempt AS lets_go,
               CASE WHEN task.current_attempt IS NULL THEN task.session_id ELSE was.session_id END AS session_id,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_cost_usd ELSE was.attempt_cost_usd END AS cost_usd,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_tokens_in ELSE was.attempt_tokens_in END AS tokens_in,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_tokens_out ELSE was.attempt_tokens_out END AS tokens_out,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_cost_is_estimated
                    ELSE was.attempt_cost_is_estimated END AS cost_is_estimated,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_error ELSE was.attempt_error END AS error,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_exit_code ELSE was.attempt_exit_code END AS exit_code,
               CASE WHEN task.current_attempt IS NULL THEN task.attempt_log_path ELSE was.attempt_log_path END AS log_path
          FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
         WHERE task.revision <> was.revision
    ), attempts AS (
        INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error,
                             exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
        SELECT id, ended, tenant, worker_id, started_at, greatest(entered_at, started_at), trigger, resumed, session_id, cost_usd, error,
               exit_code, log_path, tokens_in, tokens_out, cost_is_estimated
          FROM moved
         WHERE ended IS NOT NULL AND lets_go
    )
    INSERT INTO transition (tenant, kind, entity_id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason,
                            actor, metadata, at, seconds_in_state)
    SELECT tenant, 'task', id, revision, run_id, machine_id, from_state, to_state, trigger, severity, reason, actor, metadata,
           entered_at, extract(epoch FROM entered_at - since)::double precision
      FROM moved;
    RETURN NULL;
END $$;

-- What a tenant may spend, and has spent in all its runs. Transactions add to it in their last statement, so none waits for another one
-- that still needs locks.
CREATE TABLE account (
    tenant            text COLLATE "C" PRIMARY KEY REFERENCES tenant,
    budget_usd        numeric(14, 6) CHECK (budget_usd >= 0),
    spent_usd         numeric(14, 6) NOT NULL CHECK (spent_usd >= 0),
    tokens_in         bigint NOT NULL CHECK (tokens_in >= 0),
    tokens_out        bigint NOT NULL CHECK (tokens_out >= 0),
    cost_is_estimated boolean NOT NULL
);
INSERT INTO account (tenant, spent_usd, tokens_in, tokens_out, cost_is_estimated)
SELECT tenant, sum(spent_usd), 0, 0, false FROM run GROUP BY tenant HAVING sum(spent_usd) > 0;

-- Notifications that are to be delivered, have been, or could not be: one for each transition and target. A process that delivers one claims
-- it: `due_at` is the end of its lease then, and else the time of the next try.
CREATE TABLE outbox (
    id           text COLLATE "C" PRIMARY KEY,
    position     bigint NOT NULL,
    origin       text NOT NULL CHECK (origin IN ('settings', 'flow')),
    target       text COLLATE "C" NOT NULL,
    method       text NOT NULL CHECK (method IN ('command', 'webhook')),
    tenant       text COLLATE "C" NOT NULL,
    run_id       text COLLATE "C",
    event        text NOT NULL,
    subject      text NOT NULL,
    body         text NOT NULL CHECK (body IS JSON OBJECT),
    created_at   instant NOT NULL,
    due_at       instant,
    claimed_by   text,
    tries        integer NOT NULL CHECK (tries >= 0),
    error        text,
    delivered_at instant,
    dead_at      instant,
    UNIQUE (position, origin, target),
    CONSTRAINT outbox_is_due_delivered_or_dead
        CHECK ((due_at IS NOT NULL)::integer + (delivered_at IS NOT NULL)::integer + (dead_at IS NOT NULL)::integer = 1),
    CONSTRAINT outbox_is_claimed_while_due CHECK (claimed_by IS NULL OR due_at IS NOT NULL)
);

CREATE INDEX outbox_due ON outbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

-- Up to which position of the event stream the outbox has everything for a target.
CREATE TABLE outbox_cursor (
    origin   text NOT NULL CHECK (origin IN ('settings', 'flow')),
    target   text COLLATE "C" NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    PRIMARY KEY (origin, target)
);

-- Keys by which programs prove who they are. A key never ends without a trace: it is revoked, not deleted.
-- Only the SHA-256 of a secret is stored. A slow, salted hash protects passwords, because people choose guessable ones. A secret is 256 random
-- bits: nobody finds it from its hash, nor from a table of hashes, however fast the hash is.
CREATE TABLE api_key (
    id                  text COLLATE "C" PRIMARY KEY,
    tenant              text COLLATE "C" NOT NULL REFERENCES tenant,
    name                text COLLATE "C" NOT NULL CHECK (name <> ''),
    scopes              text NOT NULL,
    created_at          instant NOT NULL,
    created_by          text NOT NULL,
    expires_at          instant,
    revoked_at          instant,
    last_used_at        instant,
    previous_expires_at instant,
    secret_hash         text NOT NULL CHECK (secret_hash ~ '^[0-9a-f]{64}$'),
    previous_hash       text CHECK (previous_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT api_key_has_known_scopes
        CHECK (scopes IS JSON ARRAY AND scopes <> '[]'
               AND scopes::jsonb <@ '["read", "submit", "operate", "approve", "worker", "admin"]'::jsonb),
    CONSTRAINT api_key_expires_later CHECK (expires_at > created_at),
    CONSTRAINT api_key_is_revoked_later CHECK (revoked_at >= created_at),
    CONSTRAINT api_key_is_used_later CHECK (last_used_at >= created_at),
    CONSTRAINT api_key_previous_secret_expires_later CHECK (previous_expires_at > created_at),
    CONSTRAINT api_key_previous_secret_expires CHECK ((previous_hash IS NULL) = (previous_expires_at IS NULL)),
    CONSTRAINT api_key_has_two_secrets CHECK (previous_hash <> secret_hash)
);

-- The name of a revoked key may be used again.
CREATE UNIQUE INDEX api_key_name ON api_key (tenant, name) WHERE revoked_at IS NULL;

CREATE TRIGGER api_key_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, name, scopes, created_at, created_by ON api_key FOR EACH ROW
    WHEN ((new.id, new.tenant, new.name, new.scopes, new.created_at, new.created_by)
          IS DISTINCT FROM
          (old.id, old.tenant, old.name, old.scopes, old.created_at, old.created_by))
    EXECUTE FUNCTION forbid('an API key keeps its id, tenant, name and scopes, and who created it');
CREATE TRIGGER api_key_stays_revoked
    BEFORE UPDATE OF revoked_at, secret_hash, previous_hash, expires_at, previous_expires_at ON api_key FOR EACH ROW
    WHEN (old.revoked_at IS NOT NULL)
    EXECUTE FUNCTION forbid('an API key that was revoked stays revoked');
CREATE TRIGGER api_key_lives_longer_with_a_new_secret
    BEFORE UPDATE OF expires_at, previous_expires_at ON api_key FOR EACH ROW
    WHEN ((new.expires_at, new.previous_expires_at) IS DISTINCT FROM (old.expires_at, old.previous_expires_at)
          AND new.secret_hash = old.secret_hash)
    EXECUTE FUNCTION forbid('the expiry of an API key changes only with its secret');
CREATE TRIGGER api_key_is_not_deleted BEFORE DELETE OR TRUNCATE ON api_key EXECUTE FUNCTION forbid('an API key cannot be deleted');

-- Templates of runs: flows as text, which a request names.
CREATE TABLE template (
    tenant    text COLLATE "C" NOT NULL REFERENCES tenant,
    name      text COLLATE "C" NOT NULL CHECK (name <> ''),
    text      text NOT NULL,
    stored_at instant NOT NULL,
    stored_by text NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- Tasks that people have deleted. Their rows and their audit trails stay; lists of tasks leave them out.
CREATE TABLE tombstone (
    task_id    text COLLATE "C" PRIMARY KEY REFERENCES task,
    tenant     text COLLATE "C" NOT NULL REFERENCES tenant,
    deleted_at instant NOT NULL,
    deleted_by text NOT NULL,
    reason     text
);

-- Lists of runs, newest first: those that have not succeeded, which are few, and those of one name.
CREATE INDEX run_unfinished ON run (tenant, created_at, id) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX run_of_name ON run (tenant, name, created_at, id);

-- How much unfinished work tenants may have at once; no row and NULL mean no limit.
CREATE TABLE quota (
    tenant    text COLLATE "C" PRIMARY KEY REFERENCES tenant,
    max_runs  bigint CHECK (max_runs >= 0),
    max_tasks bigint CHECK (max_tasks >= 0),
    max_bytes bigint CHECK (max_bytes >= 0)
);

-- What counts towards a quota is read without the runs that have ended.
CREATE INDEX run_in_progress ON run (tenant) WHERE phase <> 'done';

-- Words by which runs are found.
ALTER TABLE run ADD COLUMN tags text NOT NULL DEFAULT '[]' CHECK (tags IS JSON ARRAY);

DROP TRIGGER run_keeps_what_it_began_with ON run;
CREATE TRIGGER run_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, parent_run_id, depth, worker_count, allocates, has_checks,
                     final_task, max_retries, policy, payload, tags ON run FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.parent_run_id, new.depth, new.worker_count,
           new.allocates, new.has_checks, new.final_task, new.max_retries, new.policy, new.payload, new.tags)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.parent_run_id, old.depth, old.worker_count,
           old.allocates, old.has_checks, old.final_task, old.max_retries, old.policy, old.payload, old.tags))
    EXECUTE FUNCTION forbid('a run keeps its id, machine, tenant, payload and everything else that it was created with');

-- The same words, for lists of the runs that have one, newest first.
CREATE TABLE run_tag (
    tenant     text COLLATE "C" NOT NULL REFERENCES tenant,
    tag        text COLLATE "C" NOT NULL CHECK (tag <> ''),
    created_at instant NOT NULL,
    run_id     text COLLATE "C" NOT NULL REFERENCES run,
    PRIMARY KEY (tenant, tag, created_at, run_id)
);

-- The API key that has registered a worker: the only one that acts as it. NULL for workers with access to the database.
ALTER TABLE worker ADD COLUMN key_id text COLLATE "C";

DROP TRIGGER worker_keeps_what_it_began_with ON worker;
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata, key_id
    ON worker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
           new.lease_seconds, new.only_run_id, new.worker_metadata, new.key_id)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
           old.lease_seconds, old.only_run_id, old.worker_metadata, old.key_id))
    EXECUTE FUNCTION forbid('a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');

-- One trigger for each event keeps the law of runs, tasks and workers: their constraints, foreign keys and guards are conditions of it.
--
-- PostgreSQL reads the text of every CHECK and of every WHEN again for each statement, and looks up foreign keys row by row, of a new row
-- also when it is changed in the same transaction. Together that was a third of a statement. Now one expression says which rule a row breaks,
-- and the trigger evaluates it for all rows of a statement. The rules keep their names, and messages tell them: SELECT id, task_breaks(task) FROM task
-- names them, too. Values that no statement of the engine names are still kept by row triggers with a list of columns, which cost nothing then.

-- Refuses a row as a constraint would, by the name of the rule. It is STRICT: without a rule it is not even called.
CREATE FUNCTION refuse_row(kind text, entity_id text, rule text) RETURNS text LANGUAGE plpgsql STRICT AS $$
BEGIN
    IF rule LIKE '%\_fkey' THEN
        RAISE EXCEPTION 'pointsman: % % refers to a row that does not exist: it breaks the rule "%"', kind, entity_id, rule
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = rule, TABLE = kind;
    END IF;
    RAISE EXCEPTION 'pointsman: % % breaks the rule "%"', kind, entity_id, rule
        USING ERRCODE = 'check_violation', CONSTRAINT = rule, TABLE = kind;
END $$;

-- Refuses a change, and says why.
CREATE FUNCTION refuse_change(reason text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: %', reason;
END $$;

-- What a row fulfills by itself

-- The first rule that a task breaks by itself, or null.
CREATE FUNCTION task_breaks(task task) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'task_phase_check'
    WHEN task.outcome NOT IN ('success', 'failure', 'canceled') THEN 'task_outcome_check'
    WHEN (task.phase = 'done') <> (task.outcome IS NOT NULL) THEN 'task_done_has_outcome'
    WHEN (task.phase = 'done') <> (task.completed_at IS NOT NULL) THEN 'task_done_is_completed'
    WHEN task.started_at < task.created_at THEN 'task_starts_after_creation'
    WHEN task.completed_at < coalesce(task.started_at, task.created_at) THEN 'task_completes_after_start'
    WHEN task.metadata IS NOT JSON OBJECT THEN 'task_metadata_check'
    WHEN task.policy IS NOT JSON THEN 'task_policy_check'
    WHEN task.depth NOT BETWEEN 0 AND 5 THEN 'task_depth_check'
    WHEN (task.depth = 0) <> (task.parent_task_id IS NULL) THEN 'task_depth_follows_parent'
    WHEN task.open_dependencies < 0 THEN 'task_open_dependencies_check'
    WHEN task.available_at IS NOT NULL AND task.phase NOT IN ('held', 'queued') THEN 'task_waits_before_it_runs'
    WHEN task.phase = 'active' AND (task.open_dependencies <> 0 OR task.is_gate) THEN 'task_runs_when_free'
    -- Attempts and workers
    WHEN (task.phase = 'active') <> (task.current_attempt IS NOT NULL) THEN 'task_active_has_attempt'
    WHEN task.current_attempt <> task.epoch THEN 'task_attempt_is_latest'
    WHEN task.current_attempt IS NOT NULL AND (task.attempt_worker_id IS NULL OR task.attempt_started_at IS NULL) THEN 'task_attempt_has_begun'
    WHEN task.worker_id IS NOT NULL AND task.phase <> 'active' THEN 'task_worker_is_active'
    WHEN task.lease_expired AND task.phase <> 'active' THEN 'task_lost_lease_is_active'
    WHEN task.epoch < 0 THEN 'task_epoch_check'
    WHEN task.attempt_count < 0 THEN 'task_attempt_count_check'
    WHEN task.attempt_count > task.max_attempts THEN 'task_attempts_in_bounds'
    WHEN task.retry_count NOT BETWEEN 0 AND task.max_retries THEN 'task_retries_in_bounds'
    WHEN task.reclaim_count NOT BETWEEN 0 AND task.max_reclaims THEN 'task_reclaims_in_bounds'
    -- Money and tokens
    WHEN task.budget_usd < 0 THEN 'task_budget_usd_check'
    WHEN task.cost_usd < 0 THEN 'task_cost_usd_check'
    WHEN task.reserved_usd < 0 THEN 'task_reserved_usd_check'
    WHEN task.reserved_usd <> 0 AND task.phase <> 'active' THEN 'task_reserves_while_active'
    WHEN task.attempt_cost_usd < 0 THEN 'task_attempt_cost_usd_check'
    WHEN task.tokens_in < 0 THEN 'task_tokens_in_check'
    WHEN task.tokens_out < 0 THEN 'task_tokens_out_check'
    WHEN task.attempt_tokens_in < 0 THEN 'task_attempt_tokens_in_check'
    WHEN task.attempt_tokens_out < 0 THEN 'task_attempt_tokens_out_check'
END;

-- The same for a run. Reservations must fit into the budget. Spent money is a fact, also beyond it.
CREATE FUNCTION run_breaks(run run) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN run.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'run_phase_check'
    WHEN run.outcome NOT IN ('success', 'failure', 'canceled') THEN 'run_outcome_check'
    WHEN (run.phase = 'done') <> (run.outcome IS NOT NULL) THEN 'run_done_has_outcome'
    WHEN (run.phase = 'done') <> (run.completed_at IS NOT NULL) THEN 'run_done_is_completed'
    WHEN run.started_at < run.created_at THEN 'run_starts_after_creation'
    WHEN run.completed_at < coalesce(run.started_at, run.created_at) THEN 'run_completes_after_start'
    WHEN run.metadata IS NOT JSON OBJECT THEN 'run_metadata_check'
    WHEN run.policy IS NOT JSON THEN 'run_policy_check'
    WHEN run.final_task IS NOT JSON THEN 'run_final_task_check'
    WHEN run.tags IS NOT JSON ARRAY THEN 'run_tags_check'
    WHEN run.depth NOT BETWEEN 0 AND 5 THEN 'run_depth_check'
    WHEN (run.depth = 0) <> (run.parent_run_id IS NULL) THEN 'run_depth_follows_parent'
    WHEN run.worker_count NOT BETWEEN 1 AND 10 THEN 'run_worker_count_check'
    WHEN run.missing_tasks < 0 THEN 'run_missing_tasks_check'
    WHEN run.retry_count NOT BETWEEN 0 AND run.max_retries THEN 'run_retries_in_bounds'
    WHEN run.budget_usd < 0 THEN 'run_budget_usd_check'
    WHEN run.spent_usd < 0 THEN 'run_spent_usd_check'
    WHEN run.promised_usd < 0 THEN 'run_promised_usd_check'
    WHEN run.reserved_usd < 0 THEN 'run_reserved_usd_check'
    WHEN run.reserved_usd <> 0 AND run.spent_usd + run.reserved_usd > run.budget_usd THEN 'run_reservation_fits'
    WHEN run.tokens_in < 0 THEN 'run_tokens_in_check'
    WHEN run.tokens_out < 0 THEN 'run_tokens_out_check'
END;

CREATE FUNCTION worker_breaks(worker worker) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN worker.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'worker_phase_check'
    WHEN worker.outcome NOT IN ('success', 'failure', 'canceled') THEN 'worker_outcome_check'
    WHEN (worker.phase = 'done') <> (worker.outcome IS NOT NULL) THEN 'worker_done_has_outcome'
    WHEN (worker.phase = 'done') <> (worker.completed_at IS NOT NULL) THEN 'worker_done_is_completed'
    WHEN worker.started_at < worker.created_at THEN 'worker_starts_after_creation'
    WHEN worker.completed_at < coalesce(worker.started_at, worker.created_at) THEN 'worker_completes_after_start'
    WHEN worker.metadata IS NOT JSON OBJECT THEN 'worker_metadata_check'
    WHEN worker.worker_metadata IS NOT JSON OBJECT THEN 'worker_worker_metadata_check'
    WHEN worker.serves IS NOT JSON ARRAY AND worker.serves <> '"all"' THEN 'worker_serves_check'
    WHEN worker.capabilities IS NOT JSON THEN 'worker_capabilities_check'
    WHEN worker.max_concurrent_tasks <= 0 THEN 'worker_max_concurrent_tasks_check'
    WHEN worker.lease_seconds <= 0 THEN 'worker_lease_seconds_check'
    WHEN worker.run_id IS NOT NULL AND worker.phase = 'done' THEN 'worker_done_has_no_run'
END;

ALTER TABLE run
    DROP CONSTRAINT run_phase_check, DROP CONSTRAINT run_outcome_check, DROP CONSTRAINT run_done_has_outcome,
    DROP CONSTRAINT run_done_is_completed, DROP CONSTRAINT run_starts_after_creation, DROP CONSTRAINT run_completes_after_start,
    DROP CONSTRAINT run_metadata_check, DROP CONSTRAINT run_policy_check, DROP CONSTRAINT run_final_task_check,
    DROP CONSTRAINT run_tags_check, DROP CONSTRAINT run_depth_check, DROP CONSTRAINT run_depth_follows_parent,
    DROP CONSTRAINT run_worker_count_check, DROP CONSTRAINT run_missing_tasks_check, DROP CONSTRAINT run_retries_in_bounds,
    DROP CONSTRAINT run_budget_usd_check, DROP CONSTRAINT run_spent_usd_check, DROP CONSTRAINT run_promised_usd_check,
    DROP CONSTRAINT run_reserved_usd_check, DROP CONSTRAINT run_reservation_fits, DROP CONSTRAINT run_tokens_in_check,
    DROP CONSTRAINT run_tokens_out_check, DROP CONSTRAINT run_tenant_fkey, DROP CONSTRAINT run_machine_id_fkey,
    DROP CONSTRAINT run_parent_run_id_fkey;
ALTER TABLE task
    DROP CONSTRAINT task_phase_check, DROP CONSTRAINT task_outcome_check, DROP CONSTRAINT task_done_has_outcome,
    DROP CONSTRAINT task_done_is_completed, DROP CONSTRAINT task_starts_after_creation, DROP CONSTRAINT task_completes_after_start,
    DROP CONSTRAINT task_metadata_check, DROP CONSTRAINT task_policy_check, DROP CONSTRAINT task_depth_check,
    DROP CONSTRAINT task_depth_follows_parent, DROP CONSTRAINT task_open_dependencies_check, DROP CONSTRAINT task_waits_before_it_runs,
    DROP CONSTRAINT task_runs_when_free, DROP CONSTRAINT task_active_has_attempt, DROP CONSTRAINT task_attempt_is_latest,
    DROP CONSTRAINT task_attempt_has_begun, DROP CONSTRAINT task_worker_is_active, DROP CONSTRAINT task_lost_lease_is_active,
    DROP CONSTRAINT task_epoch_check, DROP CONSTRAINT task_attempt_count_check, DROP CONSTRAINT task_attempts_in_bounds,
    DROP CONSTRAINT task_retries_in_bounds, DROP CONSTRAINT task_reclaims_in_bounds, DROP CONSTRAINT task_budget_usd_check,
    DROP CONSTRAINT task_cost_usd_check, DROP CONSTRAINT task_reserved_usd_check, DROP CONSTRAINT task_reserves_while_active,
    DROP CONSTRAINT task_attempt_cost_usd_check, DROP CONSTRAINT task_tokens_in_check, DROP CONSTRAINT task_tokens_out_check,
    DROP CONSTRAINT task_attempt_tokens_in_check, DROP CONSTRAINT task_attempt_tokens_out_check, DROP CONSTRAINT task_tenant_fkey,
    DROP CONSTRAINT task_machine_id_fkey, DROP CONSTRAINT task_run_id_fkey, DROP CONSTRAINT task_parent_task_id_fkey,
    DROP CONSTRAINT task_lane_id_fkey;
ALTER TABLE worker
    DROP CONSTRAINT worker_phase_check, DROP CONSTRAINT worker_outcome_check, DROP CONSTRAINT worker_done_has_outcome,
    DROP CONSTRAINT worker_done_is_completed, DROP CONSTRAINT worker_starts_after_creation, DROP CONSTRAINT worker_completes_after_start,
    DROP CONSTRAINT worker_metadata_check, DROP CONSTRAINT worker_worker_metadata_check, DROP CONSTRAINT worker_serves_check,
    DROP CONSTRAINT worker_capabilities_check, DROP CONSTRAINT worker_max_concurrent_tasks_check,
    DROP CONSTRAINT worker_lease_seconds_check, DROP CONSTRAINT worker_done_has_no_run, DROP CONSTRAINT worker_tenant_fkey,
    DROP CONSTRAINT worker_machine_id_fkey, DROP CONSTRAINT worker_run_id_fkey, DROP CONSTRAINT worker_only_run_id_fkey;
ALTER TABLE dependency DROP CONSTRAINT dependency_task_id_fkey, DROP CONSTRAINT dependency_depends_on_id_fkey;

-- Narrow lines: the audit trail refers to the entity and to the rule of its machine instead of repeating what they say, and the line that ends
-- an attempt has what is known of it. `transition` and `attempt` are views of the trail, and say the same as the tables that they replace.
--
-- A process of the version before notices with its next transaction, which asks for the time: see `clock` below.

-- Entities and rules get numbers, by which lines refer to them.

ALTER TABLE rule ADD COLUMN id integer GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE run ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE task ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE worker ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;
ALTER TABLE breaker ADD COLUMN number bigint GENERATED ALWAYS AS IDENTITY UNIQUE;

CREATE TRIGGER run_keeps_its_number BEFORE UPDATE OF number ON run EXECUTE FUNCTION forbid('a run keeps its number');
CREATE TRIGGER task_keeps_its_number BEFORE UPDATE OF number ON task EXECUTE FUNCTION forbid('a task keeps its number');
CREATE TRIGGER worker_keeps_its_number BEFORE UPDATE OF number ON worker EXECUTE FUNCTION forbid('a worker keeps its number');
CREATE TRIGGER breaker_keeps_its_number BEFORE UPDATE OF number ON breaker EXECUTE FUNCTION forbid('a breaker keeps its number');

-- A machine begins in one state.
CREATE UNIQUE INDEX state_of_beginning ON state (machine_id) WHERE initial;

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

-- What most lines would say of a task that begins without dependencies, and of a claim. It follows from the rest.
CREATE FUNCTION creation_metadata(run_id text, critical boolean, max_retries integer) RETURNS text LANGUAGE sql STABLE
RETURN '{"run_id":' || to_json(run_id) || ',"depends_on":[],"critical":' || critical || ',"max_retries":' || max_retries || '}';
CREATE FUNCTION claim_metadata(worker_id text, epoch integer) RETURNS text LANGUAGE sql STABLE
RETURN '{"worker_id":' || to_json(worker_id) || ',"epoch":' || epoch || '}';

-- The audit trail, which is also the event stream. Only the triggers of the law write it. The columns from `started_at` on are about the attempt
-- that the move ends; what is zero or false there is null. The order of columns leaves no gaps.
CREATE TABLE trail (
    position          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                instant NOT NULL,
    number            bigint NOT NULL, -- of the entity
    kind              smallint NOT NULL, -- 0 for a run, 1 for a task, 2 for a worker, 3 for a breaker
    revision          integer NOT NULL,
    rule_id           integer, -- null for the creation, which leads to the initial state
    run_id            text COLLATE "C", -- to which a worker is allocated; a task keeps its run
    reason            text,
    actor             text,
    metadata          text, -- empty for what follows from the rest
    epoch             integer, -- of the attempt that the move ends, or else begins
    started_at        instant,
    worker_id         text COLLATE "C", -- null for the actor
    error             text,
    exit_code         integer,
    cost_usd          numeric(14, 6),
    session_id        text,
    resumed           boolean,
    log_path          text,
    tokens_in         bigint,
    tokens_out        bigint,
    cost_is_estimated boolean
);

-- Conversion
--
-- An attempt ended with the first move after its claim that has the trigger and the instant of its end. A line whose entity, rule or attempt
-- cannot be found was not written by the law: then nothing is converted. Whoever moves a row by hand chooses the metadata, also of a claim:
-- it may be JSON that PostgreSQL stores and cannot take apart.

CREATE TEMPORARY TABLE claimed ON COMMIT DROP AS
SELECT entity_id AS task_id, revision, substring(metadata FROM '"epoch": ?([0-9]{1,9})[,}]')::integer AS epoch
  FROM transition
 WHERE kind = 'task' AND revision > 0 AND metadata ~ '"epoch": ?[0-9]{1,9}[,}]';
CREATE INDEX ON claimed (task_id, revision);

CREATE TEMPORARY TABLE ending ON COMMIT DROP AS
SELECT attempt.*,
       (SELECT min(line.revision)
          FROM transition AS line JOIN state ON state.machine_id = line.machine_id AND state.name = line.from_state
         WHERE line.entity_id = attempt.task_id AND line.trigger = attempt.ended_by AND state.phase = 'active'
           AND greatest(line.at, attempt.started_at) = attempt.ended_at
           AND line.revision > coalesce((SELECT min(claimed.revision) FROM claimed
                                          WHERE claimed.task_id = attempt.task_id AND claimed.epoch = attempt.epoch), 0)) AS revision
  FROM attempt;
CREATE INDEX ON ending (task_id, revision);

INSERT INTO trail (position, at, number, kind, revision, rule_id, run_id, reason, actor, metadata, epoch, worker_id, started_at, resumed,
                   session_id, cost_usd, error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated) OVERRIDING SYSTEM VALUE
SELECT line.position, line.at, entity.number, array_position(ARRAY['run', 'task', 'worker', 'breaker'], line.kind) - 1, line.revision, rule.id,
       CASE line.kind WHEN 'worker' THEN line.run_id END, line.reason, line.actor,
       CASE WHEN line.revision = 0 AND line.metadata = creation_metadata(task.run_id, task.critical, task.max_retries) THEN ''
            WHEN claimed.epoch <> ending.epoch + 1 THEN line.metadata
            WHEN line.metadata = claim_metadata(line.actor, claimed.epoch) THEN ''
            ELSE line.metadata END,
       coalesce(ending.epoch, claimed.epoch),
       nullif(ending.worker_id, line.actor), ending.started_at, nullif(ending.resumed, false), ending.session_id, nullif(ending.cost_usd, 0),
       ending.error, ending.exit_code, ending.log_path, nullif(ending.tokens_in, 0), nullif(ending.tokens_out, 0),
       nullif(ending.cost_is_estimated, false)
  FROM transition AS line
  LEFT JOIN entity ON entity.id = line.entity_id AND entity.kind = line.kind
  LEFT JOIN task ON line.kind = 'task' AND task.id = line.entity_id
  LEFT JOIN rule ON rule.machine_id = line.machine_id AND rule.from_state = line.from_state AND rule.to_state = line.to_state
                AND rule.trigger = line.trigger
  LEFT JOIN claimed ON line.kind = 'task' AND claimed.task_id = line.entity_id AND claimed.revision = line.revision
  LEFT JOIN ending ON ending.task_id = line.entity_id AND ending.revision = line.revision
 ORDER BY line.position;

DO $$
BEGIN
    IF EXISTS (SELECT FROM trail WHERE revision > 0 AND rule_id IS NULL) THEN
        RAISE EXCEPTION 'pointsman: the audit trail has a move for which its machine has no rule';
    ELSIF (SELECT count(started_at) FROM trail) <> (SELECT count(*) FROM attempt) THEN
        RAISE EXCEPTION 'pointsman: an attempt is stored whose end is not in the audit trail';
    END IF;
END $$;

CREATE UNIQUE INDEX trail_of_entity ON trail (number, kind, revision);
SELECT setval('trail_position_seq', last_value, is_called) FROM transition_position_seq;

DROP TABLE transition, attempt;

-- The views. Their columns have the types of those that they replace: otherwise PostgreSQL refuses the statements that readers have prepared.

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       (ARRAY['run', 'task', 'worker', 'breaker'])[trail.kind + 1] AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS DISTINCT FROM '' THEN trail.metadata
            WHEN trail.revision = 0 THEN creation_metadata(task.run_id, task.critical, task.max_retries)
            ELSE claim_metadata(trail.actor, trail.epoch + (trail.started_at IS NOT NULL)::integer) END COLLATE "default" AS metadata,
       trail.at, extract(epoch FROM trail.at - prior.at)::double precision AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial
       AND beginning.machine_id = coalesce(task.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       greatest(trail.at, trail.started_at) AS ended_at, rule.trigger COLLATE "default" AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0)::numeric(14, 6) AS cost_usd, trail.session_id, coalesce(trail.resumed, false) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, false) AS cost_is_estimated
  FROM task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

-- The time. A process of the version before reads `clock` at the beginning of each transaction, and then learns why it cannot go on. It has
-- prepared that, so the columns have the types that they had.

ALTER TABLE clock RENAME TO clock_correction;
CREATE FUNCTION refuse_former_version() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a newer version of Pointsman has converted this database. Install that version here, too, and start again.';
END $$;
CREATE VIEW clock AS
SELECT refuse_former_version() AS id, NULL::integer AS revision, NULL::double precision AS offset_seconds, NULL::instant AS corrected_at;

-- The law

CREATE TRIGGER trail_goes_on BEFORE INSERT ON trail FOR EACH STATEMENT EXECUTE FUNCTION comes_by_law('the audit trail');
CREATE TRIGGER trail_is_not_changed BEFORE UPDATE ON trail EXECUTE FUNCTION forbid('the audit trail cannot be changed');
CREATE TRIGGER trail_is_not_deleted BEFORE DELETE OR TRUNCATE ON trail EXECUTE FUNCTION forbid('the audit trail cannot be deleted');
CREATE TRIGGER transition_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON transition
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes the audit trail');
CREATE TRIGGER attempt_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes attempts');

-- The key stays the same for the whole transaction, so that it needs one lock. Every session can set pointsman.announced to whatever it
-- likes. So the lock is taken again for each statement, which costs nothing, and a key that is too large does not count.
CREATE OR REPLACE FUNCTION announce_moves() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned  bigint := coalesce(pg_sequence_last_value('trail_position_seq'), 0);
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
CREATE OR REPLACE FUNCTION stream_end() RETURNS bigint LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    assigned bigint := (SELECT last_value - (NOT is_called)::integer FROM trail_position_seq);
BEGIN
    RETURN (WITH held AS MATERIALIZED (
                SELECT * FROM pg_locks
                 WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND granted)
            SELECT least(assigned, min(((classid::bigint & 65535) << 32) + objid::bigint))
              FROM held
             WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = stream_lock() >> 48
               AND virtualtransaction IN (SELECT virtualtransaction FROM held
                                           WHERE locktype = 'relation' AND relation = 'trail'::regclass AND mode = 'RowExclusiveLock'));
END $$;

CREATE OR REPLACE FUNCTION continues_the_last_one() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF new.previous <> (SELECT coalesce(max(position), 0) FROM seal)
       OR new.position > (SELECT coalesce(max(position), 0) FROM trail) THEN
        RAISE EXCEPTION 'pointsman: a seal continues the last one, and ends with a transition';
    END IF;
    RETURN new;
END $$;

-- Creation
--
-- What a row refers to stays for ever. So one look when it is created is enough, without a lock, and one for all tasks that refer to the same.
-- That its machine exists follows from its first state.

CREATE OR REPLACE FUNCTION refuse_beginning(kind text, entity_id text, of_machine integer, state text) RETURNS text
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM machine WHERE id = of_machine) THEN
        PERFORM refuse_row(kind, entity_id, kind || '_machine_id_fkey');
    END IF;
    RAISE EXCEPTION 'pointsman: a % is created once, in the initial state of a % machine: not % in % of %',
        kind, kind, entity_id, state, (SELECT name || ' ' || version FROM machine WHERE id = of_machine);
END $$;

-- A number that is still to come would stop the row that is to get it.
CREATE FUNCTION refuse_number(kind text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: a new % gets the next number', kind;
END $$;

-- An id tells the kind, so no two entities have the same one. (`j_` begins the ids of runs that are jobs of document 000.)
CREATE FUNCTION refuse_id(kind text, id text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pointsman: the id of a % does not begin like that of another kind: %', kind, id;
END $$;

CREATE FUNCTION run_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT run.created_at, run.number, 0,
           CASE WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN run.number > (SELECT coalesce(pg_sequence_last_value('run_number_seq'), 0)) THEN refuse_number('run')::integer
                WHEN run.id ~ '^(task|worker|breaker)_' THEN refuse_id('run', run.id)::integer
                WHEN (SELECT true FROM tenant AS other WHERE other.id = run.tenant) IS NULL
                THEN refuse_row('run', run.id, 'run_tenant_fkey')::integer
                WHEN run.parent_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = run.parent_run_id) IS NULL
                THEN refuse_row('run', run.id, 'run_parent_run_id_fkey')::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = run.machine_id AND state.name = run.state AND state.initial
                                  AND state.kind = 'run' AND state.phase = run.phase
                                  AND state.outcome IS NOT DISTINCT FROM run.outcome AND run.revision = 0),
                              refuse_beginning('run', run.id, run.machine_id, run.state)::integer) END,
           run.reason, run.actor, run.metadata
      FROM new_rows AS run;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    ended text;
BEGIN
    -- The lock keeps the runs from succeeding before this transaction ends. The engine holds a stronger one already.
    SELECT max(id) FILTER (WHERE outcome = 'success') INTO ended
      FROM (SELECT id, outcome FROM run WHERE id = ANY(ARRAY(SELECT DISTINCT run_id FROM new_rows)) ORDER BY id FOR SHARE) AS locked;
    IF ended IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run that has succeeded gets no more tasks, and % has', ended;
    END IF;
    PERFORM refuse_row('task', task.id,
                       CASE WHEN (SELECT true FROM tenant AS other WHERE other.id = task.tenant) IS NULL THEN 'task_tenant_fkey'
                            WHEN (SELECT true FROM run AS other WHERE other.id = task.run_id) IS NULL THEN 'task_run_id_fkey'
                            WHEN (SELECT true FROM lane AS other WHERE other.id = task.lane_id) IS NULL THEN 'task_lane_id_fkey'
                            WHEN task.parent_task_id IS NOT NULL
                                 AND (SELECT true FROM task AS other WHERE other.id = task.parent_task_id) IS NULL THEN 'task_parent_task_id_fkey'
                       END)
       FROM (SELECT DISTINCT ON (tenant, run_id, lane_id, parent_task_id) tenant, run_id, lane_id, parent_task_id, id FROM new_rows) AS task;
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT task.created_at, task.number, 1,
           CASE WHEN refuse_row('task', task.id, task_breaks(ROW(task.*)::task)) IS NOT NULL THEN NULL
                WHEN task.number > (SELECT coalesce(pg_sequence_last_value('task_number_seq'), 0)) THEN refuse_number('task')::integer
                WHEN task.id ~ '^(run|j|worker|breaker)_' THEN refuse_id('task', task.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = task.machine_id AND state.initial AND state.kind = 'task'
                                  AND task.epoch = 0 AND task.attempt_worker_id IS NULL
                                  AND (task.revision = 1
                                       OR (task.revision = 0 AND state.name = task.state AND state.phase = task.phase
                                           AND state.outcome IS NOT DISTINCT FROM task.outcome))),
                              refuse_beginning('task', task.id, task.machine_id, task.state)::integer) END,
           task.reason, task.actor,
           CASE WHEN task.revision = 1 OR task.metadata = creation_metadata(task.run_id, task.critical, task.max_retries) THEN ''
                ELSE task.metadata END
      FROM new_rows AS task;
    -- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT task.entered_at, task.number, 1, 1,
           coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                      WHERE rule.machine_id = task.machine_id AND state.initial AND rule.to_state = task.state AND rule.trigger = task.trigger
                        AND rule.to_phase = task.phase AND rule.to_phase IN ('held', 'queued') AND NOT rule.needs_worker
                        AND (NOT rule.needs_session OR task.session_id IS NOT NULL) AND task.open_dependencies = 0
                        AND task.entered_at = task.created_at),
                    refuse_beginning('task', task.id, task.machine_id, task.state)::integer),
           task.reason, task.actor, task.metadata
      FROM new_rows AS task
     WHERE task.revision = 1;
    RETURN NULL;
END $$;

CREATE FUNCTION worker_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, run_id, reason, actor, metadata)
    SELECT worker.created_at, worker.number, 2,
           CASE WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.number > (SELECT coalesce(pg_sequence_last_value('worker_number_seq'), 0)) THEN refuse_number('worker')::integer
                WHEN worker.id ~ '^(run|j|task|breaker)_' THEN refuse_id('worker', worker.id)::integer
                WHEN (SELECT true FROM tenant AS other WHERE other.id = worker.tenant) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_tenant_fkey')::integer
                WHEN worker.run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')::integer
                WHEN worker.only_run_id IS NOT NULL AND (SELECT true FROM run AS other WHERE other.id = worker.only_run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_only_run_id_fkey')::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = worker.machine_id AND state.name = worker.state AND state.initial
                                  AND state.kind = 'worker' AND state.phase = worker.phase
                                  AND state.outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = 0),
                              refuse_beginning('worker', worker.id, worker.machine_id, worker.state)::integer) END,
           worker.run_id, worker.reason, worker.actor, worker.metadata
      FROM new_rows AS worker;
    RETURN NULL;
END $$;

CREATE FUNCTION breaker_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT breaker.created_at, breaker.number, 3,
           CASE WHEN breaker.number > (SELECT coalesce(pg_sequence_last_value('breaker_number_seq'), 0)) THEN refuse_number('breaker')::integer
                WHEN breaker.id ~ '^(run|j|task|worker)_' THEN refuse_id('breaker', breaker.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                           WHERE state.machine_id = breaker.machine_id AND state.name = breaker.state AND state.initial
                             AND state.kind = 'breaker' AND state.phase = breaker.phase
                             AND state.outcome IS NOT DISTINCT FROM breaker.outcome AND breaker.revision = 0),
                         refuse_beginning('breaker', breaker.id, breaker.machine_id, breaker.state)::integer) END,
           breaker.reason, breaker.actor, breaker.metadata
      FROM new_rows AS breaker;
    RETURN NULL;
END $$;

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE OR REPLACE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM CASE WHEN task.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_task_id_fkey')
                 WHEN other.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_depends_on_id_fkey')
                 ELSE refuse_change('a task gets its dependencies when it is created, and counts those that are open') END
       FROM new_rows
       LEFT JOIN task ON task.id = new_rows.task_id
       LEFT JOIN task AS other ON other.id = new_rows.depends_on_id
      WHERE task.id IS NULL OR other.id IS NULL OR task.revision > 0
         OR (task.open_dependencies = 0 AND other.outcome IS DISTINCT FROM 'success');
    RETURN NULL;
END $$;

-- Moves
--
-- The condition goes through all rows of the statement: it refuses those that break a rule, and leaves those that move.
--
-- It asks other tables by scalar subqueries, which probe an index. For EXISTS the planner may hash a whole table, and a join cannot be nested
-- here, because old and new rows must not be.

CREATE FUNCTION run_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT run.entered_at, run.number, 0, run.revision,
           coalesce((SELECT CASE WHEN (run.outcome = 'success' OR rule.needs_dependencies)
                              AND (SELECT true FROM task WHERE run_id = run.id AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
                             THEN refuse_change(format('a run is validated and succeeds only when all of its tasks have succeeded, '
                                                       'and %s has others', run.id))::integer
                             ELSE rule.id END FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                        AND rule.trigger = run.trigger AND rule.to_phase = run.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM run.outcome AND run.revision = was.revision + 1),
                    refuse_move(run.id, was.machine_id, was.state, run.state, run.trigger)::integer),
           run.reason, run.actor, run.metadata
      FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
     WHERE CASE WHEN run.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN run.revision <> was.revision THEN 'moves'
                WHEN (run.trigger, run.reason, run.actor, run.metadata, run.entered_at, run.started_at, run.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a run; change its state instead')
                WHEN (run.phase, run.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = run.machine_id AND name = run.state
                             AND phase = run.phase AND outcome IS NOT DISTINCT FROM run.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a run; change its state instead')
                WHEN run.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a run; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    unfit text[];
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata, epoch, worker_id, started_at, resumed, session_id, cost_usd,
                       error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    SELECT task.entered_at, task.number, 1, task.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = task.state
                        AND rule.trigger = task.trigger AND rule.to_phase = task.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM task.outcome AND task.revision = was.revision + 1
                        AND needs_worker = (task.worker_id IS NOT NULL)
                        AND (NOT needs_session OR task.session_id IS NOT NULL)
                        AND (NOT needs_dependencies OR task.open_dependencies = 0)
                        -- A new attempt has the next epoch, and a worker that begins it itself; otherwise both stay.
                        AND task.epoch = was.epoch + (task.current_attempt IS NOT NULL
                                                      AND task.current_attempt IS DISTINCT FROM was.current_attempt)::integer
                        AND (task.worker_id IS NULL OR task.worker_id = task.attempt_worker_id)
                        AND CASE WHEN task.epoch = was.epoch THEN task.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id
                                 ELSE task.attempt_worker_id = task.actor END),
                    refuse_move(task.id, was.machine_id, was.state, task.state, task.trigger)::integer),
           task.reason, task.actor, CASE WHEN task.epoch <> was.epoch AND task.metadata = claim_metadata(task.actor, task.epoch) THEN '' ELSE task.metadata END,
           CASE WHEN ends THEN was.epoch WHEN task.epoch <> was.epoch THEN task.epoch END,
           CASE WHEN ends THEN nullif(was.attempt_worker_id, task.actor) END,
           CASE WHEN ends THEN was.attempt_started_at END,
           CASE WHEN ends THEN nullif(was.attempt_resumed, false) END,
           CASE WHEN hands_over THEN was.session_id WHEN ends THEN task.session_id END,
           nullif(CASE WHEN hands_over THEN was.attempt_cost_usd WHEN ends THEN task.attempt_cost_usd END, 0),
           CASE WHEN hands_over THEN was.attempt_error WHEN ends THEN task.attempt_error END,
           CASE WHEN hands_over THEN was.attempt_exit_code WHEN ends THEN task.attempt_exit_code END,
           CASE WHEN hands_over THEN was.attempt_log_path WHEN ends THEN task.attempt_log_path END,
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_in WHEN ends THEN task.attempt_tokens_in END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_out WHEN ends THEN task.attempt_tokens_out END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_cost_is_estimated WHEN ends THEN task.attempt_cost_is_estimated END, false)
      FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
     CROSS JOIN LATERAL (SELECT was.current_attempt IS NOT NULL AND task.current_attempt IS DISTINCT FROM was.current_attempt AS ends,
                                was.current_attempt IS NOT NULL AND task.current_attempt <> was.current_attempt AS hands_over) AS attempt
     WHERE CASE WHEN task.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('task', task.id, task_breaks(ROW(task.*)::task)) IS NOT NULL THEN NULL
                WHEN was.lease_expired AND NOT task.lease_expired AND task.current_attempt IS NOT DISTINCT FROM was.current_attempt
                THEN refuse_change('an attempt that has lost its lease does not get it back')
                -- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
                WHEN task.open_dependencies = 0 AND was.open_dependencies > 0
                     AND (SELECT true FROM dependency
                           WHERE dependency.task_id = task.id
                             AND (SELECT outcome FROM task AS other WHERE other.id = dependency.depends_on_id) IS DISTINCT FROM 'success'
                           LIMIT 1)
                THEN refuse_change(format('a task waits until all tasks that it depends on have succeeded, and %s depends on others', task.id))
                WHEN task.revision <> was.revision THEN 'moves'
                WHEN (task.trigger, task.reason, task.actor, task.metadata, task.entered_at, task.started_at, task.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a task; change its state instead')
                WHEN (task.phase, task.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = task.machine_id AND name = task.state
                             AND phase = task.phase AND outcome IS NOT DISTINCT FROM task.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a task; change its state instead')
                WHEN task.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a task; change its state instead')
                WHEN (task.epoch, task.current_attempt, task.worker_id, task.attempt_worker_id)
                     IS DISTINCT FROM (was.epoch, was.current_attempt, was.worker_id, was.attempt_worker_id)
                THEN refuse_change('only a move changes the worker, attempt and epoch of a task; change its state instead')
           END = 'moves';
    -- A worker begins an attempt only if it serves the tenant, has not ended, and has room. Whether an attempt began is looked up only
    -- about a worker that gets none: that join would cost too much for every move.
    IF EXISTS (SELECT FROM new_rows WHERE current_attempt IS NOT NULL) THEN
        unfit := ARRAY(SELECT worker_id FROM (SELECT DISTINCT attempt_worker_id AS worker_id, tenant FROM new_rows
                                               WHERE current_attempt IS NOT NULL) AS holder
                        WHERE (SELECT worker.phase <> 'done'
                                      AND worker.max_concurrent_tasks >= (SELECT count(*) FROM task AS held
                                                                           WHERE held.attempt_worker_id = worker.id
                                                                             AND held.current_attempt IS NOT NULL AND NOT held.lease_expired)
                                 FROM worker
                                WHERE worker.id = holder.worker_id
                                  AND (worker.tenant = holder.tenant OR worker.serves = '"all"' OR worker.serves::jsonb ? holder.tenant)) IS NOT TRUE);
        IF unfit <> '{}' THEN
            PERFORM refuse_change('a worker that has ended gets no task, and no worker gets more than it may hold: ' || task.attempt_worker_id)
               FROM new_rows AS task JOIN old_rows AS was ON was.id = task.id
              WHERE task.attempt_worker_id = ANY (unfit) AND task.epoch <> was.epoch;
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION worker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, run_id, reason, actor, metadata)
    SELECT worker.entered_at, worker.number, 2, worker.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = worker.state
                        AND rule.trigger = worker.trigger AND rule.to_phase = worker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = was.revision + 1),
                    refuse_move(worker.id, was.machine_id, was.state, worker.state, worker.trigger)::integer),
           worker.run_id, worker.reason, worker.actor, worker.metadata
      FROM new_rows AS worker JOIN old_rows AS was ON was.id = worker.id
     WHERE CASE WHEN worker.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.run_id IS NOT NULL AND worker.run_id IS DISTINCT FROM was.run_id
                     AND (SELECT true FROM run WHERE run.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')
                WHEN worker.heartbeat_at <> was.heartbeat_at AND (was.phase = 'done' OR worker.missing)
                THEN refuse_change('only a worker that is alive and not missing has a heartbeat')
                WHEN worker.phase = 'done' AND was.phase <> 'done'
                     AND (SELECT true FROM task WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL AND NOT lease_expired LIMIT 1)
                THEN refuse_change(format('a worker ends only when it holds no task, and %s holds some', worker.id))
                WHEN worker.revision <> was.revision THEN 'moves'
                WHEN (worker.trigger, worker.reason, worker.actor, worker.metadata, worker.entered_at, worker.started_at, worker.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a worker; change its state instead')
                WHEN (worker.phase, worker.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = worker.machine_id AND name = worker.state
                             AND phase = worker.phase AND outcome IS NOT DISTINCT FROM worker.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a worker; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

CREATE FUNCTION breaker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT breaker.entered_at, breaker.number, 3, breaker.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = breaker.state
                        AND rule.trigger = breaker.trigger AND rule.to_phase = breaker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM breaker.outcome AND breaker.revision = was.revision + 1),
                    refuse_move(breaker.id, was.machine_id, was.state, breaker.state, breaker.trigger)::integer),
           breaker.reason, breaker.actor, breaker.metadata
      FROM new_rows AS breaker JOIN old_rows AS was ON was.id = breaker.id
     WHERE breaker.revision <> was.revision;
    RETURN NULL;
END $$;

DROP TRIGGER run_begins ON run;
DROP TRIGGER worker_begins ON worker;
DROP TRIGGER breaker_begins ON breaker;
DROP TRIGGER run_moves ON run;
DROP TRIGGER worker_moves ON worker;
DROP TRIGGER breaker_moves ON breaker;
DROP FUNCTION entity_begins(), entity_moves();
CREATE TRIGGER run_begins AFTER INSERT ON run REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION run_begins();
CREATE TRIGGER worker_begins AFTER INSERT ON worker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION worker_begins();
CREATE TRIGGER breaker_begins AFTER INSERT ON breaker REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION breaker_begins();
CREATE TRIGGER run_moves AFTER UPDATE ON run REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION run_moves();
CREATE TRIGGER worker_moves AFTER UPDATE ON worker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION worker_moves();
CREATE TRIGGER breaker_moves AFTER UPDATE ON breaker REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION breaker_moves();

-- What these conditions replace

DROP TRIGGER run_succeeds_with_its_tasks ON run;
DROP TRIGGER run_phase_follows_state ON run;
DROP TRIGGER run_changes_by_a_move ON run;
DROP TRIGGER task_phase_follows_state ON task;
DROP TRIGGER task_changes_by_a_move ON task;
DROP TRIGGER task_waits_for_others ON task;
DROP TRIGGER attempt_stays_lost ON task;
DROP TRIGGER attempt_finds_room ON task;
DROP TRIGGER worker_phase_follows_state ON worker;
DROP TRIGGER worker_changes_by_a_move ON worker;
DROP TRIGGER worker_ends_without_tasks ON worker;
DROP TRIGGER worker_is_heard_of_while_it_lives ON worker;
DROP FUNCTION run_succeeds_with_its_tasks(), task_waits_for_others(), attempt_finds_room(), worker_ends_without_tasks();

REVOKE EXECUTE ON FUNCTION run_begins(), worker_begins(), breaker_begins(), run_moves(), worker_moves(), breaker_moves() FROM PUBLIC;

-- A task is stored in two rows: what was asked for (`task_spec`), which never changes, and where it stands (`task_state`), which moves. A move copies
-- its row, and enters the copy into every index. So that row is short, and refers to the task, its run and its parent by number.
--
-- `task` is a view of both, with the columns of the table that it replaces. What is written to it by hand is written to the two tables, under the
-- same law.

DROP VIEW transition, attempt, entity;
ALTER TABLE breaker DROP CONSTRAINT breaker_probe_task_id_fkey;
ALTER TABLE tombstone DROP CONSTRAINT tombstone_task_id_fkey;
DROP FUNCTION task_breaks(task);
ALTER TABLE task RENAME TO former_task;

CREATE SEQUENCE task_number;

CREATE TABLE task_spec (
    number         bigint PRIMARY KEY DEFAULT nextval('task_number'),
    run_number     bigint NOT NULL,
    parent_number  bigint,
    position       integer NOT NULL,
    depth          integer NOT NULL,
    critical       boolean NOT NULL,
    id             text COLLATE "C" NOT NULL,
    tenant         text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    name           text COLLATE "C" NOT NULL,
    parent_task_id text COLLATE "C",
    budget_usd     numeric(14, 6),
    policy         text NOT NULL,
    payload        text NOT NULL
);

-- The order of columns leaves few gaps.
CREATE TABLE task_state (
    number              bigint PRIMARY KEY,
    run_number          bigint NOT NULL,
    parent_number       bigint,
    entered_at          instant NOT NULL,
    created_at          instant NOT NULL,
    started_at          instant,
    completed_at        instant,
    available_at        instant,
    cancel_requested_at instant,
    attempt_started_at  instant, -- these columns are about the current attempt, or else the last one
    tokens_in           bigint NOT NULL DEFAULT 0,
    tokens_out          bigint NOT NULL DEFAULT 0,
    attempt_tokens_in   bigint NOT NULL DEFAULT 0,
    attempt_tokens_out  bigint NOT NULL DEFAULT 0,
    machine_id          integer NOT NULL,
    lane_id             integer NOT NULL,
    priority            integer NOT NULL,
    revision            integer NOT NULL DEFAULT 0,
    open_dependencies   integer NOT NULL,
    epoch               integer NOT NULL,
    current_attempt     integer,
    attempt_count       integer NOT NULL,
    max_attempts        integer,
    retry_count         integer NOT NULL,
    max_retries         integer NOT NULL,
    reclaim_count       integer NOT NULL,
    max_reclaims        integer NOT NULL,
    attempt_exit_code   integer,
    is_gate             boolean NOT NULL,
    review_wanted       boolean NOT NULL,
    has_checks          boolean NOT NULL,
    has_subtasks        boolean NOT NULL,
    allocated           boolean NOT NULL,
    run_open            boolean NOT NULL,
    lease_expired       boolean NOT NULL,
    keep_session        boolean NOT NULL,
    attempt_resumed     boolean NOT NULL,
    cost_is_estimated   boolean NOT NULL DEFAULT false,
    attempt_cost_is_estimated boolean NOT NULL DEFAULT false,
    cost_usd            numeric(14, 6) NOT NULL,
    reserved_usd        numeric(14, 6) NOT NULL,
    attempt_cost_usd    numeric(14, 6) NOT NULL,
    state               text COLLATE "C" NOT NULL,
    phase               text NOT NULL,
    outcome             text,
    trigger             text COLLATE "C" NOT NULL DEFAULT 'create',
    reason              text,
    actor               text,
    metadata            text,
    worker_id           text COLLATE "C",
    attempt_worker_id   text COLLATE "C",
    session_id          text,
    attempt_error       text,
    attempt_log_path    text,
    question            text,
    answer              text,
    comment             text,
    error               text,
    output              text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

-- Claims ask for lanes only, so from now on a lane belongs to the tenant of its tasks. The engine has never done anything else.
DO $$
BEGIN
    IF EXISTS (SELECT FROM former_task AS task LEFT JOIN run ON run.id = task.run_id LEFT JOIN former_task AS parent ON parent.id = task.parent_task_id
                WHERE run.id IS NULL OR (task.parent_task_id IS NOT NULL AND parent.id IS NULL)) THEN
        RAISE EXCEPTION 'pointsman: a task has a run or a parent that does not exist';
    ELSIF EXISTS (SELECT FROM former_task AS task LEFT JOIN lane ON lane.id = task.lane_id WHERE lane.tenant IS DISTINCT FROM task.tenant) THEN
        RAISE EXCEPTION 'pointsman: a task has the lane of another tenant';
    END IF;
END $$;

INSERT INTO task_spec (number, run_number, parent_number, position, depth, critical, id, tenant, run_id, name, parent_task_id, budget_usd, policy, payload)
SELECT task.number, run.number, parent.number, task.position, task.depth, task.critical, task.id, task.tenant, task.run_id, task.name, task.parent_task_id,
       task.budget_usd, task.policy, task.payload
  FROM former_task AS task JOIN run ON run.id = task.run_id LEFT JOIN former_task AS parent ON parent.id = task.parent_task_id
 ORDER BY task.number;

INSERT INTO task_state (number, run_number, parent_number, entered_at, created_at, started_at, completed_at, available_at, cancel_requested_at,
                        attempt_started_at, tokens_in, tokens_out, attempt_tokens_in, attempt_tokens_out, machine_id, lane_id, priority, revision,
                        open_dependencies, epoch, current_attempt, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims,
                        attempt_exit_code, is_gate, review_wanted, has_checks, has_subtasks, allocated, run_open, lease_expired, keep_session,
                        attempt_resumed, cost_is_estimated, attempt_cost_is_estimated, cost_usd, reserved_usd, attempt_cost_usd, state, phase, outcome,
                        trigger, reason, actor, metadata, worker_id, attempt_worker_id, session_id, attempt_error, attempt_log_path, question, answer,
                        comment, error, output)
SELECT task.number, spec.run_number, spec.parent_number, entered_at, created_at, started_at, completed_at, available_at, cancel_requested_at,
       attempt_started_at, tokens_in, tokens_out, attempt_tokens_in, attempt_tokens_out, machine_id, lane_id, priority, revision,
       open_dependencies, epoch, current_attempt, attempt_count, max_attempts, retry_count, max_retries, reclaim_count, max_reclaims,
       attempt_exit_code, is_gate, review_wanted, has_checks, has_subtasks, allocated, run_open, lease_expired, keep_session,
       attempt_resumed, cost_is_estimated, attempt_cost_is_estimated, cost_usd, reserved_usd, attempt_cost_usd, state, phase, outcome,
       trigger, reason, actor, metadata, worker_id, attempt_worker_id, session_id, attempt_error, attempt_log_path, question, answer,
       comment, error, output
  FROM former_task AS task JOIN task_spec AS spec ON spec.number = task.number
 ORDER BY task.number;

SELECT setval('task_number', last_value, is_called) FROM task_number_seq;
ALTER SEQUENCE task_number OWNED BY task_spec.number;
DROP TABLE former_task;
ALTER SEQUENCE task_number RENAME TO task_number_seq;

ALTER TABLE task_spec ADD CONSTRAINT task_pkey UNIQUE (id), ADD CONSTRAINT task_run_id_name_key UNIQUE (run_id, name);

-- No index but the last one has tasks that have succeeded. Within a lane and a priority, tasks begin in the order of their numbers.
CREATE INDEX task_claimable ON task_state (lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate AND NOT allocated;
CREATE INDEX task_claimable_of_run ON task_state (run_number, lane_id, priority DESC, number)
    WHERE phase = 'queued' AND open_dependencies = 0 AND available_at IS NULL AND run_open AND NOT is_gate;
CREATE INDEX task_reclaimable ON task_state (lane_id) WHERE lease_expired;
CREATE INDEX task_held ON task_state (attempt_worker_id) WHERE current_attempt IS NOT NULL;
CREATE INDEX task_unfinished ON task_state (run_number, phase) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX task_of_parent ON task_state (parent_number, outcome) WHERE parent_number IS NOT NULL;

ALTER TABLE breaker ADD CONSTRAINT breaker_probe_task_id_fkey FOREIGN KEY (probe_task_id) REFERENCES task_spec (id);
ALTER TABLE tombstone ADD CONSTRAINT tombstone_task_id_fkey FOREIGN KEY (task_id) REFERENCES task_spec (id);

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

-- What an INSERT by hand leaves out.
ALTER VIEW task ALTER COLUMN revision SET DEFAULT 0, ALTER COLUMN trigger SET DEFAULT 'create', ALTER COLUMN tokens_in SET DEFAULT 0,
    ALTER COLUMN tokens_out SET DEFAULT 0, ALTER COLUMN cost_is_estimated SET DEFAULT false, ALTER COLUMN attempt_tokens_in SET DEFAULT 0,
    ALTER COLUMN attempt_tokens_out SET DEFAULT 0, ALTER COLUMN attempt_cost_is_estimated SET DEFAULT false;

CREATE VIEW entity AS
SELECT 'run' AS kind, 0 AS kind_code, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
UNION ALL SELECT 'task', 1, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
UNION ALL SELECT 'worker', 2, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
UNION ALL SELECT 'breaker', 3, number, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker;

CREATE VIEW transition AS
SELECT trail.position, coalesce(task.tenant, run.tenant, worker.tenant, breaker.tenant) AS tenant,
       (ARRAY['run', 'task', 'worker', 'breaker'])[trail.kind + 1] AS kind, trail.number,
       coalesce(task.id, run.id, worker.id, breaker.id) AS entity_id, trail.revision, coalesce(trail.run_id, task.run_id, run.id) AS run_id,
       coalesce(rule.machine_id, created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id) AS machine_id, rule.from_state,
       coalesce(rule.to_state, beginning.name) AS to_state,
       coalesce(rule.trigger, 'create') AS trigger, coalesce(rule.severity, 'info') AS severity, trail.reason, trail.actor,
       CASE WHEN trail.metadata IS DISTINCT FROM '' THEN trail.metadata
            WHEN trail.revision = 0 THEN creation_metadata(task.run_id, task.critical, created.max_retries)
            ELSE claim_metadata(trail.actor, trail.epoch + (trail.started_at IS NOT NULL)::integer) END COLLATE "default" AS metadata,
       trail.at, extract(epoch FROM trail.at - prior.at)::double precision AS seconds_in_state
  FROM trail
  LEFT JOIN rule ON rule.id = trail.rule_id
  LEFT JOIN task_spec AS task ON task.number = CASE trail.kind WHEN 1 THEN trail.number END
  LEFT JOIN task_state AS created ON created.number = CASE WHEN trail.kind = 1 AND trail.revision = 0 THEN trail.number END
  LEFT JOIN run ON run.number = CASE trail.kind WHEN 0 THEN trail.number END
  LEFT JOIN worker ON worker.number = CASE trail.kind WHEN 2 THEN trail.number END
  LEFT JOIN breaker ON breaker.number = CASE trail.kind WHEN 3 THEN trail.number END
  LEFT JOIN state AS beginning ON trail.revision = 0 AND beginning.initial
       AND beginning.machine_id = coalesce(created.machine_id, run.machine_id, worker.machine_id, breaker.machine_id)
  LEFT JOIN trail AS prior ON prior.number = trail.number AND prior.kind = trail.kind AND prior.revision = trail.revision - 1;

-- Attempts that have ended. The current attempt is in the columns of its task.
CREATE VIEW attempt AS
SELECT task.id AS task_id, trail.epoch, task.tenant, coalesce(trail.worker_id, trail.actor) AS worker_id, trail.started_at,
       greatest(trail.at, trail.started_at) AS ended_at, rule.trigger COLLATE "default" AS ended_by, trail.error, trail.exit_code,
       coalesce(trail.cost_usd, 0)::numeric(14, 6) AS cost_usd, trail.session_id, coalesce(trail.resumed, false) AS resumed, trail.log_path,
       coalesce(trail.tokens_in, 0) AS tokens_in, coalesce(trail.tokens_out, 0) AS tokens_out,
       coalesce(trail.cost_is_estimated, false) AS cost_is_estimated
  FROM task_spec AS task JOIN trail ON trail.kind = 1 AND trail.number = task.number AND trail.started_at IS NOT NULL
  JOIN rule ON rule.id = trail.rule_id;

CREATE TRIGGER transition_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON transition
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes the audit trail');
CREATE TRIGGER attempt_is_written_by_law INSTEAD OF INSERT OR UPDATE OR DELETE ON attempt
    FOR EACH ROW EXECUTE FUNCTION forbid('only the law writes attempts');

-- The law

-- A row that moves has no id, only a number. The id is looked up when the row is refused, and not before.
CREATE OR REPLACE FUNCTION refuse_row(kind text, entity_id text, rule text) RETURNS text LANGUAGE plpgsql STRICT SET search_path FROM CURRENT AS $$
DECLARE
    called text := coalesce((SELECT id FROM task_spec WHERE number = CASE WHEN entity_id ~ '^#-?[0-9]{1,18}$' THEN substr(entity_id, 2)::bigint END),
                            entity_id);
BEGIN
    IF rule LIKE '%\_fkey' THEN
        RAISE EXCEPTION 'pointsman: % % refers to a row that does not exist: it breaks the rule "%"', kind, called, rule
            USING ERRCODE = 'foreign_key_violation', CONSTRAINT = rule, TABLE = kind;
    END IF;
    RAISE EXCEPTION 'pointsman: % % breaks the rule "%"', kind, called, rule
        USING ERRCODE = 'check_violation', CONSTRAINT = rule, TABLE = kind;
END $$;

CREATE FUNCTION task_id(of_number bigint) RETURNS text LANGUAGE sql STABLE SET search_path FROM CURRENT
RETURN (SELECT id FROM task_spec WHERE number = of_number);

-- The first rule that a task breaks by where it stands, or null.
CREATE FUNCTION task_breaks(task task_state) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.phase NOT IN ('held', 'queued', 'active', 'done') THEN 'task_phase_check'
    WHEN task.outcome NOT IN ('success', 'failure', 'canceled') THEN 'task_outcome_check'
    WHEN (task.phase = 'done') <> (task.outcome IS NOT NULL) THEN 'task_done_has_outcome'
    WHEN (task.phase = 'done') <> (task.completed_at IS NOT NULL) THEN 'task_done_is_completed'
    WHEN task.started_at < task.created_at THEN 'task_starts_after_creation'
    WHEN task.completed_at < coalesce(task.started_at, task.created_at) THEN 'task_completes_after_start'
    WHEN task.metadata IS NOT JSON OBJECT THEN 'task_metadata_check'
    WHEN task.open_dependencies < 0 THEN 'task_open_dependencies_check'
    WHEN task.available_at IS NOT NULL AND task.phase NOT IN ('held', 'queued') THEN 'task_waits_before_it_runs'
    WHEN task.phase = 'active' AND (task.open_dependencies <> 0 OR task.is_gate) THEN 'task_runs_when_free'
    -- Attempts and workers
    WHEN (task.phase = 'active') <> (task.current_attempt IS NOT NULL) THEN 'task_active_has_attempt'
    WHEN task.current_attempt <> task.epoch THEN 'task_attempt_is_latest'
    WHEN task.current_attempt IS NOT NULL AND (task.attempt_worker_id IS NULL OR task.attempt_started_at IS NULL) THEN 'task_attempt_has_begun'
    WHEN task.worker_id IS NOT NULL AND task.phase <> 'active' THEN 'task_worker_is_active'
    WHEN task.lease_expired AND task.phase <> 'active' THEN 'task_lost_lease_is_active'
    WHEN task.epoch < 0 THEN 'task_epoch_check'
    WHEN task.attempt_count < 0 THEN 'task_attempt_count_check'
    WHEN task.attempt_count > task.max_attempts THEN 'task_attempts_in_bounds'
    WHEN task.retry_count NOT BETWEEN 0 AND task.max_retries THEN 'task_retries_in_bounds'
    WHEN task.reclaim_count NOT BETWEEN 0 AND task.max_reclaims THEN 'task_reclaims_in_bounds'
    -- Money and tokens
    WHEN task.cost_usd < 0 THEN 'task_cost_usd_check'
    WHEN task.reserved_usd < 0 THEN 'task_reserved_usd_check'
    WHEN task.reserved_usd <> 0 AND task.phase <> 'active' THEN 'task_reserves_while_active'
    WHEN task.attempt_cost_usd < 0 THEN 'task_attempt_cost_usd_check'
    WHEN task.tokens_in < 0 THEN 'task_tokens_in_check'
    WHEN task.tokens_out < 0 THEN 'task_tokens_out_check'
    WHEN task.attempt_tokens_in < 0 THEN 'task_attempt_tokens_in_check'
    WHEN task.attempt_tokens_out < 0 THEN 'task_attempt_tokens_out_check'
END;

-- The same by what was asked for.
CREATE FUNCTION task_spec_breaks(task task_spec) RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN task.policy IS NOT JSON THEN 'task_policy_check'
    WHEN task.depth NOT BETWEEN 0 AND 5 THEN 'task_depth_check'
    WHEN (task.depth = 0) <> (task.parent_task_id IS NULL) OR (task.depth = 0) <> (task.parent_number IS NULL) THEN 'task_depth_follows_parent'
    WHEN task.budget_usd < 0 THEN 'task_budget_usd_check'
END;

CREATE FUNCTION task_is_specified() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM refuse_change(format('a task is stored in two rows, and %s has only one', task.id)) FROM new_rows AS task
      WHERE (SELECT true FROM task_state WHERE task_state.number = task.number) IS NULL;
    RETURN NULL;
END $$;

-- What a task refers to is looked up once for all tasks that refer to the same. A lane belongs to the tenant of its tasks: claims ask for lanes only.
CREATE OR REPLACE FUNCTION task_begins() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    ended text;
BEGIN
    -- The lock keeps the runs from succeeding before this transaction ends. The engine holds a stronger one already.
    SELECT max(id) FILTER (WHERE outcome = 'success') INTO ended
      FROM (SELECT id, outcome FROM run WHERE number = ANY(ARRAY(SELECT DISTINCT run_number FROM new_rows)) ORDER BY id FOR SHARE) AS locked;
    IF ended IS NOT NULL THEN
        RAISE EXCEPTION 'pointsman: a run that has succeeded gets no more tasks, and % has', ended;
    END IF;
    PERFORM refuse_row('task', task.id,
                       CASE WHEN (SELECT true FROM tenant AS other WHERE other.id = task.tenant) IS NULL THEN 'task_tenant_fkey'
                            WHEN (SELECT true FROM run AS other WHERE other.id = task.run_id AND other.number = task.run_number) IS NULL
                            THEN 'task_run_id_fkey'
                            WHEN (SELECT true FROM lane AS other WHERE other.id = task.lane_id AND other.tenant = task.tenant) IS NULL
                            THEN 'task_lane_id_fkey'
                            WHEN task.parent_task_id IS NOT NULL
                                 AND (SELECT true FROM task_spec AS other
                                       WHERE other.id = task.parent_task_id AND other.number = task.parent_number) IS NULL
                            THEN 'task_parent_task_id_fkey'
                       END)
       FROM (SELECT DISTINCT ON (spec.run_number, spec.parent_number, task.lane_id, spec.tenant, spec.run_id, spec.parent_task_id) spec.*, task.lane_id
               FROM new_rows AS task JOIN task_spec AS spec ON spec.number = task.number) AS task;
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, reason, actor, metadata)
    SELECT task.created_at, task.number, 1,
           CASE WHEN refuse_row('task', spec.id, task_breaks(ROW(task.*)::task_state)) IS NOT NULL THEN NULL
                WHEN refuse_row('task', spec.id, task_spec_breaks(ROW(spec.*)::task_spec)) IS NOT NULL THEN NULL
                WHEN spec.run_number IS DISTINCT FROM task.run_number OR spec.parent_number IS DISTINCT FROM task.parent_number
                THEN refuse_change('the two rows of a task have the same number, run and parent')::integer
                WHEN task.number > (SELECT coalesce(pg_sequence_last_value('task_number_seq'), 0)) THEN refuse_number('task')::integer
                WHEN spec.id ~ '^(run|j|worker|breaker)_' THEN refuse_id('task', spec.id)::integer
                ELSE coalesce((SELECT 0 FROM state
                                WHERE state.machine_id = task.machine_id AND state.initial AND state.kind = 'task'
                                  AND task.epoch = 0 AND task.attempt_worker_id IS NULL
                                  AND (task.revision = 1
                                       OR (task.revision = 0 AND state.name = task.state AND state.phase = task.phase
                                           AND state.outcome IS NOT DISTINCT FROM task.outcome))),
                              refuse_beginning('task', spec.id, task.machine_id, task.state)::integer) END,
           task.reason, task.actor,
           CASE WHEN task.revision = 1 OR task.metadata = creation_metadata(spec.run_id, spec.critical, task.max_retries) THEN ''
                ELSE task.metadata END
      FROM new_rows AS task LEFT JOIN task_spec AS spec ON spec.number = task.number;
    -- A task that waits for nothing may be created with its first move: then it has two lines, with the same actor.
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT task.entered_at, task.number, 1, 1,
           coalesce((SELECT rule.id FROM rule JOIN state ON state.machine_id = rule.machine_id AND state.name = rule.from_state
                      WHERE rule.machine_id = task.machine_id AND state.initial AND rule.to_state = task.state AND rule.trigger = task.trigger
                        AND rule.to_phase = task.phase AND rule.to_phase IN ('held', 'queued') AND NOT rule.needs_worker
                        AND (NOT rule.needs_session OR task.session_id IS NOT NULL) AND task.open_dependencies = 0
                        AND task.entered_at = task.created_at),
                    refuse_beginning('task', task_id(task.number), task.machine_id, task.state)::integer),
           task.reason, task.actor, task.metadata
      FROM new_rows AS task
     WHERE task.revision = 1;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION task_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
    unfit text[];
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata, epoch, worker_id, started_at, resumed, session_id, cost_usd,
                       error, exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    SELECT task.entered_at, task.number, 1, task.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = task.state
                        AND rule.trigger = task.trigger AND rule.to_phase = task.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM task.outcome AND task.revision = was.revision + 1
                        AND needs_worker = (task.worker_id IS NOT NULL)
                        AND (NOT needs_session OR task.session_id IS NOT NULL)
                        AND (NOT needs_dependencies OR task.open_dependencies = 0)
                        -- A new attempt has the next epoch, and a worker that begins it itself; otherwise both stay.
                        AND task.epoch = was.epoch + (task.current_attempt IS NOT NULL
                                                      AND task.current_attempt IS DISTINCT FROM was.current_attempt)::integer
                        AND (task.worker_id IS NULL OR task.worker_id = task.attempt_worker_id)
                        AND CASE WHEN task.epoch = was.epoch THEN task.attempt_worker_id IS NOT DISTINCT FROM was.attempt_worker_id
                                 ELSE task.attempt_worker_id = task.actor END),
                    refuse_move(task_id(task.number), was.machine_id, was.state, task.state, task.trigger)::integer),
           task.reason, task.actor, CASE WHEN task.epoch <> was.epoch AND task.metadata = claim_metadata(task.actor, task.epoch) THEN '' ELSE task.metadata END,
           CASE WHEN ends THEN was.epoch WHEN task.epoch <> was.epoch THEN task.epoch END,
           CASE WHEN ends THEN nullif(was.attempt_worker_id, task.actor) END,
           CASE WHEN ends THEN was.attempt_started_at END,
           CASE WHEN ends THEN nullif(was.attempt_resumed, false) END,
           CASE WHEN hands_over THEN was.session_id WHEN ends THEN task.session_id END,
           nullif(CASE WHEN hands_over THEN was.attempt_cost_usd WHEN ends THEN task.attempt_cost_usd END, 0),
           CASE WHEN hands_over THEN was.attempt_error WHEN ends THEN task.attempt_error END,
           CASE WHEN hands_over THEN was.attempt_exit_code WHEN ends THEN task.attempt_exit_code END,
           CASE WHEN hands_over THEN was.attempt_log_path WHEN ends THEN task.attempt_log_path END,
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_in WHEN ends THEN task.attempt_tokens_in END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_tokens_out WHEN ends THEN task.attempt_tokens_out END, 0),
           nullif(CASE WHEN hands_over THEN was.attempt_cost_is_estimated WHEN ends THEN task.attempt_cost_is_estimated END, false)
      FROM new_rows AS task JOIN old_rows AS was ON was.number = task.number
     CROSS JOIN LATERAL (SELECT was.current_attempt IS NOT NULL AND task.current_attempt IS DISTINCT FROM was.current_attempt AS ends,
                                was.current_attempt IS NOT NULL AND task.current_attempt <> was.current_attempt AS hands_over) AS attempt
     WHERE CASE WHEN task.number <> was.number THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('task', '#' || task.number, task_breaks(ROW(task.*)::task_state)) IS NOT NULL THEN NULL
                WHEN was.lease_expired AND NOT task.lease_expired AND task.current_attempt IS NOT DISTINCT FROM was.current_attempt
                THEN refuse_change('an attempt that has lost its lease does not get it back')
                -- Only tasks that have succeeded are no longer waited for. Counts that are too high are the doctor's: they start nothing.
                WHEN task.open_dependencies = 0 AND was.open_dependencies > 0
                     AND (SELECT true FROM dependency
                           WHERE dependency.task_id = (SELECT id FROM task_spec AS spec WHERE spec.number = task.number)
                             AND (SELECT outcome FROM task_state WHERE number = (SELECT number FROM task_spec WHERE id = dependency.depends_on_id))
                                 IS DISTINCT FROM 'success'
                           LIMIT 1)
                THEN refuse_change(format('a task waits until all tasks that it depends on have succeeded, and %s depends on others',
                                          task_id(task.number)))
                WHEN task.revision <> was.revision THEN 'moves'
                WHEN (task.trigger, task.reason, task.actor, task.metadata, task.entered_at, task.started_at, task.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a task; change its state instead')
                WHEN (task.phase, task.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = task.machine_id AND name = task.state
                             AND phase = task.phase AND outcome IS NOT DISTINCT FROM task.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a task; change its state instead')
                WHEN task.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a task; change its state instead')
                WHEN (task.epoch, task.current_attempt, task.worker_id, task.attempt_worker_id)
                     IS DISTINCT FROM (was.epoch, was.current_attempt, was.worker_id, was.attempt_worker_id)
                THEN refuse_change('only a move changes the worker, attempt and epoch of a task; change its state instead')
           END = 'moves';
    -- A worker begins an attempt only if it serves the tenant, has not ended, and has room. Whether an attempt began is looked up only
    -- about a worker that gets none: that join would cost too much for every move.
    IF EXISTS (SELECT FROM new_rows WHERE current_attempt IS NOT NULL) THEN
        unfit := ARRAY(SELECT worker_id FROM (SELECT DISTINCT attempt_worker_id AS worker_id, lane_id FROM new_rows
                                               WHERE current_attempt IS NOT NULL) AS holder
                        WHERE (SELECT worker.phase <> 'done'
                                      AND worker.max_concurrent_tasks >= (SELECT count(*) FROM task_state AS held
                                                                           WHERE held.attempt_worker_id = worker.id
                                                                             AND held.current_attempt IS NOT NULL AND NOT held.lease_expired)
                                      AND (worker.serves = '"all"'
                                           OR (SELECT lane.tenant = worker.tenant OR worker.serves::jsonb ? lane.tenant
                                                 FROM lane WHERE lane.id = holder.lane_id))
                                 FROM worker WHERE worker.id = holder.worker_id) IS NOT TRUE);
        IF unfit <> '{}' THEN
            PERFORM refuse_change('a worker that has ended gets no task, and no worker gets more than it may hold: ' || task.attempt_worker_id)
               FROM new_rows AS task JOIN old_rows AS was ON was.number = task.number
              WHERE task.attempt_worker_id = ANY (unfit) AND task.epoch <> was.epoch;
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER task_is_specified AFTER INSERT ON task_spec REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION task_is_specified();
CREATE TRIGGER task_keeps_its_spec BEFORE UPDATE ON task_spec
    EXECUTE FUNCTION forbid('a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');
CREATE TRIGGER task_spec_is_not_deleted BEFORE DELETE OR TRUNCATE ON task_spec EXECUTE FUNCTION forbid('a task cannot be deleted');
CREATE TRIGGER task_begins AFTER INSERT ON task_state REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION task_begins();
CREATE TRIGGER task_moves AFTER UPDATE ON task_state REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION task_moves();
CREATE TRIGGER task_is_not_deleted BEFORE DELETE OR TRUNCATE ON task_state EXECUTE FUNCTION forbid('a task cannot be deleted');
CREATE TRIGGER task_keeps_its_number BEFORE UPDATE OF number ON task_state EXECUTE FUNCTION forbid('a task keeps its number');
CREATE TRIGGER task_keeps_what_it_began_with
    BEFORE UPDATE OF run_number, parent_number, created_at, machine_id, lane_id, priority, is_gate, review_wanted, has_checks, allocated, max_attempts,
                     max_retries, max_reclaims ON task_state FOR EACH ROW
    WHEN ((new.run_number, new.parent_number, new.created_at, new.machine_id, new.lane_id, new.priority, new.is_gate, new.review_wanted,
           new.has_checks, new.allocated, new.max_attempts, new.max_retries, new.max_reclaims)
          IS DISTINCT FROM
          (old.run_number, old.parent_number, old.created_at, old.machine_id, old.lane_id, old.priority, old.is_gate, old.review_wanted,
           old.has_checks, old.allocated, old.max_attempts, old.max_retries, old.max_reclaims))
    EXECUTE FUNCTION forbid('a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with');

-- Moves by hand. What follows from the new state is set before the row is stored, and then it is a move like any other.

CREATE OR REPLACE FUNCTION moved_by_hand() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    SELECT * INTO track FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
     ORDER BY trigger LIMIT 1;
    IF NOT FOUND THEN
        PERFORM refuse_move(old.id, old.machine_id, old.state, new.state, 'by hand');
    END IF;
    new.phase := track.to_phase;
    new.outcome := track.to_outcome;
    new.revision := old.revision + 1;
    new.trigger := track.trigger;
    new.reason := CASE WHEN new.reason IS DISTINCT FROM old.reason THEN new.reason END;
    new.actor := 'sql';
    new.metadata := NULL;
    new.entered_at := greatest(old.entered_at, clock_timestamp());
    new.started_at := CASE WHEN new.phase = 'active' THEN coalesce(old.started_at, new.entered_at) ELSE old.started_at END;
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    IF TG_TABLE_NAME = 'worker' AND new.phase = 'done' THEN
        new.run_id := NULL;
    ELSIF TG_TABLE_NAME = 'breaker' THEN
        new.probe_task_id := NULL;
    END IF;
    RETURN new;
END $$;

-- No hand-typed change begins an attempt: nothing would run.
CREATE FUNCTION task_moved_by_hand() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    track rule;
BEGIN
    SELECT * INTO track FROM rule
     WHERE machine_id = old.machine_id AND from_state = old.state AND to_state = new.state
       AND NOT needs_worker AND to_phase <> 'active'
       AND (NOT needs_session OR new.session_id IS NOT NULL) AND (NOT needs_dependencies OR new.open_dependencies = 0)
     ORDER BY trigger LIMIT 1;
    IF NOT FOUND THEN
        PERFORM refuse_move(task_id(old.number), old.machine_id, old.state, new.state, 'by hand');
    END IF;
    new.phase := track.to_phase;
    new.outcome := track.to_outcome;
    new.revision := old.revision + 1;
    new.trigger := track.trigger;
    new.reason := CASE WHEN new.reason IS DISTINCT FROM old.reason THEN new.reason END;
    new.actor := 'sql';
    new.metadata := NULL;
    new.entered_at := greatest(old.entered_at, clock_timestamp());
    new.completed_at := CASE WHEN new.phase = 'done' THEN new.entered_at END;
    new.current_attempt := NULL;
    new.worker_id := NULL;
    new.lease_expired := false;
    new.reserved_usd := 0;
    new.available_at := NULL;
    RETURN new;
END $$;

CREATE TRIGGER task_moved_by_hand BEFORE UPDATE OF state ON task_state FOR EACH ROW
    WHEN (new.state IS DISTINCT FROM old.state AND new.revision = old.revision) EXECUTE FUNCTION task_moved_by_hand();

-- What is written to the view by hand goes to the two tables. Only the columns that the statement has changed are written, and only if no other
-- transaction has changed these since it found the row.
CREATE FUNCTION task_written_by_hand() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    wanted  jsonb;
    columns text;
    written integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        new.number := coalesce(new.number, nextval('task_number_seq'));
        new.run_number := coalesce((SELECT number FROM run WHERE id = new.run_id), 0); -- the law says that there is no such run
        new.parent_number := (SELECT number FROM task_spec WHERE id = new.parent_task_id);
        WITH spec AS (INSERT INTO task_spec SELECT * FROM jsonb_populate_record(NULL::task_spec, to_jsonb(new)))
        INSERT INTO task_state SELECT * FROM jsonb_populate_record(NULL::task_state, to_jsonb(new));
        RETURN new;
    END IF;
    IF new.number IS DISTINCT FROM old.number THEN
        RAISE EXCEPTION 'pointsman: a task keeps its number';
    END IF;
    wanted := (SELECT jsonb_object_agg(change.key, change.value) FROM jsonb_each(to_jsonb(new)) AS change
                WHERE change.value IS DISTINCT FROM to_jsonb(old) -> change.key);
    IF to_jsonb(jsonb_populate_record(NULL::task_spec, to_jsonb(old))) ?| ARRAY(SELECT jsonb_object_keys(wanted)) THEN
        RAISE EXCEPTION 'pointsman: a task keeps its id, machine, tenant, run, name, payload and everything else that it was created with';
    END IF;
    columns := (SELECT string_agg(quote_ident(key), ', ') FROM jsonb_object_keys(wanted) AS key);
    IF columns IS NULL THEN
        RETURN new;
    END IF;
    EXECUTE format('UPDATE task_state SET (%1$s) = (SELECT %1$s FROM jsonb_populate_record(NULL::task_state, $1)) '
                   'WHERE number = $3 AND ROW(%1$s) IS NOT DISTINCT FROM (SELECT ROW(%1$s) FROM jsonb_populate_record(NULL::task_state, $2))', columns)
      USING wanted, to_jsonb(old), old.number;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written = 0 THEN
        RAISE EXCEPTION 'pointsman: another transaction has changed % meanwhile; try again', old.id USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER task_written_by_hand INSTEAD OF INSERT OR UPDATE ON task FOR EACH ROW EXECUTE FUNCTION task_written_by_hand();
CREATE TRIGGER task_deleted_by_hand INSTEAD OF DELETE ON task FOR EACH ROW EXECUTE FUNCTION forbid('a task cannot be deleted');

-- A dependency is inserted behind its task, and before that moves. What it adds must have been counted.
CREATE OR REPLACE FUNCTION dependency_comes_with_its_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM CASE WHEN spec.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_task_id_fkey')
                 WHEN other_spec.id IS NULL THEN refuse_row('dependency', new_rows.task_id, 'dependency_depends_on_id_fkey')
                 ELSE refuse_change('a task gets its dependencies when it is created, and counts those that are open') END
       FROM new_rows
       LEFT JOIN task_spec AS spec ON spec.id = new_rows.task_id
       LEFT JOIN task_state AS task ON task.number = spec.number
       LEFT JOIN task_spec AS other_spec ON other_spec.id = new_rows.depends_on_id
       LEFT JOIN task_state AS other ON other.number = other_spec.number
      WHERE spec.id IS NULL OR other_spec.id IS NULL OR task.revision > 0
         OR (task.open_dependencies = 0 AND other.outcome IS DISTINCT FROM 'success');
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION run_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, reason, actor, metadata)
    SELECT run.entered_at, run.number, 0, run.revision,
           coalesce((SELECT CASE WHEN (run.outcome = 'success' OR rule.needs_dependencies)
                              AND (SELECT true FROM task_state WHERE run_number = run.number AND (outcome IS NULL OR outcome <> 'success') LIMIT 1)
                             THEN refuse_change(format('a run is validated and succeeds only when all of its tasks have succeeded, '
                                                       'and %s has others', run.id))::integer
                             ELSE rule.id END FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = run.state
                        AND rule.trigger = run.trigger AND rule.to_phase = run.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM run.outcome AND run.revision = was.revision + 1),
                    refuse_move(run.id, was.machine_id, was.state, run.state, run.trigger)::integer),
           run.reason, run.actor, run.metadata
      FROM new_rows AS run JOIN old_rows AS was ON was.id = run.id
     WHERE CASE WHEN run.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('run', run.id, run_breaks(ROW(run.*)::run)) IS NOT NULL THEN NULL
                WHEN run.revision <> was.revision THEN 'moves'
                WHEN (run.trigger, run.reason, run.actor, run.metadata, run.entered_at, run.started_at, run.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a run; change its state instead')
                WHEN (run.phase, run.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = run.machine_id AND name = run.state
                             AND phase = run.phase AND outcome IS NOT DISTINCT FROM run.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a run; change its state instead')
                WHEN run.output IS DISTINCT FROM was.output
                THEN refuse_change('only a move changes the output of a run; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION worker_moves() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_hashjoin = on SET enable_nestloop = off AS $$
BEGIN
    PERFORM announce_moves();
    INSERT INTO trail (at, number, kind, revision, rule_id, run_id, reason, actor, metadata)
    SELECT worker.entered_at, worker.number, 2, worker.revision,
           coalesce((SELECT rule.id FROM rule
                      WHERE rule.machine_id = was.machine_id AND rule.from_state = was.state AND rule.to_state = worker.state
                        AND rule.trigger = worker.trigger AND rule.to_phase = worker.phase
                        AND rule.to_outcome IS NOT DISTINCT FROM worker.outcome AND worker.revision = was.revision + 1),
                    refuse_move(worker.id, was.machine_id, was.state, worker.state, worker.trigger)::integer),
           worker.run_id, worker.reason, worker.actor, worker.metadata
      FROM new_rows AS worker JOIN old_rows AS was ON was.id = worker.id
     WHERE CASE WHEN worker.id <> was.id THEN NULL -- whatever the planner evaluates first
                WHEN refuse_row('worker', worker.id, worker_breaks(ROW(worker.*)::worker)) IS NOT NULL THEN NULL
                WHEN worker.run_id IS NOT NULL AND worker.run_id IS DISTINCT FROM was.run_id
                     AND (SELECT true FROM run WHERE run.id = worker.run_id) IS NULL
                THEN refuse_row('worker', worker.id, 'worker_run_id_fkey')
                WHEN worker.heartbeat_at <> was.heartbeat_at AND (was.phase = 'done' OR worker.missing)
                THEN refuse_change('only a worker that is alive and not missing has a heartbeat')
                WHEN worker.phase = 'done' AND was.phase <> 'done'
                     AND (SELECT true FROM task_state WHERE attempt_worker_id = worker.id AND current_attempt IS NOT NULL AND NOT lease_expired LIMIT 1)
                THEN refuse_change(format('a worker ends only when it holds no task, and %s holds some', worker.id))
                WHEN worker.revision <> was.revision THEN 'moves'
                WHEN (worker.trigger, worker.reason, worker.actor, worker.metadata, worker.entered_at, worker.started_at, worker.completed_at)
                     IS DISTINCT FROM (was.trigger, was.reason, was.actor, was.metadata, was.entered_at, was.started_at, was.completed_at)
                THEN refuse_change('only a move changes the times and the cause of a worker; change its state instead')
                WHEN (worker.phase, worker.outcome) IS DISTINCT FROM (was.phase, was.outcome)
                     AND (SELECT true FROM state WHERE machine_id = worker.machine_id AND name = worker.state
                             AND phase = worker.phase AND outcome IS NOT DISTINCT FROM worker.outcome) IS NULL
                THEN refuse_change('only a move changes the phase of a worker; change its state instead')
           END = 'moves';
    RETURN NULL;
END $$;

-- Sessions plan their statements once: not before there are statistics. Those of empty tables would be worse than none.
DO $$
BEGIN
    IF EXISTS (SELECT FROM task_spec) THEN
        ANALYZE task_spec, task_state;
    END IF;
END $$;

-- A process of the version before asks for the correction of the clock at the beginning of each transaction, and then learns why it cannot go on.

ALTER TABLE clock_correction RENAME TO clock_offset;
CREATE VIEW clock_correction AS
SELECT refuse_former_version() AS id, NULL::integer AS revision, NULL::double precision AS offset_seconds, NULL::instant AS corrected_at;

REVOKE EXECUTE ON FUNCTION task_is_specified(), task_moved_by_hand() FROM PUBLIC;
