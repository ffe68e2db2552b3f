"""The elements of the drawing: a layer for each stage, a node for each task, and lanes where a link passes a stage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pointsman.flows.model import Flow
from pointsman.flows.plan import find_stages, shorten_links
from pointsman.kernel.draw.order import Layers, order_layers

MANY = 300
"""With more nodes than this, the order of the file is good enough."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by number; a node without a task is a lane."""

    tasks: tuple[str | None, ...]
    layers: Layers
    threads: tuple[tuple[int, ...], ...]
    """Every link, through all the lanes on its way."""

    @property
    def steps(self) -> list[tuple[int, int]]:
        return [step for thread in self.threads for step in pairwise(thread)]

    def is_lane(self, node: int) -> bool:
        return self.tasks[node] is None


def build_graph(flow: Flow) -> Graph:
    """The layers of a flow, in an order with few crossings; links that others imply are omitted."""
    stages = find_stages(flow)
    links = shorten_links(flow.links)
    tasks: list[str | None] = [name for stage in stages for name in stage]
    number = {name: at for at, name in enumerate(tasks) if name is not None}
    layers = [[number[name] for name in stage] for stage in stages]
    level = {node: at for at, layer in enumerate(layers) for node in layer}
    threads = []
    for name, needs in links.items():
        for need in needs:
            first, last = number[need], number[name]
            lanes = []
            for at in range(level[first] + 1, level[last]):
                lanes.append(len(tasks))
                layers[at].append(len(tasks))
                tasks.append(None)
            threads.append((first, *lanes, last))
    graph = Graph(tuple(tasks), layers, tuple(threads))
    if len(tasks) > MANY:
        return graph
    best, _ = order_layers(layers, graph.steps)[0]
    return Graph(graph.tasks, best, graph.threads)
