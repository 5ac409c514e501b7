"""`gatewise info`: what is installed and what can run here."""

from __future__ import annotations

import platform
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import gatewise
from gatewise.engines import ENGINES


def info(
    plan: Annotated[
        str | None, typer.Option(metavar="CELL,DTYPE,N,H", help="How the CUDA engine would run such a call, and why.")
    ] = None,
) -> None:
    """Show the version, the engines, and what each of them runs."""
    console = Console()
    if plan is not None:
        _explain(console, plan)
        return
    console.print(f"gatewise {gatewise.__version__}, Python {platform.python_version()}, {platform.machine()}")
    console.print(f"{gatewise.get_threads()} threads (gatewise.set_threads(n) or GATEWISE_THREADS=n)")
    table = Table("engine", "state", "what it runs", show_lines=True)
    for name, engine in ENGINES.items():
        reason = engine.unavailable()
        rows = engine.supports() if reason is None else {}
        table.add_row(
            name,
            "[green]ready[/]" if reason is None else f"[red]cannot run here[/]: {escape(reason)}",
            "\n".join(f"{title}: {text}" for title, text in rows.items()),
        )
    console.print(table)
    from gatewise.engines.cuda.compiler import cache_folder, cached

    kept = cached()
    if kept:
        size = sum(size for _, size in kept) / 2**20
        console.print(f"{len(kept)} CUDA kernels, {size:.1f} MB, in {cache_folder()} (GATEWISE_CACHE)")


def _explain(console: Console, plan: str) -> None:
    from gatewise.benchmark.cuda import CELLS, DTYPES, descriptor_of
    from gatewise.cells import cell_of
    from gatewise.engines.cuda import driver
    from gatewise.engines.cuda.planner import Wish, choose

    parts = [part.strip() for part in plan.split(",")]
    if len(parts) != 4 or parts[0] not in CELLS or parts[1] not in DTYPES or not (parts[2] + parts[3]).isdecimal():
        example = f"CELL of {', '.join(CELLS)}, DTYPE of {', '.join(DTYPES)}, as lstm,bfloat16,64,512"
        raise typer.BadParameter(f"must be CELL,DTYPE,N,H with {example}; got {plan!r}", param_hint="--plan")
    cell, dtype, N, H = parts[0], parts[1], int(parts[2]), int(parts[3])
    missing = driver.unavailable()
    device = driver.H200 if missing is not None else driver.device(0)
    console.print(f"on {'an H200, since ' + missing if missing is not None else device.architecture}")
    for title, backward in (("forward", False), ("gradients", True)):
        chosen = choose(cell_of(descriptor_of(cell)), backward, N, H, 1, dtype, False, device, Wish())
        console.print(f"{title}: {chosen.explanation}", highlight=False)
