"""`gatewise check`: every engine against the reference over the sampled option space."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from gatewise.checking import Case, check_case, sample
from gatewise.engines import ENGINES

_SHOWN = 5


def check(
    cases: Annotated[int, typer.Option(min=1, help="How many calls to sample.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other calls.")] = 0,
    engine: Annotated[str | None, typer.Option(help="Check only this engine.")] = None,
    case: Annotated[int | None, typer.Option(min=0, help="Check only the call with this number.")] = None,
) -> None:
    """Hold the engines to the reference: forward results and every gradient. Exit code 1 on any mismatch."""
    console = Console()
    if engine is not None and engine not in ENGINES:
        raise typer.BadParameter(f"must be one of {', '.join(ENGINES)}, got {engine}", param_hint="--engine")
    names = [engine] if engine else [name for name in ENGINES if name != "reference"]
    sampled = list(sample(cases, seed)) if case is None else list(sample(case + 1, seed))[case:]
    checked, failed = 0, False
    for name in names:
        reason = ENGINES[name].unavailable()
        if reason is not None:
            console.print(f"{name}: cannot run here: {escape(reason)}")
            continue
        checked += 1
        failed |= _check_engine(console, name, sampled)
    if not checked:
        console.print("[red]no engine was checked[/]")
    raise typer.Exit(1 if failed or not checked else 0)


def _check_engine(console: Console, name: str, sampled: list[Case]) -> bool:
    """Whether the engine differs from the reference anywhere."""
    mismatches = 0
    for case in track(sampled, description=name, console=console, transient=True):
        wrong = check_case(case, name)
        if not wrong:
            continue
        mismatches += 1
        if mismatches <= _SHOWN:
            console.print(f"[red]{name}[/] {escape(str(case))}", highlight=False)
            for line in wrong:
                console.print(f"    {escape(line)}", highlight=False)
            console.print(f"    again: gatewise check --engine {name} --seed {case.seed} --case {case.number}")
    verdict = f"[red]{mismatches} differ[/]" if mismatches else "[green]all agree with the reference[/]"
    console.print(f"{name}: {len(sampled)} calls, forward and every gradient: {verdict}")
    return mismatches > 0
