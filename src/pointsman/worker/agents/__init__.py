"""One file for each coding agent that Pointsman knows, and `custom.py` for those of pointsman.toml."""
