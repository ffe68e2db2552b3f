"""The rules that a machine must follow: one function per rule."""
