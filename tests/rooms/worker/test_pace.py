"""When a worker waits for others before it reports."""

from __future__ import annotations

import pytest
from tests.rooms.engine.harness import ManualClock

from pointsman.worker.pace import LONGEST_SECONDS, SLACK, Pace

COMMIT = 0.03
SHORT = 0.01


class Rehearsal:
    """A pace that knows what a commit takes."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.pace = Pace(self._clock)
        self._names = iter(range(1_000_000))
        self.commit()

    def begin(self) -> tuple[str, int]:
        key = (f"task_{next(self._names)}", 1)
        self.pace.start(key)
        return key

    def pass_seconds(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def commit(self) -> None:
        handed_over = self.pace.hand_over()
        self.pass_seconds(COMMIT)
        self.pace.committed(handed_over)

    def get_used_to(self, seconds: float, times: int = 40) -> None:
        for _ in range(times):
            key = self.begin()
            self.pass_seconds(seconds)
            self.pace.end(key)
            self.commit()


@pytest.fixture
def rehearsal() -> Rehearsal:
    return Rehearsal()


def test_short_work_waits_for_what_is_about_to_end(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(SHORT)
    first, second = rehearsal.begin(), rehearsal.begin()
    rehearsal.pass_seconds(SHORT)
    rehearsal.pace.end(first)
    assert 0 < rehearsal.pace.patience() < SLACK * SHORT
    rehearsal.pace.end(second)
    assert rehearsal.pace.patience() == 0, "nobody is left to be waited for"


def test_what_takes_longer_than_a_commit_is_reported_at_once(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(10 * COMMIT)
    first = rehearsal.begin()
    rehearsal.pass_seconds(5 * COMMIT)
    rehearsal.begin()
    rehearsal.pass_seconds(5 * COMMIT)
    rehearsal.pace.end(first)
    assert rehearsal.pace.patience() == 0, "the second one has half of its time before it"


def test_what_takes_long_is_waited_for_when_its_end_is_near(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(10 * COMMIT)
    first = rehearsal.begin()
    rehearsal.pass_seconds(COMMIT / 2)
    rehearsal.begin()
    rehearsal.pass_seconds(9.5 * COMMIT)
    rehearsal.pace.end(first)
    assert 0 < rehearsal.pace.patience() == pytest.approx(COMMIT, abs=1e-5)


def test_nobody_waits_for_what_takes_much_longer_than_usual(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(SHORT)
    rehearsal.begin()
    rehearsal.pass_seconds(SLACK * SHORT + 0.001)
    last = rehearsal.begin()
    rehearsal.pass_seconds(SHORT)
    rehearsal.pace.end(last)
    assert rehearsal.pace.patience() == 0


def test_a_wait_is_over_when_its_time_is(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(0.8 * COMMIT)
    first = rehearsal.begin()
    rehearsal.begin()
    rehearsal.pass_seconds(0.8 * COMMIT)
    rehearsal.pace.end(first)
    patience = rehearsal.pace.patience()
    assert patience > 0
    rehearsal.pass_seconds(patience)
    assert rehearsal.pace.patience() == pytest.approx(0, abs=1e-5)


def test_without_anything_to_report_or_any_experience_nobody_waits(rehearsal: Rehearsal) -> None:
    first = rehearsal.begin()
    rehearsal.begin()
    assert rehearsal.pace.patience() == 0, "nothing has ended"
    rehearsal.pace.end(first)
    assert rehearsal.pace.patience() == 0, "nothing is known of what is usual"


def test_a_long_one_is_soon_forgotten(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(100 * LONGEST_SECONDS, times=3)
    rehearsal.get_used_to(SHORT, times=30)
    first = rehearsal.begin()
    rehearsal.begin()
    rehearsal.pass_seconds(SHORT)
    rehearsal.pace.end(first)
    assert rehearsal.pace.patience() > 0


def test_an_end_counts_once(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(SHORT)
    key = rehearsal.begin()
    rehearsal.pace.end(key)
    rehearsal.commit()
    rehearsal.begin()
    rehearsal.pace.end(key)
    assert rehearsal.pace.patience() == 0, "there is nothing to report"


def test_long_work_waits_for_nobody_however_long_a_commit_takes(rehearsal: Rehearsal) -> None:
    rehearsal.get_used_to(100 * LONGEST_SECONDS)
    handed_over = rehearsal.pace.hand_over()
    rehearsal.pass_seconds(100 * LONGEST_SECONDS)
    rehearsal.pace.committed(handed_over)
    first = rehearsal.begin()
    rehearsal.begin()
    rehearsal.pace.end(first)
    assert rehearsal.pace.patience() == 0
