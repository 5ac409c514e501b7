"""`gatewise sample`: text from a model that `gatewise train` made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatewise.errors import GatewiseError


def sample(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint, or the folder it is in.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "\n",
    length: Annotated[int, typer.Option(min=0, help="Characters to write.")] = 400,
    temperature: Annotated[float, typer.Option(min=0, help="Lower is safer, higher is wilder.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other texts.")] = 0,
) -> None:
    """Write text with a trained model. The same checkpoint, prompt and seed give the same text."""
    from gatewise.training import sampling
    from gatewise.training.checkpoint import NAME

    path = checkpoint / NAME if checkpoint.is_dir() else checkpoint
    try:
        model, vocabulary = sampling.load(path)
        typer.echo(prompt.lstrip("\n"), nl=False)
        for character in sampling.write(model, vocabulary, prompt, length, temperature, seed):
            typer.echo(character, nl=False)
    except GatewiseError as error:
        typer.echo(f"gatewise sample: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo()
