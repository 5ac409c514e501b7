"""Cells with options that cuDNN leaves out, on a GPU: beside the plain cell, a loop in PyTorch, and the loop compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gatewise

from .cuda import Row, milliseconds, number
from .rivals import UnableError
from .rivals.gatewise_operations import descriptor_of, saved_of
from .rivals.torch_loop import TorchLoop
from .shapes import MODES, PLAIN, Shape, Variant
from .work import Work, make_work

VARIANTS = (
    Variant("peephole, mask, hard sigmoid, lengths", "lstm", peephole=True, mask=True, hard_sigmoid=True, lengths=True),
    Variant("reset before", "gru", reset_before=True),
)
SHAPES: tuple[Shape, ...] = (Shape(512, 64, 256, 256), Shape(512, 64, 512, 512))
QUICK: tuple[Shape, ...] = SHAPES[1:]


def _ours(work: Work, mode: str, place: Callable[[Any], Any]) -> Callable[[], Any]:
    forward = getattr(gatewise, work.cell)
    gradients = getattr(gatewise, f"{work.cell}_gradients")
    arguments = {name: place(array) for name, array in work.arguments.items()}
    arguments["descriptor"] = descriptor_of(work, mode == "training")
    if mode == "forward":
        return lambda: forward(**arguments)[0]
    incoming = place(work.output_gradient)

    def step() -> Any:
        results = forward(**arguments)
        gradients(**arguments, **saved_of(work.cell, results), source_gradient=incoming)
        return results[0]

    return step


def _loop(rival: TorchLoop, work: Work, mode: str) -> tuple[Callable[[], Any] | None, str | None]:
    """The rival's call, or why there is none."""
    reason = rival.unavailable()
    if reason is None:
        try:
            return rival.prepare(work, mode, 0).call, None
        except UnableError as error:
            reason = str(error)
    return None, reason


def measure(dtypes: tuple[str, ...], shapes: tuple[Shape, ...], compiled: bool = True) -> Iterator[Row]:
    """A row for each variant, dtype and shape, as it is measured."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype in dtypes:
        loops = {"loop": TorchLoop(False, "cuda", dtype)}
        if compiled:
            loops["compiled loop"] = TorchLoop(True, "cuda", dtype)
        place = loops["loop"].place
        for variant in VARIANTS:
            for shape in shapes:
                work, plain = make_work(variant.cell, shape, variant), make_work(variant.cell, shape, PLAIN[variant.cell])
                row: Row = {"cell": variant.cell, "variant": variant.name, "dtype": dtype, "shape": str(shape), "notes": []}
                for mode in MODES:
                    ours = _ours(work, mode, place)
                    part: Row = {"ms": milliseconds(ours), "plain_ms": milliseconds(_ours(plain, mode, place))}
                    part["us_per_step"] = 1000 * part["ms"] / shape.T
                    part["cost"] = part["ms"] / part["plain_ms"]
                    for name, rival in loops.items():
                        call, reason = _loop(rival, work, mode)
                        if call is None:
                            row["notes"].append(f"{name}, {mode}: {reason}")
                            continue
                        spent = milliseconds(call, repeats=1, calls=1)
                        part[name] = {"us_per_step": 1000 * spent / shape.T, "ratio": spent / part["ms"]}
                        if name == "loop":
                            part["difference"] = float((call()[0] - ours()).abs().max())
                    row[mode] = part
                yield row


def markdown(rows: list[Row]) -> str:
    """The rows as one table, and under it what was not measured."""
    titles = ["cell", "with", "dtype", "T, N, I, H", "mode", "us/step", "times the plain cell", "loop us/step", "times as fast"]
    titles += ["compiled loop us/step", "times as fast", "largest difference to the loop"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    notes: list[str] = []
    for row in rows:
        for mode in MODES:
            part = row[mode]
            cells = [row["cell"], row["variant"], row["dtype"], row["shape"].replace(",", ", "), mode]
            cells += [number(part["us_per_step"]), number(part["cost"])]
            for name in ("loop", "compiled loop"):
                found = part.get(name, {})
                cells += [number(found.get("us_per_step")), number(found.get("ratio"))]
            difference = part.get("difference")
            lines.append("| " + " | ".join([*cells, "–" if difference is None else f"{difference:.1e}"]) + " |")
        notes += [note for note in row["notes"] if note not in notes]
    return "\n".join([*lines, "", *[f"- not measured: {note}" for note in notes]]).rstrip() + "\n"
