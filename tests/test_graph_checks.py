"""What a graph refuses and what it derives: gradients over several paths, errors with lines, names, unknown sizes."""

from __future__ import annotations

import numpy as np
import pytest

import gatewise
from gatewise import Graph, ShapedType
from graph_helper import assert_close

# Gradients


def test_several_paths_and_results_add_up():
    graph = Graph()
    x = graph.placeholder([4], np.float64)
    a, b = graph.split(x * x, 2, 0)
    result = graph.reduction_sum(a * b) + graph.reduction_sum(x) + a[0]
    middle = x * 1.0
    gradient = graph.gradients(result + graph.reduction_sum(middle), [x, middle])
    found = graph.run({x: [1.0, 2, 3, 4]}, list(gradient.values()))
    assert found[gradient[x]].tolist() == [2 * 9 + 1 + 2 + 1, 4 * 16 + 2, 6 * 1 + 2, 8 * 4 + 2]
    assert found[gradient[middle]].tolist() == [1, 1, 1, 1]
    assert graph.run({x: [1.0, 2, 3, 4]}, [own := graph.gradients(x, [x])[x]])[own].tolist() == [1, 1, 1, 1]


def test_second_gradients_of_ordinary_operations():
    graph = Graph()
    x = graph.placeholder([3], np.float64)
    first = graph.gradients(graph.exponent(x * x), [x])[x]
    second = graph.gradients(first, [x])[x]
    a = np.array([0.1, 0.5, 1.0])
    assert_close(graph.run({x: a}, [second])[second], (2 + 4 * a * a) * np.exp(a * a))


def test_refused_gradients():
    graph = Graph()
    x, y = graph.placeholder([3], name="x"), graph.placeholder([3], name="y")
    with pytest.raises(gatewise.ArgumentError, match="does not depend on <Tensor 'y'"):
        graph.gradients(graph.tanh(x), [x, y])
    with pytest.raises(gatewise.ArgumentError, match=r"does not depend on .* or only through operations without a slope"):
        graph.gradients(graph.cast(graph.argmax(x), np.float32), [x])
    with pytest.raises(gatewise.DTypeError, match="not floating"):
        graph.gradients(graph.argmax(x), [x])
    with pytest.raises(gatewise.UnsupportedError, match=r"tanh_gradient '.*' has no gradient \(made at .*test_graph_checks"):
        graph.gradients(graph.tanh_gradient(x, x), [x])
    with pytest.raises(gatewise.DTypeError, match="not a tensor of this graph"):
        graph.gradients(Graph().placeholder([1]), [x])


# Errors and names


def test_errors_name_the_operation_and_the_line():
    graph = Graph()
    x = graph.placeholder([3, 4], name="x")
    with pytest.raises(gatewise.ShapeError) as caught:
        graph.addition(x, graph.placeholder([5]), name="total")
    assert str(caught.value).startswith("addition 'total': shapes [3, 4] and [5] do not broadcast (made at ")
    line = caught.traceback[0].lineno + 1
    assert str(caught.value).endswith(f"test_graph_checks.py:{line})")
    for error, make in {
        "needs equal dtypes, got float32 and float64": lambda: x + np.ones(4),
        "the number 0.5 does not fit a tensor of int64": lambda: graph.placeholder([2], np.int64) * 0.5,
        "needs a floating dtype, got int64": lambda: graph.placeholder([2], np.int64) / 2,
        "axis must be from -2 to 1": lambda: graph.soft_max(x, 2),
        "axes must be distinct": lambda: graph.reduction_sum(x, [0, -2]),
        "has 12 elements, \\[5\\] has 5": lambda: graph.reshape(x, [5]),
        "needs a tensor, a number or a NumPy array, got str": lambda: graph.tanh("x"),
        "belongs to another graph": lambda: graph.tanh(Graph().placeholder([1])),
        "size 4 of axis 1 does not make 3": lambda: graph.split(x, 3, 1),
        "permutation must name each": lambda: graph.transpose(x, [0, 0]),
        "name must be a text": lambda: graph.tanh(x, name=3),
        "needs a variable": lambda: graph.assign(x, x),
        "a size must be a whole number": lambda: graph.placeholder([2.5]),
        "dtype must be one of": lambda: graph.placeholder([2], np.complex64),
        "predicate must be bool": lambda: graph.select(x, x, x),
        "reduction must be one of": lambda: graph.soft_max_cross_entropy(x, x, reduction="average"),
        "indices must be whole numbers": lambda: graph.gather(x, x),
        "strides must not be 0": lambda: x[::0],
        "index 3 is out of range": lambda: x[3],
    }.items():
        with pytest.raises(gatewise.GatewiseError, match=error) as caught:
            make()
        if "index 3" not in error:
            assert "test_graph_checks.py" in str(caught.value)


