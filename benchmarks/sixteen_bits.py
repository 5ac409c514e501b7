"""What float16 and bfloat16 cost or save on a CPU: forward calls and training steps beside the same in float32.

    python benchmarks/sixteen_bits.py

The three dtypes take turns, on all CPUs. Nothing else should be running.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from gatewise.benchmark.rivals.gatewise_operations import GatewiseOperations
from gatewise.benchmark.shapes import CELLS, MODES, Shape
from gatewise.benchmark.timing import Effort, available_cpus, take_turns
from gatewise.benchmark.work import Work, make_work

DTYPES: tuple[Any, ...] = (np.float32, np.float16, ml_dtypes.bfloat16)
SHAPES = (
    Shape(1, 1, 256, 256),
    Shape(1, 1, 1024, 1024),
    Shape(1, 8, 512, 128),
    Shape(100, 1, 256, 256),
    Shape(50, 1, 512, 512),
    Shape(200, 32, 32, 40),
    Shape(365, 256, 32, 128),
    Shape(100, 32, 256, 256),
    Shape(50, 32, 1024, 1024),
)
EFFORT = Effort(rounds=7, seconds=0.2, at_most_seconds=3.0)


def converted(work: Work, dtype: Any) -> Work:
    arguments = {name: array.astype(dtype) if array.dtype == np.float32 else array for name, array in work.arguments.items()}
    return replace(work, arguments=arguments, output_gradient=work.output_gradient.astype(dtype))


def main() -> None:
    operations, threads = GatewiseOperations(), available_cpus()
    titles = [f"{mode}, {what}" for mode in MODES for what in ("float32", "float16", "bfloat16")]
    print(f"| cell | T,N,I,H | {' | '.join(titles)} |")
    print("|---|---|" + "---:|" * len(titles))
    for cell in CELLS:
        for shape in SHAPES:
            columns = []
            for mode in MODES:
                works = {np.dtype(dtype).name: converted(make_work(cell, shape), dtype) for dtype in DTYPES}
                entries = {name: operations.prepare(work, mode, threads).call for name, work in works.items()}
                for call in entries.values():
                    call()
                found = take_turns(entries, EFFORT)
                columns.append(f"{found['float32'].median * 1e3:.3g} ms")
                columns += [f"× {found[name].over(found['float32']):.2f}" for name in ("float16", "bfloat16")]
            print(f"| {cell} | {shape} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
