-- name: last_seal
SELECT {seal} FROM seal ORDER BY position DESC LIMIT 1

-- name: list_seals
SELECT {seal} FROM seal WHERE seal.position > :after ORDER BY seal.position LIMIT :limit

-- name: insert_seal
-- Another process may have sealed the same transitions: then nothing is inserted.
INSERT INTO seal (position, previous, digest, sealed_at)
SELECT CAST(:position AS BIGINT), CAST(:previous AS BIGINT), CAST(:digest AS TEXT), :sealed_at
 WHERE CAST(:previous AS BIGINT) = (SELECT coalesce(max(position), 0) FROM seal)
    ON CONFLICT DO NOTHING
RETURNING position

-- name: list_broken_trails
-- Reads the whole audit trail once by trail_of_entity, and probes it once for each entity.
SELECT kind, coalesce(entity_id, 'number ' || number), 'move ' || revision || ' of its audit trail does not continue the one before' AS what
  FROM (SELECT kind, number, entity_id, revision, from_state, lag(to_state) OVER entity AS before, lag(revision) OVER entity AS prior
          FROM transition WINDOW entity AS (PARTITION BY kind, number ORDER BY revision)) AS trail
 WHERE from_state IS DISTINCT FROM before OR revision <> coalesce(prior + 1, 0)
UNION ALL
SELECT kind, entity_id, 'no rule of its machine allows move ' || revision || ' of its audit trail, ' || from_state || ' -> ' || to_state
                        || ' : ' || trigger
  FROM transition
 WHERE revision > 0 AND entity_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM entity WHERE entity.kind = transition.kind AND entity.id = entity_id AND entity.machine_id = transition.machine_id)
UNION ALL
SELECT kind, 'number ' || number, 'it has an audit trail, but there is no such ' || kind
  FROM transition
 WHERE entity_id IS NULL
UNION ALL
SELECT entity.kind, entity.id, 'its row differs from the last line of its audit trail'
  FROM entity
  LEFT JOIN transition AS line ON line.number = entity.number AND line.kind = entity.kind AND line.revision = entity.revision
 WHERE line.position IS NULL
    OR line.machine_id <> entity.machine_id OR line.to_state <> entity.state OR line.trigger <> entity.trigger
    OR line.reason IS DISTINCT FROM entity.reason OR line.actor IS DISTINCT FROM entity.actor
    OR line.metadata IS DISTINCT FROM entity.metadata OR (entity.revision > 0 AND line.at <> entity.entered_at)
    OR EXISTS (SELECT 1 FROM trail
                WHERE trail.number = entity.number AND trail.kind = entity.kind_code AND trail.revision > entity.revision)
UNION ALL
SELECT 'task', id, 'it has had ' || begun || ' attempts that have ended, but ' || stored || ' are stored'
  FROM (SELECT id, epoch - CASE WHEN current_attempt IS NULL THEN 0 ELSE 1 END AS begun,
               (SELECT count(*) FROM trail WHERE trail.number = task.number AND trail.kind = 1 AND trail.started_at IS NOT NULL) AS stored
          FROM task) AS counted
 WHERE begun <> stored

-- name: list_states
SELECT {state} FROM state ORDER BY machine_id, name

-- name: list_rules
SELECT {rule} FROM rule ORDER BY machine_id, from_state, to_state, trigger
