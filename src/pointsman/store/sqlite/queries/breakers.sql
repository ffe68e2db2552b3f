-- name: find_breaker
SELECT * FROM breaker WHERE tool = :tool AND tenant = :tenant

-- name: list_breakers
SELECT * FROM breaker WHERE tenant = :tenant ORDER BY tool

-- name: lock_breakers
SELECT * FROM breaker WHERE tenant = :tenant AND tool IN (SELECT value FROM json_each(:tools)) ORDER BY id

-- name: list_tripped_tools
SELECT tool FROM breaker WHERE tenant = :tenant AND phase <> 'queued'

-- name: insert_breakers
INSERT INTO breaker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                     started_at, completed_at, tool, failure_count, failure_threshold, success_count, success_threshold,
                     cooldown_seconds, retry_at, probe_task_id)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :tool, :failure_count, :failure_threshold, :success_count, :success_threshold,
        :cooldown_seconds, :retry_at, :probe_task_id)
