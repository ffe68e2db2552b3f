"""The store: one contract, and an implementation for each database."""