def test_errors_of_feeds():
    graph = Graph()
    x = graph.placeholder([None, 3], name="x")
    y = graph.placeholder([None, 3], name="y")
    total = graph.reduction_sum(x * y)
    good = np.ones((2, 3), np.float32)
    with pytest.raises(gatewise.ShapeError, match=r"run: 'x' is \[\?, 3\], got \[2, 4\] \(made at"):
        graph.run({x: np.ones((2, 4), np.float32), y: good}, [total])
    with pytest.raises(gatewise.DTypeError, match="'x' is float32, got float64"):
        graph.run({x: np.ones((2, 3)), y: good}, [total])
    with pytest.raises(gatewise.ArgumentError, match="placeholder 'y' needs a feed"):
        graph.run({x: good}, [total])
    with pytest.raises(gatewise.ArgumentError, match="only placeholders can be fed"):
        graph.run({total: good}, [total])
    with pytest.raises(gatewise.ShapeError, match=r"multiplication: shapes \[2, 3\] and \[4, 3\] do not broadcast"):
        graph.run({x: good, y: np.ones((4, 3), np.float32)}, [total])
    with pytest.raises(gatewise.DTypeError, match="not a tensor of this graph"):
        graph.run({x: good}, [Graph().constant(1.0)])
    with pytest.raises(gatewise.DTypeError, match="masked"):
        graph.run({x: np.ma.masked_array(good), y: good}, [total])
    with pytest.raises(gatewise.DTypeError, match="cannot be made an array"):
        graph.run({x: [[1, 2, 3], [1]], y: good}, [total])


def test_compile_checks_shapes_and_run_checks_arrays():
    graph = Graph()
    x, y = graph.placeholder([None, 3], name="x"), graph.placeholder([None, 3], name="y")
    total = x + y
    with pytest.raises(gatewise.ShapeError, match="do not broadcast"):
        graph.compile({x: ShapedType((2, 3)), y: ShapedType((4, 3))}, [total])
    with pytest.raises(gatewise.ShapeError, match="'x' is"):
        graph.compile({x: ShapedType((2, 4)), y: ShapedType((4, 3))}, [total])
    with pytest.raises(gatewise.ArgumentError, match="'y' needs a feed"):
        graph.compile({x: ShapedType((2, 3))}, [total])
    executable = graph.compile({y: ShapedType((None, 3)), x: ShapedType((2, 3))}, [total])
    one = np.ones((1, 3), np.float32)
    assert executable.run([one, np.ones((2, 3), np.float32)])[0].shape == (2, 3)
    with pytest.raises(gatewise.ShapeError, match=r"'x' is \[2, 3\], got \[1, 3\]"):
        executable.run([one, one])
    with pytest.raises(gatewise.ArgumentError, match=r"needs 2 arrays \(y, x\), got 1"):
        executable.run([one])


def test_names_are_unique_and_stable():
    def names():
        graph = Graph()
        x = graph.placeholder([2], name="x")
        for _ in range(3):
            graph.tanh(x)
        graph.tanh(x, name="x")
        graph.tanh(x, name="tanh_1")
        graph.gradients(graph.tanh(x), [x])
        return [operation.name for operation in graph.operations]

    found = names()
    assert found == names()
    assert len(set(found)) == len(found)
    assert found[:6] == ["x", "tanh", "tanh_1", "tanh_2", "x_1", "tanh_1_1"]


def test_tensors_refuse_what_they_cannot_do():
    graph = Graph()
    x = graph.placeholder([None, 3])
    with pytest.raises(gatewise.ArgumentError, match="cannot decide an `if`"):
        bool(x)
    with pytest.raises(gatewise.ArgumentError, match="cannot be looped over"):
        list(x)
    with pytest.raises(gatewise.ShapeError, match="no known length"):
        len(x)
    with pytest.raises(gatewise.DTypeError, match="an index must be"):
        x["a"]
    with pytest.raises(gatewise.ShapeError, match="too few for 3 indices"):
        x[0, 0, 0]
    assert len(graph.placeholder([5])) == 5
    assert (np.ones(3, np.float32) + x).shape == (None, 3)


def test_unknown_sizes_meet_known_ones():
    graph = Graph()
    a, b = graph.placeholder([None, 3]), graph.placeholder([4, None])
    assert (a + b).shape == (4, 3)
    assert graph.concat([a, b], 0).shape == (None, 3)
    assert graph.reshape(a, [-1]).shape == (None,)
    assert (a @ graph.placeholder([3, 7])).shape == (None, 7)
    assert a[-1].shape == (3,)
    with pytest.raises(gatewise.ShapeError, match=r"axis 0 of \[0, 3\] must have size 1"):
        graph.run({a: np.ones((0, 3), np.float32)}, [a[-1]])
