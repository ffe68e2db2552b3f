"""What is released: a program that greets."""

import sys


def greet(name: str) -> str:
    return f"Hello, {name}!"


def main() -> None:
    print(greet(sys.argv[1] if len(sys.argv) > 1 else "world"))
