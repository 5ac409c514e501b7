"""A layered layout: every node below what it depends on, few crossings, straight edges. Knows nothing of graphs of ours."""

from __future__ import annotations

from dataclasses import dataclass, field

GAP_X, GAP_Y = 26.0, 52.0
_SWEEPS, _PASSES, _LAST = 12, 30, 14  # the last passes look both ways
_STRAIGHT = 6.0  # how much more a bend in a long edge weighs than one at a node


@dataclass(eq=False)
class Node:
    """A box, or with `width` 0 a point that a long edge passes. Positions are of the centre."""

    key: int
    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[Node] = field(default_factory=list)
    below: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Edge:
    """From one box to another, through the points where it passes the layers between."""

    source: Node
    target: Node
    label: str
    bundle: int  # edges of one bundle share their way
    start: float = 0.0  # offset of its ends from the centres of its boxes
    end: float = 0.0
    points: list[Node] = field(default_factory=list)


def lay_out(nodes: list[Node], edges: list[Edge]) -> tuple[float, float]:
    """Give every node its place; `nodes` come in an order in which edges point forward. The size of the whole."""
    _layers(nodes, edges)
    rows: list[list[Node]] = [[] for _ in range(max((node.layer for node in nodes), default=0) + 1)]
    for node in nodes:
        rows[node.layer].append(node)
    _route(edges, rows)
    _order(rows)
    _place(rows)
    _ports(edges)
    left = min((node.x - node.width / 2 for row in rows for node in row), default=0.0)
    for row in rows:
        for node in row:
            node.x -= left
    y = 0.0
    for row in rows:
        height = max((node.height for node in row), default=0.0)
        for node in row:
            node.y = y + height / 2
        y += height + GAP_Y
    return max((node.x + node.width / 2 for row in rows for node in row), default=0.0), y - GAP_Y


def _layers(nodes: list[Node], edges: list[Edge]) -> None:
    """As high as possible; then whatever has nothing above it, as low as its first user allows."""
    outgoing: dict[Node, list[Edge]] = {}
    sources = set(nodes)
    for edge in edges:
        outgoing.setdefault(edge.source, []).append(edge)
        sources.discard(edge.target)
    for node in nodes:
        for edge in outgoing.get(node, ()):
            edge.target.layer = max(edge.target.layer, node.layer + 1)
    for node in sources:
        users = [edge.target.layer for edge in outgoing.get(node, ())]
        if users:
            node.layer = min(users) - 1


def _route(edges: list[Edge], rows: list[list[Node]]) -> None:
    """Points in every layer a long edge passes, shared by the edges of a bundle."""
    passing: dict[tuple[int, int], Node] = {}
    for edge in edges:
        previous = edge.source
        for layer in range(edge.source.layer + 1, edge.target.layer):
            key = edge.bundle, layer
            point = passing.get(key)
            if point is None:
                point = passing[key] = Node(-1, 0.0, 0.0, layer)
                rows[layer].append(point)
                _join(previous, point)
            edge.points.append(point)
            previous = point
        _join(previous, edge.target)


def _join(upper: Node, lower: Node) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _order(rows: list[list[Node]]) -> None:
    """Sort each layer by where its neighbours are, downwards and upwards in turn, and keep the best order seen."""
    places = {node: place for row in rows for place, node in enumerate(row)}
    best, fewest = [list(row) for row in rows], _crossings(rows, places)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            middle = {}
            for node in row:
                near = node.above if down else node.below
                middle[node] = sum(places[other] for other in near) / len(near) if near else float(places[node])
            row.sort(key=middle.__getitem__)
            places.update({node: place for place, node in enumerate(row)})
        crossings = _crossings(rows, places)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
        if not fewest:
            break
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept


def _crossings(rows: list[list[Node]], places: dict[Node, int]) -> int:
    """How many pairs of edges cross between neighbouring layers."""
    total = 0
    for row in rows:
        ends = [end for upper in row for end in sorted(places[lower] for lower in upper.below)]
        for place, end in enumerate(ends):
            total += sum(1 for earlier in ends[:place] if earlier > end)
    return total


def _place(rows: list[list[Node]]) -> None:
    """Move each layer towards its neighbours, as near as the order and the widths allow."""
    for row in rows:
        _spread(row, [0.0] * len(row), [1.0] * len(row))
    for number in range(_PASSES):
        for row in rows if number % 2 == 0 else rows[::-1]:
            wanted, weights = [], []
            for node in row:
                near = node.above + node.below if number >= _PASSES - _LAST else node.above if number % 2 == 0 else node.below
                pulls = [(_STRAIGHT if not node.width and not other.width else 1.0, other.x) for other in near]
                weight = sum(pull for pull, _ in pulls)
                wanted.append(sum(pull * x for pull, x in pulls) / weight if pulls else node.x)
                weights.append(weight or 0.1)
            _spread(row, wanted, weights)


def _spread(row: list[Node], wanted: list[float], weights: list[float]) -> None:
    """The places nearest to the wanted ones that keep the order and the gaps: pooled adjacent violators."""
    offsets, total = [], 0.0
    for place, node in enumerate(row):
        if place:
            gap = GAP_X if node.width or row[place - 1].width else GAP_X / 2
            total += row[place - 1].width / 2 + gap + node.width / 2
        offsets.append(total)
    pools: list[list[float]] = []  # mean, weight, number
    for x, offset, weight in zip(wanted, offsets, weights, strict=True):
        pools.append([x - offset, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, heavy, number = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += number
    place = 0
    for mean, _, number in pools:
        for _ in range(int(number)):
            row[place].x = mean + offsets[place]
            place += 1


def _ports(edges: list[Edge]) -> None:
    """Spread the ends of edges along the sides of their boxes, in the order in which they come and go."""
    leaving: dict[Node, dict[int, list[Edge]]] = {}
    arriving: dict[Node, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.source, {}).setdefault(edge.bundle, []).append(edge)
        arriving.setdefault(edge.target, []).append(edge)
    for node, bundles in leaving.items():
        groups = sorted(bundles.values(), key=lambda group: min(_first(edge).x for edge in group))
        for place, group in enumerate(groups):
            for edge in group:
                edge.start = node.width * 0.7 * ((place + 1) / (len(groups) + 1) - 0.5)
    for node, incoming in arriving.items():
        incoming.sort(key=lambda edge: _last(edge).x)
        for place, edge in enumerate(incoming):
            edge.end = node.width * 0.8 * ((place + 1) / (len(incoming) + 1) - 0.5)


def _first(edge: Edge) -> Node:
    return edge.points[0] if edge.points else edge.target


def _last(edge: Edge) -> Node:
    return edge.points[-1] if edge.points else edge.source
