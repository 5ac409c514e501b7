"""Where the time of a run goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .place import dtype_of
from .tensor import Operation


@dataclass(frozen=True, slots=True)
class Row:
    """One operation of a profiled run."""

    name: str
    kind: str
    seconds: float
    bytes: int  # of its results


class Profile:
    """Time and bytes per operation, in the order they ran; printing it sorts by time."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def observe(self, operation: Operation, start: float, results: Sequence[Any]) -> None:
        _wait_for(results)
        seconds = time.perf_counter() - start
        self.rows.append(Row(operation.name, operation.kind, seconds, sum(_size(result) for result in results)))

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [9])
        kind = max([len(row.kind) for row in self.rows] + [4])
        lines = [f"{'operation':<{width}}  {'kind':<{kind}}  {'time':>10}  {'share':>6}  {'results':>10}"]
        total = self.seconds or 1.0
        lines += [
            f"{row.name:<{width}}  {row.kind:<{kind}}  {row.seconds * 1e6:>7.0f} µs  "
            f"{row.seconds / total:>6.1%}  {_bytes(row.bytes):>10}"
            for row in sorted(self.rows, key=lambda row: -row.seconds)
        ]
        lines.append(f"{len(self.rows)} operations, {self.seconds * 1e3:.3f} ms, {_bytes(sum(row.bytes for row in self.rows))}")
        return "\n".join(lines)

    __repr__ = __str__


def _size(array: Any) -> int:
    number = 1
    for size in array.shape:
        number *= size
    return number * dtype_of(array).itemsize


def _wait_for(results: Sequence[Any]) -> None:
    """Until a GPU has really computed them."""
    torch = sys.modules.get("torch")
    for result in results:
        if torch is not None and isinstance(result, torch.Tensor) and result.device.type == "cuda":
            torch.cuda.synchronize(result.device)
        elif type(result).__module__.startswith("cupy"):
            result.device.synchronize()
        elif hasattr(result, "block_until_ready"):
            result.block_until_ready()


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"
