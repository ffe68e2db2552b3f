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
