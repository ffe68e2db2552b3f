"""Where everything is kept: one contract, and a store for each database that fulfils it."""
