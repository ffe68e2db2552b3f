-- name: list_duty_failures
SELECT {duty_failure} FROM duty_failure WHERE failed_at > :since ORDER BY failed_at DESC

-- name: save_duty_failures
INSERT INTO {new duty_failure}
    ON CONFLICT (name, process) DO UPDATE
   SET failures = excluded.failures, error = excluded.error, failed_at = excluded.failed_at

-- name: drop_duty_failures
-- Also those of processes that have ended without a word.
DELETE FROM duty_failure WHERE (name = :name AND process = :process) OR failed_at < :before
