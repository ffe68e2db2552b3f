"""The functions of etl.yaml. Their return values are the outputs that later tasks use."""

from __future__ import annotations

import asyncio
import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

Book = dict[str, Any]


async def extract(folder: str, year: int) -> dict[str, Any]:
    """Read the books of a year from all libraries at the same time."""
    files = await asyncio.to_thread(find, folder)
    shelves = await asyncio.gather(*(asyncio.to_thread(read, file) for file in files))
    books = [book for shelf in shelves for book in shelf if int(book["year"]) == year]
    if not books:
        raise LookupError(f"no library has a book of {year}")
    return {"libraries": len(files), "books": books}


def find(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.csv"))


def read(file: Path) -> list[Book]:
    with file.open(encoding="utf-8", newline="") as lines:
        return [{**row, "library": file.stem} for row in csv.DictReader(lines)]


def transform(books: list[Book]) -> list[Book]:
    """Make one entry for each title, with all libraries that have it."""
    merged: dict[str, Book] = {}
    for book in books:
        title = book["title"].strip().capitalize()
        entry = merged.setdefault(title, {"title": title, "year": int(book["year"]), "libraries": []})
        entry["libraries"].append(book["library"])
    print(f"{len(books)} books, {len(merged)} titles")
    return sorted(merged.values(), key=lambda entry: str(entry["title"]))


def load(books: list[Book], database: str) -> dict[str, Any]:
    """Write the books into a table, all or none."""
    Path(database).parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS books")
        connection.execute("CREATE TABLE books (title TEXT PRIMARY KEY, year INTEGER, libraries TEXT)")
        rows = [(book["title"], book["year"], ", ".join(book["libraries"])) for book in books]
        connection.executemany("INSERT INTO books VALUES (?, ?, ?)", rows)
    return {"database": database, "rows": len(rows)}


def is_complete(output: dict[str, Any]) -> bool:
    """Return whether the table has as many rows as were written."""
    with closing(sqlite3.connect(output["database"])) as connection:
        return bool(connection.execute("SELECT count(*) FROM books").fetchone()[0] == output["rows"])
