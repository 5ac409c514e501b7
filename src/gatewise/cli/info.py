"""`gatewise info`: what is installed and what can run here."""

from __future__ import annotations

import platform

from rich.console import Console
from rich.table import Table

import gatewise
from gatewise.engines import ENGINES


def info() -> None:
    """Show the version, the engines, and what each of them runs."""
    console = Console()
    console.print(f"gatewise {gatewise.__version__}, Python {platform.python_version()}, {platform.machine()}")
    console.print(f"{gatewise.get_threads()} threads (gatewise.set_threads(n) or GATEWISE_THREADS=n)")
    table = Table("engine", "state", "what it runs", show_lines=True)
    for name, engine in ENGINES.items():
        reason = engine.unavailable()
        rows = engine.supports() if reason is None else {}
        table.add_row(
            name,
            "[green]ready[/]" if reason is None else f"[red]cannot run here[/]: {reason}",
            "\n".join(f"{title}: {text}" for title, text in rows.items()),
        )
    console.print(table)
