"""The engine: opens transactions, asks the kernel what follows from each signal, and commits all of it or nothing."""
