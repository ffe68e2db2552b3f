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
