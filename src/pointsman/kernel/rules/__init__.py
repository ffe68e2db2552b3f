"""What must be true of a machine before anything may follow it: one function a rule."""
