"""`gatewise warm`: compile CUDA kernels ahead of their first call."""

from __future__ import annotations

from typing import Annotated

import typer

from gatewise.benchmark.shapes import parse_names


def warm(
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Rows of the batch, N.")],
    units: Annotated[int, typer.Option("--units", "-u", min=1, help="Hidden units, H.")],
    cells: Annotated[str, typer.Option(help="Some of lstm,gru,gru_before (reset before the product).")] = "lstm",
    dtypes: Annotated[str, typer.Option(help="Some of bfloat16,float16,float32.")] = "bfloat16",
    bidirectional: Annotated[bool, typer.Option("--bidirectional", help="Both directions.")] = False,
    architecture: Annotated[str | None, typer.Option(help="sm_80 or sm_90; this machine's GPU if left out.")] = None,
) -> None:
    """Compile the kernels of calls with a bias and all gradients into the cache. Needs no GPU if told the architecture."""
    from gatewise.benchmark.cuda import CELLS, DTYPES, descriptor_of
    from gatewise.engines.cuda import driver
    from gatewise.engines.cuda import warm as ahead

    known = {"sm_80": driver.A100, "sm_90": driver.H200}
    try:
        names = parse_names("cells", cells, CELLS), parse_names("dtypes", dtypes, DTYPES)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if architecture is not None and architecture not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}, got {architecture}", param_hint="--architecture")
    if architecture is None and driver.unavailable() is not None:
        raise typer.BadParameter(f"{driver.unavailable()}: say --architecture", param_hint="--architecture")
    device = driver.device(0) if architecture is None else known[architecture]
    wanted = [
        job
        for cell in names[0]
        for dtype in names[1]
        for job in ahead.jobs(descriptor_of(cell, 2 if bidirectional else 1), dtype, rows, units, device)
    ]
    count, errors = ahead.compile_all(wanted, device.architecture)
    typer.echo(f"{count} kernels for {device.architecture} are in the cache")
    for problem in errors:
        typer.echo(problem, err=True)
    raise typer.Exit(1 if errors else 0)
