-- A tool that has reached its usage limit says when that ends: its circuit is open until then, at least.
ALTER TABLE breaker ADD COLUMN limited_until INTEGER CHECK (limited_until BETWEEN 0 AND 253402300799999999);

-- What agents use: tokens, and whether some of the cost is an estimate. Summed up for each attempt, task and run.
ALTER TABLE attempt ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0 CHECK (tokens_in >= 0);
ALTER TABLE attempt ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0 CHECK (tokens_out >= 0);
ALTER TABLE attempt ADD COLUMN cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimated IN (0, 1));
ALTER TABLE task ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0 CHECK (tokens_in >= 0);
ALTER TABLE task ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0 CHECK (tokens_out >= 0);
ALTER TABLE task ADD COLUMN cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimated IN (0, 1));
ALTER TABLE task ADD COLUMN attempt_tokens_in INTEGER NOT NULL DEFAULT 0 CHECK (attempt_tokens_in >= 0);
ALTER TABLE task ADD COLUMN attempt_tokens_out INTEGER NOT NULL DEFAULT 0 CHECK (attempt_tokens_out >= 0);
ALTER TABLE task ADD COLUMN attempt_cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (attempt_cost_is_estimated IN (0, 1));
ALTER TABLE run ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0 CHECK (tokens_in >= 0);
ALTER TABLE run ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0 CHECK (tokens_out >= 0);
ALTER TABLE run ADD COLUMN cost_is_estimated INTEGER NOT NULL DEFAULT 0 CHECK (cost_is_estimated IN (0, 1));

DROP TRIGGER attempt_ends;
CREATE TRIGGER attempt_ends AFTER UPDATE OF current_attempt ON task
    WHEN old.current_attempt IS NOT NULL AND new.current_attempt IS NOT old.current_attempt BEGIN
    INSERT INTO attempt (task_id, epoch, tenant, worker_id, started_at, ended_at, ended_by, resumed, session_id, cost_usd, error,
                         exit_code, log_path, tokens_in, tokens_out, cost_is_estimated)
    VALUES (old.id, old.current_attempt, old.tenant, old.attempt_worker_id, old.attempt_started_at,
            max(new.entered_at, old.attempt_started_at), new.trigger, old.attempt_resumed,
            CASE WHEN new.current_attempt IS NULL THEN new.session_id ELSE old.session_id END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_cost_usd ELSE old.attempt_cost_usd END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_error ELSE old.attempt_error END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_exit_code ELSE old.attempt_exit_code END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_log_path ELSE old.attempt_log_path END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_tokens_in ELSE old.attempt_tokens_in END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_tokens_out ELSE old.attempt_tokens_out END,
            CASE WHEN new.current_attempt IS NULL THEN new.attempt_cost_is_estimated ELSE old.attempt_cost_is_estimated END);
END;

-- What a tenant may spend, and has spent in all its runs. Transactions add to it in their last statement, so none waits for another one
-- that still needs locks.
CREATE TABLE account (
    tenant            TEXT PRIMARY KEY REFERENCES tenant,
    budget_usd        INTEGER CHECK (budget_usd >= 0),
    spent_usd         INTEGER NOT NULL CHECK (spent_usd >= 0),
    tokens_in         INTEGER NOT NULL CHECK (tokens_in >= 0),
    tokens_out        INTEGER NOT NULL CHECK (tokens_out >= 0),
    cost_is_estimated INTEGER NOT NULL CHECK (cost_is_estimated IN (0, 1))
) STRICT, WITHOUT ROWID;
INSERT INTO account (tenant, spent_usd, tokens_in, tokens_out, cost_is_estimated)
SELECT tenant, sum(spent_usd), 0, 0, 0 FROM run GROUP BY tenant HAVING sum(spent_usd) > 0;
