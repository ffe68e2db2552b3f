import unittest

from hello.greet import greet


class Greeting(unittest.TestCase):
    def test_it_names_whom_it_greets(self) -> None:
        assert greet("Ada") == "Hello, Ada!"
