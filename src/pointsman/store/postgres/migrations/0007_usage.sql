-- A tool that has reached its usage limit says when that ends: its circuit is open until then, at least.
ALTER TABLE breaker ADD COLUMN limited_until instant;
