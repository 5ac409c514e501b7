"""`gatewise draw FILE`: an executable as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def draw(
    file: Annotated[Path, typer.Argument(help="A file written by Executable.save.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the SVG.")] = Path("graph.svg"),
) -> None:
    """Draw a saved graph as SVG."""
    from ..errors import GatewiseError
    from ..graph import Executable
    from ..graph.drawing import draw as draw_operations
    from ..graph.plan import needed

    try:
        executable = Executable.load(file)
    except GatewiseError as error:
        typer.echo(f"gatewise draw: {error}", err=True)
        raise typer.Exit(1) from None
    operations = needed(executable.targets, [*executable.operations, *(tensor.operation for tensor in executable.feeds)])
    picture = draw_operations(operations, f"{file.name}: {len(operations)} operations", executable.targets)
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        typer.echo(f"gatewise draw: cannot write {output}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{output}: {len(operations)} operations")
