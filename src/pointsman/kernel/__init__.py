"""The pure core: machines as values, and one function that moves them. No I/O, no clock, no randomness."""
