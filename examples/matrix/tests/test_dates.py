import unittest
from datetime import UTC, datetime


class Dates(unittest.TestCase):
    def test_a_moment_is_the_same_everywhere(self) -> None:
        moment = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
        assert moment.astimezone().astimezone(UTC) == moment

    def test_sets_are_shown_in_an_order_that_one_can_rely_on(self) -> None:
        assert sorted({"b", "c", "a"}) == ["a", "b", "c"]
