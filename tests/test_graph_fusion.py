"""Pairs of operations that one pass computes give what each by itself gives, and only where nobody sees what is between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gatewise import Graph, Tensor
from gatewise.checking import tolerance
from gatewise.graph.place import numpy_place
from gatewise.graph.plan import Plan

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def steps(targets: list[Tensor], operations: tuple = ()) -> list[str]:
    return [step.operation.kind for step in Plan(targets, operations, numpy_place()).steps]


def affine(graph: Graph, x: Tensor, dtype: type) -> tuple[Tensor, Tensor]:
    product = x @ graph.constant(draw(48, 50).astype(dtype))
    return product, graph.constant(draw(50).astype(dtype)) + product


def squares(graph: Graph, x: Tensor, dtype: type) -> tuple[Tensor, Tensor]:
    square = graph.square(x)
    return square, graph.reduction_sum(square)


def squares_of_columns(graph: Graph, x: Tensor, dtype: type) -> tuple[Tensor, Tensor]:
    square = graph.square(x)
    return square, graph.reduction_sum(square, [0, 1], keep_dims=True)


def squares_of_rows(graph: Graph, x: Tensor, dtype: type) -> tuple[Tensor, Tensor]:
    square = graph.square(x)
    return square, graph.reduction_sum(square, [-1])


def clipped_adam(graph: Graph, x: Tensor, dtype: type) -> tuple[Tensor, Tensor]:
    values, momentum, velocity = (graph.constant(np.abs(draw(8, 9, 48)).astype(dtype)) for _ in range(3))
    gradient = x * graph.constant(0.3, dtype)
    results = graph.adam(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99, values, momentum, velocity, gradient)
    return gradient, graph.stack(results)


PAIRS: list[tuple[Callable[[Graph, Tensor, type], tuple[Tensor, Tensor]], str]] = [
    (affine, "matrix_multiplication"),
    (squares, "square"),
    (squares_of_columns, "square"),
    (squares_of_rows, "square"),
    (clipped_adam, "multiplication"),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("build", "first"), PAIRS, ids=[build.__name__ for build, _ in PAIRS])
def test_a_fused_pair_gives_what_both_give(build: Callable, first: str, dtype: type) -> None:
    graph = Graph()
    x = graph.placeholder((8, 9, 48), dtype)
    between, result = build(graph, x, dtype)
    assert first not in steps([result])
    assert first in steps([result, between]), "what is between is a target"
    feeds = {x: draw(8, 9, 48).astype(dtype)}
    fused, apart = graph.run(feeds, [result])[result], graph.run(feeds, [result, between])[result]
    assert fused.shape == apart.shape
    assert fused.dtype == apart.dtype == dtype
    np.testing.assert_allclose(fused, apart, rtol=0, atol=tolerance(np.dtype(dtype).name, 1) * np.abs(apart).max())


def test_what_others_need_is_not_fused_away() -> None:
    graph = Graph()
    x = graph.placeholder((8, 9, 48))
    square, total = squares(graph, x, np.float32)
    twice = total * graph.reduction_sum(square, [0])
    assert "square" in steps([twice]), "used twice"
    assert "square" in steps([total], (square.operation,)), "asked for"
    with graph.control_dependency([square]):
        after = total * 2.0
    assert "square" in steps([after]), "something waits for it"


def test_shapes_that_do_not_fit_stay_apart() -> None:
    graph = Graph()
    x, y = graph.placeholder((40, 48)), graph.placeholder((3, 48, 50))
    assert "matrix_multiplication" in steps([x @ y + graph.constant(draw(50))]), "a product of many matrices"
    product = x @ graph.constant(draw(48, 50))
    assert "matrix_multiplication" in steps([product + graph.constant(draw(40, 1))]), "a column"
    assert "matrix_multiplication" in steps([product + graph.constant(draw(1))]), "a number"
    values, momentum, velocity = (graph.constant(draw(40, 48)) for _ in range(3))
    adam = graph.adam(0.1, 0.9, 0.99, 1e-8, 0.9, 0.99, values, momentum, velocity, x * values)
    assert "multiplication" in steps(adam), "a gradient times an array"


def test_what_is_needed_for_its_shape_alone_does_not_run() -> None:
    graph = Graph()
    x = graph.placeholder((8, 3))
    y = graph.exponent(x)
    for result, expected in (
        (graph.ones_like(y), np.ones((8, 3))),
        (graph.shape_of(y), [8, 3]),
        (graph.dimension_size(y, 1), 3),
    ):
        assert steps([result]) == []
        np.testing.assert_array_equal(graph.run({x: draw(8, 3)}, [result])[result], expected)
    assert steps([graph.zeros_like(y)], (y.operation,)) == ["exponent"], "asked for"
    open_ended = graph.exponent(graph.placeholder((None, 3)))
    assert steps([graph.zeros_like(open_ended)]) == ["exponent", "filled_like"]
    large = graph.exponent(graph.placeholder((1024, 1024)))
    assert steps([graph.zeros_like(large)]) == ["exponent", "filled_like"], "too large to be kept between runs"


def test_equal_steps_of_adam_are_one() -> None:
    graph = Graph()
    scale = graph.placeholder([])
    shapes = [(3, 4), (700,), (), (0, 2), (130, 33)]
    variables = [[graph.variable(np.abs(draw(*shape))) for _ in range(3)] for shape in shapes]
    gradients = [graph.constant(draw(*shape)) for shape in shapes]

    def update(rate: float, clipped: bool) -> list:
        found = []
        for group, gradient in zip(variables, gradients, strict=True):
            new = graph.adam(rate, 0.9, 0.99, 1e-8, 0.9, 0.99, *group, gradient * scale if clipped else gradient)
            found += [graph.assign(*pair) for pair in zip(group, new, strict=True)]
        return found

    start = graph.variable_values()
    for clipped in (True, False):
        together = update(0.1, clipped)
        kinds = steps([], tuple(together))
        assert kinds.count("adam") == 1
        assert kinds[-15:] == ["assign"] * 15, "assignments wait"
        graph.run({scale: 0.5} if clipped else {}, [], together)
        expected = graph.variable_values()
        graph.set_variable_values(start)
        for place in range(0, 15, 3):
            graph.run({scale: 0.5} if clipped else {}, [], together[place : place + 3])
        for name, value in graph.variable_values().items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
            assert value.size < 2 or (value != start[name]).any()
        graph.set_variable_values(start)
    assert steps([], (*update(0.1, False), *update(0.2, False))).count("adam") == 2, "other rates are another batch"


def test_steps_of_adam_that_differ_stay_apart() -> None:
    graph = Graph()
    a, b, c, d, gradient = (graph.constant(np.abs(draw(5, 6))) for _ in range(5))
    numbers = (0.1, 0.9, 0.99, 1e-8, 0.9, 0.99)
    plain, largest = graph.adam(*numbers, a, b, c, gradient), graph.adam(*numbers, b, c, d, gradient, a)
    again = graph.adam(*numbers, plain[0], plain[1], plain[2], gradient)
    assert steps([*plain, *largest, *again]).count("adam") == 3, "a maximum, and one that needs the other"
    found = graph.run({}, [again[0]])[again[0]]
    first = graph.run({}, plain)
    other = Graph()
    alone = other.adam(
        *numbers, *(other.constant(first[each]) for each in plain), other.constant(graph.run({}, [gradient])[gradient])
    )
    np.testing.assert_array_equal(found, other.run({}, alone[:1])[alone[0]])


def test_assignments_do_not_wait_where_something_reads_between_them() -> None:
    graph = Graph()
    x = graph.variable([1.0])
    first = graph.assign(x, x + 1.0)
    between = graph.read_variable(x) * 10.0
    second = graph.assign(x, between)
    found = graph.run({}, [between], [first, second])
    assert found[between].tolist() == [20]
    assert graph.variable_values()["variable"].tolist() == [20]
