"""Operations on templates: flows that are stored, so that requests can name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pointsman.engine.fields import Name, Text
from pointsman.engine.operation import Operation
from pointsman.engine.work import Work
from pointsman.store.rows import Template


class StoreTemplate(Operation[Template], frozen=True):
    """Store a flow by a name, or replace it. Runs that were submitted keep the flow that they began with."""

    name: Annotated[Name, "The name of the template."]
    text: Annotated[Text, "The flow, as the text of a flow file (YAML or JSON)."]

    def decide(self, work: Work) -> Callable[[], Template]:
        work.ensure_tenant(self.tenant)
        stored = Template(tenant=self.tenant, name=self.name, text=self.text, stored_at=work.now, stored_by=self.caller.actor)
        work.transaction.save_template(stored)
        return lambda: stored
