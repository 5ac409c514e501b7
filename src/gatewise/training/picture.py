"""A training run as a picture: the loss over the steps, and what the gates do along a line of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..cells import cell_of, order_of
from .corpus import encode
from .loop import Trainer

Array = Any

_UNITS = 24  # rows of a heat map: the units that change most along the line
_CONTEXT = 300  # characters read before the line
_LEARNED, _MEAN, _HELD_OUT, _SURPRISE = "#c3d2dc", "#4f6d7a", "#c8553d", "#4f6d7a"
_GATES = {
    "lstm": {"i": "input gate", "f": "forget gate", "o": "output gate"},
    "gru": {"z": "update gate", "r": "reset gate", "o": "output gate"},
    "single_gate_rnn": {"z": "value before the activation"},
}


def draw(trainer: Trainer, path: Path) -> None:
    """Write the picture (PNG, SVG or PDF by the file's ending). Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    line, surprise, maps = _activity(trainer)
    figure = Figure(figsize=(11, 4.4 + 2.0 * len(maps)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(2 + len(maps), 1, height_ratios=[3.2, 0.9, *[2.0] * len(maps)])
    _draw_losses(rows[0], trainer)
    _draw_surprise(rows[1], line, surprise)
    for axis, (name, values) in zip(rows[2:], maps.items(), strict=True):
        _draw_map(figure, axis, name, values)
    _label_line(rows[-1], line)
    figure.savefig(path, dpi=110)


def _activity(trainer: Trainer) -> tuple[str, Array, dict[str, Array]]:
    """A held-out line, the bits each of its characters costs, and per gate `[units, characters]` of the top layer."""
    model, vocabulary = trainer.model, trainer.corpus.vocabulary
    before, line = _line(trainer.corpus.held_out_text)
    numbers = encode(before + line, vocabulary)
    logits, _, gates = model.read(numbers)
    wide = logits.astype(np.float64)
    likely = wide - wide.max(axis=1, keepdims=True)
    likely -= np.log(np.exp(likely).sum(axis=1, keepdims=True))
    first = len(numbers) - len(line)
    surprise = -likely[np.arange(first - 1, len(numbers) - 1), numbers[first:]] / np.log(2)
    descriptor = trainer.config.descriptor()
    cell = cell_of(descriptor)
    packed = gates[first:].reshape(len(line), len(cell.gates), -1)
    maps = {}
    for gate, slot in zip(cell.gates, order_of(descriptor), strict=True):
        name = _GATES[cell.operation].get(gate)
        if name is not None:
            maps[name] = _liveliest(packed[:, slot].T)
    return line, surprise, maps


def _line(text: str) -> tuple[str, str]:
    """What comes before a line and the line itself: the first of a good length, of code rather than prose."""
    start = best = 0
    length = -1
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\n")
        if start >= _CONTEXT // 2 and len(bare) <= 72 and len(bare.lstrip()) >= 40 and "(" in bare and "=" in bare:
            best, length = start, len(bare)
            break
        start += len(line)
    if length < 0:
        best, length = min(_CONTEXT, len(text) // 2), min(60, len(text) // 2)
    before = text[max(0, best - _CONTEXT) : best]
    return before or "\n", text[best : best + length].replace("\n", " ") or " "


def _liveliest(values: Array) -> Array:
    """The units that change most, those that are high early in the line above those that are high late."""
    chosen = values[np.argsort(-values.std(axis=1), kind="stable")[:_UNITS]]
    weight = chosen - chosen.min(axis=1, keepdims=True) + 1e-6
    centre = (weight * np.arange(chosen.shape[1])).sum(axis=1) / weight.sum(axis=1)
    return chosen[np.argsort(centre, kind="stable")]


def _draw_losses(axis: Any, trainer: Trainer) -> None:
    losses = np.array(trainer.losses, np.float64)
    config = trainer.config
    if len(losses):
        axis.plot(np.arange(1, len(losses) + 1), losses, color=_LEARNED, linewidth=0.7, label="each step of training")
        window = max(1, len(losses) // 60)
        means = np.convolve(losses, np.ones(window) / window, "valid")
        axis.plot(np.arange(len(means)) + window, means, color=_MEAN, linewidth=1.4, label=f"mean of {window} steps")
    steps = [step for step, _ in trainer.measured]
    bits = [value for _, value in trainer.measured]
    axis.plot(steps, bits, color=_HELD_OUT, marker="o", markersize=4, linewidth=1.6, label="held-out text")
    if bits:
        axis.annotate(
            f"{bits[-1]:.2f}", (steps[-1], bits[-1]), xytext=(6, 0), textcoords="offset points", va="center",
            color=_HELD_OUT, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, max(len(losses), 1) * 1.04)
    axis.set_xlabel("steps")
    axis.set_ylabel("bits per character")
    layers = f"{config.layers} layers" if config.layers > 1 else "1 layer"
    kind = {"lstm": "LSTM", "gru": "GRU", "rnn": "single-gate RNN"}[config.cell]
    kind += " with peepholes" if config.peephole else ""
    axis.set_title(f"Learning to write: {kind}, {layers} of {config.hidden} units", loc="left", fontweight="bold")
    axis.legend(frameon=False)
    _bare(axis)
    axis.grid(axis="y", color="0.92")


def _draw_surprise(axis: Any, line: str, surprise: Array) -> None:
    axis.bar(np.arange(len(line)), surprise, color=_SURPRISE, width=0.8)
    axis.set_xlim(-0.5, len(line) - 0.5)
    axis.set_ylabel("bits")
    _label_line(axis, line)
    axis.set_title("Reading a line it has never seen: how surprising each character is", loc="left", fontsize=10)
    _bare(axis)


def _draw_map(figure: Any, axis: Any, name: str, values: Array) -> None:
    inside = values.min(initial=0) >= 0 and values.max(initial=0) <= 1
    reach = 1.0 if inside else float(np.abs(values).max())
    image = axis.imshow(
        values, aspect="auto", interpolation="nearest",
        cmap="magma" if inside else "RdBu_r", vmin=0 if inside else -reach, vmax=reach,
    )  # fmt: skip
    axis.set_title(f"{name} of the {len(values)} liveliest units in the top layer", loc="left", fontsize=10)
    axis.set_yticks([])
    axis.set_xticks([])
    axis.set_ylabel("units")
    figure.colorbar(image, ax=axis, pad=0.01, fraction=0.03, ticks=[0, 0.5, 1] if inside else None)


def _label_line(axis: Any, line: str) -> None:
    """The line itself under a panel, a character per column."""
    labels = ["␣" if character == " " else character.replace("$", r"\$") for character in line]
    axis.set_xticks(np.arange(len(line)), labels, family="monospace", fontsize=9)
    axis.tick_params(axis="x", length=0)


def _bare(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
