"""The `gatewise` command. One file per sub-command; each is listed once, here."""

from __future__ import annotations

import typer

from . import bench, check, draw, info, sample, train, warm

app = typer.Typer(
    name="gatewise",
    help="Every recurrent network, on any machine, at the speed of the hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("info")(info.info)
app.command("check")(check.check)
app.command("train")(train.train)
app.command("sample")(sample.sample)
app.command("draw")(draw.draw)
app.command("warm")(warm.warm)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """The console entry."""
    app()
