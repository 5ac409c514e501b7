"""A compiled graph: fixed feeds, targets and operations, ready to run, save and load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .tensor import Operation, ShapedType, Tensor

if TYPE_CHECKING:
    from .graph import Graph


class Executable:
    """Runs the same targets and operations of a graph again and again; `Graph.compile` makes it.

    The graph's variables are part of it: it reads and assigns the graph's own, and `save` writes their values.
    """

    def __init__(
        self, graph: Graph, feeds: dict[Tensor, ShapedType], targets: Sequence[Tensor], operations: Sequence[Operation]
    ) -> None:
        self.graph = graph
        self.feeds = dict(feeds)
        self.targets = list(targets)
        self.operations = list(operations)

    def __repr__(self) -> str:
        feeds = ", ".join(f"{tensor.name}: {kind}" for tensor, kind in self.feeds.items())
        return f"<Executable ({feeds}) -> ({', '.join(tensor.name for tensor in self.targets)})>"

    def run(self, arrays: Sequence[Any] = ()) -> list[Any]:
        """The targets' arrays for these feeds, one per feed in the order given to `compile`."""
        if len(arrays) != len(self.feeds):
            names = ", ".join(tensor.name for tensor in self.feeds)
            raise ArgumentError(f"run: needs {len(self.feeds)} arrays ({names}), got {len(arrays)}")
        feeds = {tensor: (kind, array) for (tensor, kind), array in zip(self.feeds.items(), arrays, strict=True)}
        return self.graph._run("run", feeds, self.targets, self.operations)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to run it elsewhere into one file, at once: a reader never sees half of it."""
        from .storage import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Executable:
        """An executable from a file that `save` wrote. Nothing in the file is executed; a damaged one is refused."""
        from .storage import load

        return load(path)
