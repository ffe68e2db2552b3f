"""One operation of a history, as a value that anybody can make.

invoked_at ├───────────────────┤ returned_at      an answer, or a refusal
invoked_at ├─────────────────────────────────     nobody knows: the answer was lost, or the client was killed
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Fate = Literal["answered", "refused", "unknown"]


class Record(Struct, frozen=True, kw_only=True):
    """One operation of one client.

    `operation` is the name of the engine's method, `arguments` are what it was given and `answer` what it gave back, both as
    JSON has them (`msgspec.to_builtins`). A refusal has the name of its exception as `error`; it changed nothing. Of an unknown
    one nobody knows whether it took effect: it may have done so at any time after it was invoked.
    """

    client: str
    operation: str
    arguments: dict[str, Any]
    invoked_at: float
    returned_at: float | None = None
    """None: never."""
    fate: Fate = "unknown"
    answer: Any = None
    error: str | None = None
