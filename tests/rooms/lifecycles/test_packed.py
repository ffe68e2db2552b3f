"""The shipped lifecycles are kept as they were verified, and read anew when anything has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.lifecycles import SHIPPED, load_lifecycle, read_shipped
from pointsman.lifecycles.packed import read_pack
from pointsman.lifecycles.vocabulary import VOCABULARY

TEXTS = {name: read_shipped(name).text for name in SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_what_was_kept_is_what_the_file_says(name: str) -> None:
    assert load_lifecycle(name) == read_shipped(name)
    assert load_lifecycle(name).text == TEXTS[name]


def test_it_counts_while_nothing_has_changed() -> None:
    assert set(read_pack(TEXTS, VOCABULARY)) == set(SHIPPED)


def test_a_changed_file_is_read_anew() -> None:
    assert read_pack({**TEXTS, "agent": TEXTS["agent"] + "# mended\n"}, VOCABULARY) == {}


def test_a_changed_vocabulary_reads_them_anew() -> None:
    assert read_pack(TEXTS, replace(VOCABULARY, guards={**VOCABULARY.guards, "is_new": bool})) == {}
