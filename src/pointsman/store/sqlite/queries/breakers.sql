-- name: find_breaker
SELECT * FROM breaker WHERE tool = :tool AND tenant = :tenant

-- name: list_breakers
SELECT * FROM breaker WHERE tenant = :tenant ORDER BY tool

-- name: lock_breakers
SELECT * FROM breaker WHERE tenant = :tenant AND tool IN (SELECT value FROM json_each(:tools)) ORDER BY id

-- name: list_guarded_breakers
SELECT * FROM breaker
 WHERE tenant = :tenant AND (phase <> 'queued' OR max_concurrent IS NOT NULL OR rate_count IS NOT NULL)
 ORDER BY id

-- name: count_at_work
-- Everything that is held by anybody, which is no more than all workers have slots.
SELECT count(*) FROM task INDEXED BY task_held
 WHERE current_attempt IS NOT NULL AND lease_expired = 0
   AND lane_id IN (SELECT id FROM lane WHERE tenant = :tenant AND tool = :tool)

-- name: insert_breakers
INSERT INTO breaker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                     started_at, completed_at, tool, failure_count, failure_threshold, success_count, success_threshold,
                     cooldown_seconds, retry_at, probe_task_id, max_concurrent, rate_count, rate_seconds, begun)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :tool, :failure_count, :failure_threshold, :success_count, :success_threshold,
        :cooldown_seconds, :retry_at, :probe_task_id, :max_concurrent, :rate_count, :rate_seconds, :begun)
