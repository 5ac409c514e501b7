"""Peak extra memory of a call: what the process grows by, beyond the arguments and results.

Each cell and shape is measured in a process of its own, so that nothing is there to be reused. Linux only: it resets
and reads the kernel's own high-water mark. `python -m gatewise.benchmark.memory CELL SHAPE ENGINE THREADS` prints the
rows as JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gatewise
from gatewise.engines import engine_for

from .rivals.gatewise_operations import descriptor_of, operation_of, saved_of
from .shapes import GATES, Shape, parse_shapes
from .work import Array, Work, make_work

_CLEAR = Path("/proc/self/clear_refs")


def unavailable() -> str | None:
    return None if _CLEAR.exists() else "peak memory is read from Linux's /proc/self, which is not here"


def measure(cell: str, shape: Shape, threads: int) -> list[dict[str, Any]]:
    """The rows of this cell and shape, from a fresh process, with the engine that runs here."""
    engine = engine_for("bench", "cpu").name
    command = [sys.executable, "-m", "gatewise.benchmark.memory", cell, str(shape), engine, str(threads)]
    # Every large array in memory of its own: where others have been, there may be large pages, used in part but counted whole.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed: {done.stderr.strip().splitlines()[-1:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def _trim() -> None:
    """Give freed memory back to the system, so that only what is held counts (where the C library can)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _rows(work: Work) -> list[dict[str, Any]]:
    operation = operation_of(work.cell)
    forward = getattr(gatewise, operation)
    gradients = getattr(gatewise, f"{operation}_gradients")
    shape = work.shape
    _trim()
    base, base_file = _status("VmRSS"), _status("RssFile")
    rows = []

    def row(call_name: str, call: Callable[[], list[Array]], held: list[Array]) -> list[Array]:
        """Peak growth since `base`, less the results: memory that an earlier call still keeps counts too."""
        _trim()
        _CLEAR.write_text("5")  # the high-water mark starts again from here
        results = call()
        code = _status("RssFile") - base_file  # of the library, that no call ran before
        extra = _status("VmHWM") - base - code - sum(array.nbytes for array in (*held, *results))
        rows.append(
            {
                "cell": work.cell,
                "call": call_name,
                "extra_bytes": extra,
                "z_state_bytes": 4 * shape.T * shape.N * shape.D * GATES[work.cell] * shape.H,
                "packed_weight_bytes": work.arguments["recurrent_weight"].nbytes + work.arguments["input_weight"].nbytes,
            }
        )
        return results

    row("forward", lambda: forward(**work.arguments, descriptor=descriptor_of(work, training=False)), [])
    descriptor = descriptor_of(work, training=True)
    results = row("training forward", lambda: forward(**work.arguments, descriptor=descriptor), [])
    given = {**work.arguments, **saved_of(work.cell, results), "source_gradient": work.output_gradient}
    row("gradients", lambda: gradients(**given, descriptor=descriptor), results)
    return rows


def _main(cell: str, shape_text: str, engine: str, threads: str) -> None:
    (shape,) = parse_shapes(shape_text)
    with gatewise.use_engine(engine):
        gatewise.set_threads(int(threads))
        _rows(make_work(cell, Shape(2, 2, 8, 8, shape.bidirectional)))  # loads the engine and starts its threads
        print(json.dumps(_rows(make_work(cell, shape))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
