"""The worker: claims tasks, runs them, and reports what became of them."""
