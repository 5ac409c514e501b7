"""`gatewise train`: a character-level language model, trained on your files or on Python's own standard library."""

from __future__ import annotations

import importlib.util
import math
from collections import deque
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatewise.errors import GatewiseError

if TYPE_CHECKING:
    from rich.console import Console

    from gatewise.training import Config, Trainer

PICTURE = "training.png"
_SHOWN, _SHOWN_LINES = 160, 3  # characters and lines of a sample while training


class CellName(str, Enum):
    """The cells of `--cell`."""

    lstm = "lstm"
    gru = "gru"
    rnn = "rnn"


def train(
    context: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(help="Text to learn from; else Python's standard library.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint and the picture.")] = Path("out"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin anew over an earlier checkpoint.")] = False,
    cell: Annotated[CellName, typer.Option(help="The kind of layer.")] = CellName.lstm,
    layers: Annotated[int, typer.Option(min=1, max=3, help="Layers of it.")] = 1,
    hidden: Annotated[int, typer.Option(min=1, help="Units per layer.")] = 128,
    peephole: Annotated[bool, typer.Option("--peephole", help="LSTM gates that see the cell.")] = False,
    gates: Annotated[str, typer.Option(help="Activation of the sigmoid gates, such as hard_sigmoid.")] = "sigmoid",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Any option of the cell's descriptor, such as reset_after=true. Repeatable."),
    ] = None,
    dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Between layers.")] = 0.0,
    recurrent_dropout: Annotated[float, typer.Option(min=0, max=0.99, help="Inside the layers, by a mask.")] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training, in all.")] = 15_000,
    batch: Annotated[int, typer.Option(min=1, help="Rows read at once.")] = 8,
    chunk: Annotated[int, typer.Option(min=1, help="Characters per step and row.")] = 128,
    rate: Annotated[float, typer.Option(min=0, help="The highest learning rate.")] = 4e-3,
    seed: Annotated[int, typer.Option(min=0, help="Other seeds give other models.")] = 0,
) -> None:
    """Train a character-level language model. Ctrl-C stops with a checkpoint; --resume goes on to the same numbers."""
    from rich.console import Console

    from gatewise.training import Config, Trainer, checkpoint
    from gatewise.training.config import with_gates

    console = Console(highlight=False)
    path = out / checkpoint.NAME
    try:
        if resume:
            _refuse_with_resume(context)
            trainer = Trainer.resume(path, steps if _given(context, "steps") else None)
        else:
            if path.exists() and not overwrite:
                raise GatewiseError(f"{path} is there already: --resume goes on with it, --overwrite begins anew")
            options = dict(_parse(each) for each in option or [])
            if gates != "sigmoid":
                options = with_gates(cell.value, options, gates)
            config = Config(
                cell=cell.value, layers=layers, hidden=hidden, options=options, peephole=peephole, dropout=dropout,
                recurrent_dropout=recurrent_dropout, batch=batch, chunk=chunk, steps=steps, every=max(1, steps // 10),
                rate=rate, seed=seed,
            )  # fmt: skip
            trainer = Trainer.begin(config, files or [])
            out.mkdir(parents=True, exist_ok=True)
        _describe(console, trainer)
        finished = _run(console, trainer, path)
        _finish(console, trainer, path, out, finished)
    except GatewiseError as error:
        typer.echo(f"gatewise train: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        typer.echo(f"gatewise train: cannot write to {out}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from error


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_with_resume(context: typer.Context) -> None:
    fixed = [name for name in context.params if name not in ("out", "resume", "steps") and _given(context, name)]
    if fixed:
        raise GatewiseError(f"--resume takes everything but --out and --steps from the checkpoint (given: {', '.join(fixed)})")


def _parse(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise GatewiseError(f"--option needs NAME=VALUE, got {text!r}")
    return name, value.lower()


def _describe(console: Console, trainer: Trainer) -> None:
    config, text = trainer.config, trainer.corpus
    weights = sum(math.prod(size or 0 for size in weight.shape) for weight in trainer.model.weights.values())
    rows = [
        f"{config.cell}, {config.layers} × {config.hidden} units, {weights:,} weights"
        + "".join(f", {name}" for name in _extras(config)),
        f"{len(text.text):,} characters of {len(trainer.files)} files, {len(text.vocabulary)} different ones; "
        f"{len(text.held_out):,} held out",
        f"{config.steps:,} steps of {config.batch} × {config.chunk} characters"
        + (f", going on from step {trainer.step:,}" if trainer.step else ""),
    ]
    for row in rows:
        console.print(row)


def _extras(config: Config) -> list[str]:
    """What is unusual about the model."""
    found = [f"{name}={value}" for name, value in config.options.items()]
    found += ["peephole"] if config.peephole else []
    found += [f"dropout {config.dropout}"] if config.dropout else []
    return found + ([f"recurrent dropout {config.recurrent_dropout}"] if config.recurrent_dropout else [])


def _run(console: Console, trainer: Trainer, path: Path) -> bool:
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from gatewise.training import loop, sampling

    per_step = trainer.config.batch * trainer.config.chunk
    recent: deque[tuple[float, float]] = deque(maxlen=30)  # loss and seconds of the last steps
    columns = (
        BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"), TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    progress = Progress(*columns, console=console, refresh_per_second=4, transient=True)
    task = progress.add_task("", total=trainer.config.steps, completed=trainer.step, loss="", speed="")

    class Watcher(loop.Reporter):
        def stepped(self, trainer: Trainer, loss: float, seconds: float) -> None:
            recent.append((loss, seconds))
            mean = sum(each for each, _ in recent) / len(recent)
            progress.update(task, completed=trainer.step, loss=f"{mean:.2f} bits/char", speed=f"{self.speed():,.0f} char/s")

        def speed(self) -> float:
            return per_step * len(recent) / max(sum(each for _, each in recent), 1e-9)

        def measured(self, trainer: Trainer, bits: float) -> None:
            line = f"[bold]step {trainer.step:>6,}[/]   held out [bold]{bits:.3f}[/] bits/char"
            if recent:
                mean = sum(each for each, _ in recent) / len(recent)
                line += f"   training {mean:.3f}   {self.speed():,.0f} char/s"
            console.print(line)
            if trainer.step:
                text = "".join(sampling.write(trainer.model, trainer.corpus.vocabulary, "\n", _SHOWN, seed=trainer.step))
                for row in [row for row in text.splitlines() if row.strip()][:_SHOWN_LINES]:
                    console.print(f"    [dim]{escape(row)}[/]", no_wrap=True, overflow="ellipsis")

    with progress:
        return loop.train(trainer, path, Watcher())


def _finish(console: Console, trainer: Trainer, path: Path, out: Path, finished: bool) -> None:
    from rich.markup import escape

    from gatewise.training import sampling

    if finished:
        prompt = "\nclass "
        if not set(prompt) <= set(trainer.corpus.vocabulary):
            prompt = "\n"
        text = prompt + "".join(sampling.write(trainer.model, trainer.corpus.vocabulary, prompt, 500))
        console.rule("a sample")
        console.print(escape(text.strip("\n")))
        console.rule()
    first, last = trainer.measured[0][1], trainer.measured[-1][1]
    console.print(f"held out: {first:.2f} → [bold]{last:.2f}[/] bits per character after {trainer.measured[-1][0]:,} steps")
    if not finished:
        console.print(f"stopped at step {trainer.step:,}; `gatewise train --resume --out {escape(str(out))}` goes on")
    console.print(f"checkpoint: {escape(str(path))}")
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no picture: drawing needs matplotlib (pip install 'gatewise\\[plot]')")
    else:
        from gatewise.training import picture

        picture.draw(trainer, out / PICTURE)
        console.print(f"picture:    {escape(str(out / PICTURE))}")
    console.print(f"more text:  gatewise sample {escape(str(path))} --prompt 'def '")
