"""The text of an API key: one word, recognised by its form and its checksum; anything else is refused in one way."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.engine.key_text import KeyText, make_key, parse_key
from pointsman.errors import AuthenticationFailed, PointsmanError

FORM = re.compile(r"pm_[0-9a-f]{12}_[0-9A-Za-z]{49}")
"""As scanners know it."""
ids = st.integers(0, 2**48 - 1).map(lambda number: f"key_{number:012x}")
keys = st.builds(lambda key_id, seed: make_key(key_id, Random(seed)), ids, st.integers())


def refusal_of(text: object) -> str:
    with pytest.raises(PointsmanError) as refused:
        parse_key(text)
    assert type(refused.value) is AuthenticationFailed
    return str(refused.value)


@given(keys)
def test_what_is_written_is_read_again(key: KeyText) -> None:
    text = key.write()
    assert FORM.fullmatch(text)
    assert re.fullmatch(r"\w+", text, re.ASCII), "a double click selects it"
    assert parse_key(text) == key


@given(st.text() | st.from_regex(FORM, fullmatch=True) | st.binary() | st.none() | st.integers())
def test_garbage_is_refused_in_one_way(text: object) -> None:
    assert refusal_of(text) == str(AuthenticationFailed())


@given(keys, st.data())
def test_a_mistyped_key_is_refused(key: KeyText, data: st.DataObject) -> None:
    text = key.write()
    place = data.draw(st.integers(0, len(text) - 1))
    change = data.draw(st.sampled_from(["replace", "remove", "swap", "insert"]))
    other = data.draw(st.sampled_from("0aAzZ9_ \né٣"))
    match change:
        case "replace":
            mistyped = text[:place] + other + text[place + 1 :]
        case "remove":
            mistyped = text[:place] + text[place + 1 :]
        case "insert":
            mistyped = text[:place] + other + text[place:]
        case _:
            mistyped = text[:place] + text[place : place + 2][::-1] + text[place + 2 :]
    if mistyped != text:
        refusal_of(mistyped)


@pytest.mark.parametrize("around", [" {}", "{}\n", "{}\0", "Bearer {}", "{0}{0}"])
def test_a_key_with_something_around_it_is_refused(around: str) -> None:
    refusal_of(around.format(make_key("key_0123456789ab", Random(1)).write()))


def test_a_secret_is_in_no_log() -> None:
    key = make_key("key_0123456789ab", Random(1))
    assert key.secret not in repr(key)
    assert key.secret not in key.secret_hash


def test_a_secret_has_all_bits_of_chance() -> None:
    class Extreme(Random):
        def getrandbits(self, count: int, /) -> int:
            return (1 << count) - 1

    largest = make_key("key_0123456789ab", Extreme())
    assert parse_key(largest.write()) == largest
    secrets = {make_key("key_0123456789ab", Random(seed)).secret for seed in range(1000)}
    assert len(secrets) == 1000
