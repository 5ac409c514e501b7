"""What people see of a graph: table, drawing, profile, the draw command."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from gatewise import Graph, LSTMDescriptor, ShapedType
from gatewise.cli.draw import draw
from gatewise.graph.layout import Edge, Node, lay_out


def make_graph() -> tuple[Graph, dict, list]:
    graph = Graph()
    x = graph.placeholder([None, 2, 3], name="frames <&>")
    weights = [graph.variable(np.full(shape, 0.1, np.float32)) for shape in ((2, 16, 4), (32, 3))]
    (h,) = graph.lstm(x, *weights, descriptor=LSTMDescriptor(bidirectional=True), name="encoder")
    loss = graph.reduction_mean(graph.square(h - 0.5))
    gradients = graph.gradients(loss, weights)
    updates = [graph.assign(each, graph.stochastic_gradient_descent(0.1, each, gradients[each])) for each in weights]
    return graph, {x: np.ones((5, 2, 3), np.float32)}, [loss, updates]


def test_table():
    graph, _, _ = make_graph()
    lines = str(graph).splitlines()
    assert len(lines) == len(graph.operations) + 2
    encoder = next(line for line in lines if line.startswith("encoder "))
    assert re.search(r"lstm +frames <&>, variable, variable_1 +float32\[\?, 2, 8\].* bidirectional$", encoder)
    assert repr(graph) == f"<Graph of {len(graph.operations)} operations>"
    assert "operation" in str(Graph())


def _boxes(picture: str) -> tuple[list[tuple[float, float, float, float]], list[str]]:
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    boxes = []
    for group in root.iter(f"{space}g"):
        rectangle = group.find(f"{space}rect")
        if rectangle is not None:
            boxes.append(tuple(float(rectangle.attrib[key]) for key in ("x", "y", "width", "height")))
    return boxes, [text.text or "" for text in root.iter(f"{space}text")]


def test_drawing_shows_every_operation_and_shape_without_overlaps():
    graph, _, _ = make_graph()
    boxes, texts = _boxes(graph._repr_svg_())
    assert len(boxes) == len(graph.operations)
    assert "frames <&>" in texts
    assert "encoder" in texts
    assert {"[?, 2, 3]", "[?, 2, 8]", "[2, 16, 4]", "[]"} <= set(texts)
    for number, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[number + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y


def test_layout_points_down_and_keeps_parallel_chains_apart():
    nodes = [Node(number, 40.0, 20.0) for number in range(8)]
    pairs = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (0, 3)]
    edges = [Edge(nodes[a], nodes[b], "", number) for number, (a, b) in enumerate(pairs)]
    width, height = lay_out(nodes, edges)
    assert all(edge.source.y < edge.target.y for edge in edges)
    assert len({round(node.x) for node in nodes[4:]}) == 1
    assert [len(edge.points) for edge in edges] == [0] * 6 + [2]
    assert all(node.x - 20 >= 0 and node.x + 20 <= width and node.y - 10 >= 0 and node.y + 10 <= height for node in nodes)


def test_a_large_graph_is_cut_and_an_empty_one_drawn():
    graph = Graph()
    assert len(_boxes(graph._repr_svg_())[0]) == 0
    tensors = [graph.placeholder([2])]
    rng = np.random.default_rng(0)
    for _ in range(3000):
        a, b = (tensors[max(len(tensors) - 1 - int(each), 0)] for each in rng.integers(0, 20, 2))
        tensors.append(a + b)
    boxes, texts = _boxes(graph._repr_svg_())
    assert len(boxes) == 400
    assert texts[0] == "3001 operations (the first 400 are drawn)"


def test_control_dependencies_are_drawn():
    graph = Graph()
    variable = graph.variable(1.0)
    with graph.control_dependency([graph.assign(variable, variable * 2.0)]):
        graph.read_variable(variable)
    assert "stroke-dasharray" in graph._repr_svg_()


@pytest.mark.parametrize("make", [lambda array: array, torch.from_numpy], ids=["numpy", "torch"])
def test_profile(make):
    graph, feeds, (loss, updates) = make_graph()
    before = graph.variable_values()
    profile = graph.profile({tensor: make(array) for tensor, array in feeds.items()}, [loss], updates)
    rows = {row.name: row for row in profile.rows}
    assert rows["encoder"].bytes == 4 * 5 * 2 * (8 + 8 + 32)
    assert all(row.seconds >= 0 for row in profile.rows)
    assert 0 < rows["encoder"].seconds <= profile.seconds
    assert str(profile).splitlines()[-1].startswith(f"{len(rows)} operations")
    for name, value in graph.variable_values().items():
        np.testing.assert_array_equal(value, before[name], err_msg="profiling changes no variable")


def test_draw_command(tmp_path, capsys):
    import typer

    graph, feeds, (loss, updates) = make_graph()
    (x,) = feeds
    graph.compile({x: ShapedType((None, 2, 3))}, [loss], updates).save(tmp_path / "model")
    draw(tmp_path / "model", tmp_path / "graph.svg")
    picture = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    boxes, texts = _boxes(picture)
    assert f"model: {len(boxes)} operations" in texts
    assert 'stroke-width="2.6"' in picture, "the target stands out"
    (tmp_path / "broken").write_bytes(b"no")
    with pytest.raises(typer.Exit):
        draw(tmp_path / "broken", tmp_path / "graph.svg")
    assert "damaged" in capsys.readouterr().err


def test_importing_gatewise_imports_no_framework_and_no_graph():
    code = (
        "import sys, gatewise; print(sorted({'torch', 'jax', 'safetensors', 'ml_dtypes', 'gatewise.graph'} & set(sys.modules)))"
    )
    code += "; gatewise.Graph, gatewise.Tensor; print(sorted({'torch', 'jax', 'safetensors'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert found.stdout.split("\n")[:2] == ["[]", "[]"]
