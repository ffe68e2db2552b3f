-- name: correct_clock
-- The first of several processes that notice a step corrects it; the others find another revision.
INSERT INTO clock_offset (id, revision, offset_seconds, corrected_at) VALUES (1, :revision, :offset_seconds, :corrected_at)
    ON CONFLICT (id) DO UPDATE
   SET revision = excluded.revision, offset_seconds = excluded.offset_seconds, corrected_at = excluded.corrected_at
 WHERE clock_offset.revision = excluded.revision - 1
RETURNING revision

-- name: was_heard
-- Whether a worker has sent a heartbeat in an interval of time.
SELECT EXISTS (SELECT 1 FROM worker WHERE phase <> 'done' AND heartbeat_at > :after AND heartbeat_at <= :until)
