"""A report as one picture: above, how much faster gatewise is than each rival; below, how far everyone is from the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .measure import Report
from .shapes import CONSTANT, OURS
from .tables import rivals_in, shape_of

_COLOURS = {OURS: "#1b7f5c", "torch": "#d1495b", "onnxruntime": "#30638e"}
_OTHER = "#8d6a9f"
_CELLS = {"lstm": "LSTM", "gru": "GRU", "single": "single-gate RNN"}
_MODES = {"forward": "o", "training": "s"}
_NUDGE = {"forward": -0.14, "training": 0.14}  # so that the two modes of a shape do not cover each other


def draw(report: Report, path: Path) -> None:
    """Write the standard shapes of a report as a picture (PNG, SVG or PDF by the file's ending)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["standard"]
    if not rows:
        raise ValueError("there is nothing to draw: the report has no standard shapes")
    cells = [cell for cell in _CELLS if any(row["cell"] == cell for row in rows)]
    shapes = list(dict.fromkeys(shape_of(row) for row in rows))
    height = 2.6 + 0.52 * len(shapes)
    figure, axes = pyplot.subplots(
        2, len(cells), figsize=(2.2 + 3.6 * len(cells), height), sharey=True, sharex="row", squeeze=False, layout="constrained"
    )
    for column, cell in enumerate(cells):
        chosen = [row for row in rows if row["cell"] == cell]
        _panel(axes[0][column], chosen, shapes, "ratio")
        _panel(axes[1][column], chosen, shapes, "times_limit")
        axes[0][column].set_title(_CELLS[cell], fontweight="bold")
        axes[0][column].set_xlabel("times as fast as the rival (right of 1: gatewise is faster)", fontsize=8)
        axes[1][column].set_xlabel("time / limit (1: as fast as a large matrix product)", fontsize=8)
    for row in axes:
        row[0].set_ylabel("T, N, I, H")
        low, high = row[0].get_xlim()
        row[0].set_xlim(min(low, 0.8), max(high, 2.2))
        _plain_ticks(row[0])
    for axis in axes[0]:
        axis.axvspan(axis.get_xlim()[0], 1, color="#d1495b", alpha=0.07, zorder=0)
    _legend(figure, rows)
    machine = report["machine"]
    rate = max(report["sgemm_flops_per_second"].values()) / 1e9
    figure.suptitle(
        f"gatewise beside its rivals: {machine['cpu']}, {report['threads']} threads, {report['dtype']}, "
        f"matrix product {rate:.0f} GFLOP/s",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, rows: list[dict[str, Any]], shapes: list[str], key: str) -> None:
    """One cell's dots for `ratio` or `times_limit`, a line per shape."""
    for row in rows:
        place = shapes.index(shape_of(row)) + _NUDGE[row["mode"]]
        for name, value in row[key].items():
            if name == CONSTANT:
                continue
            colour = _COLOURS.get(name, _OTHER)
            face = colour if row["mode"] == "forward" else "none"
            marker = _MODES[row["mode"]]
            axis.scatter(value, place, marker=marker, s=26, facecolors=face, edgecolors=colour, linewidths=1.2, zorder=3)
    axis.set_xscale("log")
    axis.axvline(1, color="black", linewidth=1, zorder=1)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_yticks(range(len(shapes)), [shape.replace(",", ", ") for shape in shapes], fontsize=8)
    axis.set_ylim(len(shapes) - 0.5, -0.5)
    axis.grid(axis="both", color="0.9", zorder=0)
    axis.set_axisbelow(True)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 … where there is room, never powers; one setting for all panels that share the axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if high / low < 300 else (1,), numticks=20))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, rows: list[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    def entry(label: str, marker: str, colour: str, filled: bool) -> Any:
        face = colour if filled else "none"
        return Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=face, label=label)

    handles = [entry(name, "D", _COLOURS.get(name, _OTHER), True) for name in (OURS, *rivals_in(rows))]
    modes = [mode for mode in _MODES if any(row["mode"] == mode for row in rows)]
    words = {"forward": "forward", "training": "training step"}
    handles += [entry(words[mode], _MODES[mode], "0.25", mode == "forward") for mode in modes]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
