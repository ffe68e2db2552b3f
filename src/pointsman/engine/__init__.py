"""The engine: opens transactions, asks the kernel what follows from each signal, and commits all of it or nothing."""

import logging

# A library is silent until the program that uses it says where its log goes.
logging.getLogger("pointsman").addHandler(logging.NullHandler())
