"""Graphs for people: a table of their operations, and a layered drawing with shapes on the edges."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from .layout import Edge, Node, lay_out
from .tensor import Operation, Tensor, shape_text

_LARGEST = 400  # boxes in a drawing
_CHARACTER = 6.7  # width of a letter of the labels
_MARGIN = 24

# fill and border by family
_COLOURS = {
    "placeholder": ("#e3f4e6", "#4c9a5d"),
    "variable": ("#fdf0d3", "#c08a1e"),
    "constant": ("#f1f2f4", "#9aa1ab"),
    "recurrent": ("#e8e1fb", "#7a5bc7"),
    "gradient": ("#fde3e6", "#c8596a"),
    "update": ("#d8f1f0", "#2f8f8b"),
    "other": ("#e2ecf9", "#5581bd"),
}
_UPDATES = ("assign", "adam", "stochastic_gradient_descent")


def family(operation: Operation) -> str:
    """What colour an operation has."""
    kind = operation.kind
    if kind in _COLOURS:
        return kind
    if kind == "read_variable":
        return "variable"
    if kind in _UPDATES:
        return "update"
    if "descriptor" in operation.attributes and not kind.endswith("_gradients"):
        return "recurrent"
    if "gradient" in kind or operation.name.startswith("gradients/"):
        return "gradient"
    return "other"


def detail(operation: Operation) -> str:
    """The options that make this operation different from others of its kind."""
    parts = []
    for name, value in operation.attributes.items():
        if name in ("shape", "dtype") and operation.kind in ("placeholder", "variable"):
            continue
        if isinstance(value, np.ndarray):
            parts.append(_value(value))
        elif name == "arguments":
            parts += [text for text in ("peephole", "mask", "lengths", "resets") if text in value]
        elif name == "descriptor":
            flags = ("reverse", "bidirectional", "forget_gate_last", "reset_gate_first", "reset_after", "flip_z")
            parts += [flag.replace("_", " ") for flag in flags if getattr(value, flag, False)]
        elif value not in (None, (), False):
            parts.append(f"{name} {_text(value)}")
    return ", ".join(part for part in parts if part)


def _value(array: np.ndarray[Any, Any]) -> str:
    return f"{array.item():.6g}" if array.size == 1 and array.dtype != np.bool_ else ""


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return shape_text(value) if all(each is None or isinstance(each, int) for each in value) else str(list(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(getattr(value, "name", value)).replace("True", "yes")


def table(graph: Any) -> str:
    """One line per operation: its name, what it does, what it reads, what it makes."""
    rows = [("operation", "kind", "inputs", "results", "")]
    for operation in graph.operations:
        results = ", ".join(f"{result.dtype.name}{shape_text(result.shape)}" for result in operation.results)
        inputs = ", ".join(tensor.name for tensor in operation.inputs)
        rows.append((operation.name, operation.kind, inputs, results, detail(operation)))
    widths = [min(max(len(row[column]) for row in rows), 60) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip() for row in rows]
    lines.insert(1, "─" * max(len(line) for line in lines))
    return "\n".join(lines)


def svg(graph: Any) -> str:
    """The whole graph."""
    return draw(graph.operations, f"{len(graph.operations)} operations")


def draw(operations: Sequence[Operation], title: str, outputs: Sequence[Tensor] = ()) -> str:
    """These operations, top to bottom; `outputs` are marked as what the graph is for."""
    hidden = len(operations) - _LARGEST
    if hidden > 0:
        operations = operations[:_LARGEST]
        title += f" (the first {_LARGEST} are drawn)"
    labels = {operation: _label(operation) for operation in operations}
    nodes = {
        operation: Node(number, max(len(line) for line in label) * _CHARACTER + 26, 14.0 * len(label) + 14)
        for number, (operation, label) in enumerate(labels.items())
    }
    edges = []
    bundles: dict[Tensor, int] = {}
    for operation, node in nodes.items():
        for tensor in dict.fromkeys(operation.inputs):
            names_only = operation.kind == "assign" and tensor is operation.inputs[0]
            if tensor.operation in nodes and not names_only:
                bundle = bundles.setdefault(tensor, len(bundles))
                edges.append(Edge(nodes[tensor.operation], node, shape_text(tensor.shape), bundle))
    ordering = [
        Edge(nodes[before], node, "", -1 - node.key)
        for operation, node in nodes.items()
        for before in operation.control
        if before in nodes
    ]
    width, height = lay_out(list(nodes.values()), edges + ordering)
    width, height = max(width, len(title) * _CHARACTER + 20), height + 34

    found = {tensor.operation for tensor in outputs}
    parts = [_edge(edge, "#8b94a3") for edge in edges] + [_edge(edge, "#c3a15a", "5 4") for edge in ordering]
    parts += [_box(node, operation, labels[operation], operation in found) for operation, node in nodes.items()]
    style = 'text-anchor="middle" font-size="9.5" fill="#4a5361" font-family="ui-monospace, Menlo, monospace"'
    parts += [f"<g {style}>", *_edge_labels(edges), "</g>"]
    frame = f"{-_MARGIN} {-_MARGIN - 34} {width + 2 * _MARGIN:.0f} {height + 2 * _MARGIN:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" width="{width + 2 * _MARGIN:.0f}" '
            f'height="{height + 2 * _MARGIN:.0f}" font-family="system-ui, Helvetica, Arial, sans-serif">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0,1 L7,4 L0,7 z" fill="#8b94a3"/></marker></defs>',
            f'<rect x="{-_MARGIN}" y="{-_MARGIN - 34}" width="100%" height="100%" rx="10" fill="#ffffff"/>',
            f'<text x="0" y="-32" font-size="13" font-weight="600" fill="#39424e">{escape(title)}</text>',
            _legend({family(operation) for operation in operations}),
            *parts,
            "</svg>",
        ]
    )


def _label(operation: Operation) -> list[str]:
    """The kind, then the name if somebody chose one, then the options."""
    if operation.kind == "constant":
        return [_value(operation.attributes["value"]) or "constant"]
    if operation.kind == "assign":
        return ["assign", f"to {operation.inputs[0].name}"]
    name = operation.name.removeprefix("gradients/")
    chosen = name.rsplit("_", 1)[0] if name.rsplit("_", 1)[-1].isdigit() else name
    first = [name] if operation.kind in ("placeholder", "variable") else [operation.kind.replace("_", " ")]
    if operation.kind not in ("placeholder", "variable") and chosen != operation.kind:
        first.append(name)
    options = detail(operation)
    return [*first, *([options if len(options) <= 40 else options[:39] + "…"] if options else [])]


def _box(node: Node, operation: Operation, label: list[str], is_output: bool) -> str:
    fill, border = _COLOURS[family(operation)]
    x, y = node.x - node.width / 2, node.y - node.height / 2
    round_ = node.height / 2 if operation.kind in ("placeholder", "variable", "constant") else 7
    results = ", ".join(f"{result.dtype.name}{shape_text(result.shape)}" for result in operation.results)
    hint = f"{operation.name}: {operation.kind} → {results or 'nothing'}\n{operation.line[0]}:{operation.line[1]}"
    lines = [
        f'<g><title>{escape(hint)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{node.width:.1f}" height="{node.height:.1f}" '
        f'rx="{round_:.1f}" fill="{fill}" stroke="{border}" stroke-width="{2.6 if is_output else 1.2}"/>'
    ]
    for number, line in enumerate(label):
        style = 'font-size="12" font-weight="600" fill="#222b36"' if number == 0 else 'font-size="10.5" fill="#5b6573"'
        lines.append(
            f'<text x="{node.x:.1f}" y="{y + 18 + 14 * number:.1f}" text-anchor="middle" {style}>{escape(line)}</text>'
        )
    return "".join([*lines, "</g>"])


def _way(edge: Edge) -> list[tuple[float, float]]:
    source, target = edge.source, edge.target
    return [
        (source.x + edge.start, source.y + source.height / 2),
        *((point.x, point.y) for point in edge.points),
        (target.x + edge.end, target.y - target.height / 2 - 1),
    ]


def _edge(edge: Edge, colour: str, dashes: str = "") -> str:
    way = _way(edge)
    path = f"M{way[0][0]:.1f},{way[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(way):
        middle = (y0 + y1) / 2
        path += f" C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3"{dashed} marker-end="url(#tip)"/>'


def _edge_labels(edges: list[Edge]) -> list[str]:
    """Each tensor's shape once, on the way out of its box, moved down where two would touch."""
    taken: list[tuple[float, float, float]] = []
    lines = []
    seen: set[int] = set()
    for edge in edges:
        if edge.bundle in seen:
            continue
        seen.add(edge.bundle)
        (x0, y0), (x1, y1) = _way(edge)[:2]
        half = len(edge.label) * 2.8 + 3
        for along in (0.42, 0.62, 0.25, 0.78):
            x, y = x0 + (x1 - x0) * along * along * (3 - 2 * along), y0 + (y1 - y0) * along
            if all(abs(x - other) > half + width or abs(y - height) > 10 for other, height, width in taken):
                break
        taken.append((x, y, half))
        place = f'x="{x:.1f}" y="{y + 3:.1f}"'
        lines.append(f'<text {place} stroke="#ffffff" stroke-width="3.5">{edge.label}</text><text {place}>{edge.label}</text>')
    return lines


def _legend(present: set[str]) -> str:
    x, parts = 0.0, []
    for name, (fill, border) in _COLOURS.items():
        if name in present and name != "other":
            parts.append(
                f'<rect x="{x:.0f}" y="-23" width="10" height="10" rx="3" fill="{fill}" stroke="{border}"/>'
                f'<text x="{x + 14:.0f}" y="-14" font-size="10" fill="#5b6573">{name}</text>'
            )
            x += 30 + len(name) * 5.4
    return "".join(parts)
