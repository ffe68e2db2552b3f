-- Keys by which programs prove who they are. A key never ends without a trace: it is revoked, not deleted.
-- Only the SHA-256 of a secret is stored. A slow, salted hash protects passwords, because people choose guessable ones. A secret is 256 random
-- bits: nobody finds it from its hash, nor from a table of hashes, however fast the hash is.
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

-- The name of a revoked key may be used again.
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
