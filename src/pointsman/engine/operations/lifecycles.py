"""Operations on lifecycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from pointsman.engine.fields import Text
from pointsman.engine.machines import add_lifecycle
from pointsman.engine.operation import Operation
from pointsman.engine.work import Work
from pointsman.lifecycles import read_lifecycle
from pointsman.store.rows import MachineRow


class AddLifecycle(Operation[list[MachineRow]], frozen=True):
    """Add a lifecycle: runs and workers may follow it, whatever process submits them. A changed one needs a new version."""

    shares_transaction: ClassVar[bool] = False  # no other operation may use what is not committed

    text: Annotated[Text, "The lifecycle, as the text of its file (YAML)."]

    def decide(self, work: Work) -> Callable[[], list[MachineRow]]:
        rows = add_lifecycle(work.transaction, read_lifecycle(self.text))
        return lambda: rows
