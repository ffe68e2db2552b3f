"""Event lines: the wire form of transitions (document 002), and the check of whole logs of them."""
