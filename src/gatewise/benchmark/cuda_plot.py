"""The rows of `gatewise bench cuda` as one picture: microseconds per step for every shape, beside cuDNN's and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .cuda import Row, sizes_of

_OURS, _CUDNN = "#1b7f5c", "#d1495b"
_NUDGE = {"forward": -0.14, "training": 0.14}  # so that the two modes of a shape do not cover each other
_NAMES = {"lstm": "LSTM", "gru": "GRU", "gru_before": "GRU, reset before"}


def draw(rows: list[Row], path: Path, machine: str = "") -> None:
    """Write the picture (PNG, SVG or PDF by the file's ending): a panel for each cell and dtype."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    if not rows:
        raise ValueError("there is nothing to draw")
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    shapes = list(dict.fromkeys(sizes_of(row) for row in rows))
    figure, axes = pyplot.subplots(
        len(cells),
        len(dtypes),
        figsize=(2.4 + 3.6 * len(dtypes), 1.6 + (0.8 + 0.3 * len(shapes)) * len(cells)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for across, cell in enumerate(cells):
        for down, dtype in enumerate(dtypes):
            axis = axes[across][down]
            chosen = [row for row in rows if (row["cell"], row["dtype"]) == (cell, dtype)]
            _panel(axis, chosen, shapes)
            axis.set_title(f"{_NAMES.get(cell, cell)}, {dtype}", fontsize=9, fontweight="bold")
    for axis in axes[-1]:
        axis.set_xlabel("microseconds per step", fontsize=8)
    _legend(figure)
    figure.suptitle(f"gatewise and cuDNN{': ' + machine if machine else ''}", fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, rows: list[Row], shapes: list[str]) -> None:
    for row in rows:
        place = shapes.index(sizes_of(row))
        for mode, nudge in _NUDGE.items():
            for value, colour in ((row[mode]["us_per_step"], _OURS), (row[mode]["cudnn_us_per_step"], _CUDNN)):
                if value is not None:
                    face = colour if mode == "forward" else "none"
                    marker = "o" if mode == "forward" else "s"
                    axis.scatter(value, place + nudge, marker=marker, s=24, facecolors=face, edgecolors=colour, zorder=3)
        if row.get("floor_us_per_step"):
            axis.scatter(row["floor_us_per_step"], place + _NUDGE["forward"], marker="|", s=60, color="black", zorder=2)
    axis.set_xscale("log")
    axis.tick_params(axis="x", labelsize=8)
    axis.set_yticks(range(len(shapes)), shapes, fontsize=8)
    axis.set_ylim(len(shapes) - 0.5, -0.5)
    axis.grid(axis="both", color="0.9", zorder=0)
    axis.set_axisbelow(True)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    entries = [
        ("gatewise", "D", _OURS, True),
        ("cuDNN", "D", _CUDNN, True),
        ("forward", "o", "0.25", True),
        ("training step", "s", "0.25", False),
        ("forward floor", "|", "black", True),
    ]
    handles = [
        Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=colour if filled else "none", label=label)
        for label, marker, colour, filled in entries
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
