"""Every ordinary operation: values against NumPy, gradients against differences, on every kind of array."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gatewise import Graph
from gatewise.graph.rules import RULES
from graph_helper import assert_close, check_operation

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2.0, shape)


def whole(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


BROADCASTS = [((3, 4), (3, 4)), ((3, 1), (1, 4)), ((2, 3, 4), (4,)), ((), (2, 3)), ((0, 4), (4,)), ((2, 1, 3), (4, 1))]

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def soft_max(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("addition", np.add),
        ("subtraction", np.subtract),
        ("multiplication", np.multiply),
        ("division", np.divide),
        ("power", np.power),
        ("minimum", np.minimum),
        ("maximum", np.maximum),
    ],
)
def test_arithmetic(name, function, shapes):
    check_operation(lambda graph, a, b: getattr(graph, name)(a, b), function, positive(*shapes[0]), positive(*shapes[1]))


def test_power_of_zero_and_below():
    a = np.array([0.0, -2.0, 3.0, 0.0])
    check_operation(lambda graph, a: graph.power(a, 2.0), lambda a: a**2, a)
    graph = Graph()
    x = graph.placeholder([4], np.float64)
    exponent = graph.variable(np.full(4, 2.0))
    gradients = graph.gradients(graph.power(x, exponent), [exponent])
    found = graph.run({x: a}, [gradients[exponent]])[gradients[exponent]]
    assert_close(found, [0, 0, 9 * math.log(3), 0])


def test_equal_extremes_share_the_gradient():
    graph = Graph()
    a, b = graph.placeholder([3], np.float64), graph.placeholder([3], np.float64)
    for result, wanted in ((graph.maximum(a, b), [0.5, 0, 1]), (graph.minimum(a, b), [0.5, 1, 0])):
        gradient = graph.gradients(result, [a, b])
        found = graph.run({a: [1.0, 2, 3], b: [1.0, 3, 2]}, [gradient[a], gradient[b]])
        assert found[gradient[a]].tolist() == wanted
        assert found[gradient[b]].tolist() == [1 - each for each in wanted]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("equal", np.equal),
        ("not_equal", np.not_equal),
        ("less_than", np.less),
        ("less_than_or_equal_to", np.less_equal),
        ("greater_than", np.greater),
        ("greater_than_or_equal_to", np.greater_equal),
    ],
)
def test_comparison(name, function, shapes):
    for a, b in ((normal(*shapes[0]), normal(*shapes[1])), (whole(3, *shapes[0]), whole(3, *shapes[1]))):
        check_operation(lambda graph, a, b: getattr(graph, name)(a, b), function, a, b, gradient=False)


def test_select_and_clamp():
    check_operation(lambda graph, p, a, b: graph.select(p, a, b), np.where, normal(3, 1) > 0, normal(1, 4), normal(2, 3, 4))
    check_operation(lambda graph, x: graph.clamp(x, -0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5), normal(4, 5))
    check_operation(
        lambda graph, x, low, high: graph.clamp(x, low, high),
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        3 * normal(3, 4),
        np.array([-1.0, -0.5, -2.0, 3.0]),  # the last is above every maximum
        np.array([[1.0], [0.5], [2.0]]),
    )


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (2, 1, 3)], ids=str)
@pytest.mark.parametrize(
    ("name", "function", "make"),
    [
        ("negative", np.negative, normal),
        ("absolute", np.abs, normal),
        ("exponent", np.exp, normal),
        ("logarithm", np.log, positive),
        ("square", np.square, normal),
        ("square_root", np.sqrt, positive),
        ("reciprocal", np.reciprocal, positive),
        ("sign", np.sign, normal),
        ("relu", lambda x: np.maximum(x, 0), normal),
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.01 * x), normal),
        ("tanh", np.tanh, normal),
        ("sigmoid", sigmoid, normal),
        ("softplus", lambda x: np.logaddexp(x, 0), normal),
        ("gelu", lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), normal),
    ],
)
def test_unary(name, function, make, shape):
    check_operation(lambda graph, x: getattr(graph, name)(x), function, make(*shape))


def test_error_function_over_all_its_pieces():
    x = np.concatenate([np.linspace(-7, 7, 2001), [0.46875, 4.0, -0.46875, -4.0, 0.0, 30.0, -30.0, np.inf, -np.inf]])
    graph = Graph()
    source = graph.placeholder(x.shape, np.float64)
    found = graph.run({source: x * math.sqrt(2)}, [gelu := graph.gelu(source)])[gelu]
    with np.errstate(invalid="ignore"):
        wanted = x * math.sqrt(2) * 0.5 * (1 + erf(x))
    assert_close(found[:-1], wanted[:-1])
    assert np.isinf(found[-2])


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "tanh", "sigmoid", "softplus", "gelu"])
def test_explicit_gradient_operation_is_what_differentiation_gives(name):
    graph = Graph()
    x, g = graph.placeholder([50], np.float64), graph.placeholder([50], np.float64)
    result = getattr(graph, name)(x)
    explicit = getattr(graph, f"{name}_gradient")(g, x)
    derived = graph.gradients(graph.reduction_sum(result * g), [x])[x]
    found = graph.run({x: normal(50), g: normal(50)}, [explicit, derived])
    assert_close(found[explicit], found[derived])


def test_slopes_at_kinks():
    graph = Graph()
    x = graph.placeholder([1], np.float64)
    for result, slope in (
        (graph.relu(x), 0),
        (graph.absolute(x), 0),
        (graph.leaky_relu(x, 0.2), 0.2),
        (graph.clamp(x, 0.0, 1.0), 0),
    ):
        gradient = graph.gradients(result, [x])[x]
        assert graph.run({x: [0.0]}, [gradient])[gradient] == slope


@pytest.mark.parametrize("a", [1e4, -1e4, np.inf, -np.inf, np.nan], ids=str)
def test_extreme_arguments(a):
    graph = Graph()
    x = graph.placeholder([1], np.float64)
    results = [graph.sigmoid(x), graph.softplus(x), graph.relu(x), graph.tanh(x)]
    found = graph.run({x: [a]}, results)
    with np.errstate(over="ignore"):
        wanted = [1 / (1 + np.exp(-a)), max(a, 0.0) if a == a else a, max(a, 0.0) if a == a else a, np.tanh(a)]
    for result, value in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(found[result][0], value)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((0, 3, 4), (4, 2)),
        ((3, 0), (0, 2)),
    ],
    ids=str,
)
def test_matrix_multiplication(shapes):
    check_operation(lambda graph, a, b: a @ b, np.matmul, normal(*shapes[0]), normal(*shapes[1]))


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 4), None), ((3, 4), 0), ((2, 3, 4), (0, -1)), ((), None), ((3, 4), ()), ((3,), 0)], ids=str
)
@pytest.mark.parametrize(
    ("name", "function"), [("sum", np.sum), ("mean", np.mean), ("maximum", np.max), ("minimum", np.min), ("product", np.prod)]
)
def test_reduction(name, function, shape, axes, keep_dims):
    check_operation(
        lambda graph, x: getattr(graph, f"reduction_{name}")(x, axes, keep_dims),
        lambda x: function(x, axis=axes, keepdims=keep_dims) if axes != () else x,
        normal(*shape),
    )


def test_reductions_of_nothing():
    check_operation(lambda graph, x: graph.reduction_sum(x, 0), lambda x: x.sum(0), normal(0, 3))
    check_operation(lambda graph, x: graph.reduction_product(x, 0), lambda x: x.prod(0), normal(0, 3))
    graph = Graph()
    x = graph.placeholder([0], np.float64)
    assert np.isnan(graph.run({x: []}, [mean := graph.reduction_mean(x)])[mean])


@pytest.mark.parametrize("zeros", [1, 2])
def test_product_with_zeros(zeros):
    x = normal(2, 5)
    x[0, :zeros] = 0
    check_operation(lambda graph, x: graph.reduction_product(x, 1), lambda x: x.prod(1), x)


def test_equal_extremes_of_a_reduction_share_the_gradient():
    graph = Graph()
    x = graph.placeholder([4], np.float64)
    gradient = graph.gradients(graph.reduction_maximum(x), [x])[x]
    assert graph.run({x: [3.0, 1, 3, 2]}, [gradient])[gradient].tolist() == [0.5, 0, 0.5, 0]


def test_argmax():
    for axis, keep_dims in ((-1, False), (0, True)):
        check_operation(
            lambda graph, x, axis=axis, keep=keep_dims: graph.argmax(x, axis, keep),
            lambda x, axis=axis, keep=keep_dims: np.argmax(x, axis, keepdims=keep),
            normal(4, 5),
            gradient=False,
        )


@pytest.mark.parametrize(("shape", "axis"), [((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((0, 3), -1), ((3, 0), -1)], ids=str)
def test_soft_max(shape, axis):
    check_operation(lambda graph, x: graph.soft_max(x, axis), lambda x: soft_max(x, axis), normal(*shape))
    graph = Graph()
    x, g = graph.placeholder(shape, np.float64), graph.placeholder(shape, np.float64)
    explicit = graph.soft_max_gradient(g, x, axis)
    derived = graph.gradients(graph.reduction_sum(graph.soft_max(x, axis) * g), [x])[x]
    found = graph.run({x: normal(*shape), g: normal(*shape)}, [explicit, derived])
    assert_close(found[explicit], found[derived])


def cross_entropy(x, labels, axis, reduction):
    rows = -(labels * np.log(soft_max(x, axis))).sum(axis)
    return {"none": lambda rows: rows, "sum": np.sum, "mean": np.mean}[reduction](rows)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((4,), 0)], ids=str)
def test_soft_max_cross_entropy(shape, axis, reduction):
    labels = RNG.uniform(0.1, 1, shape)
    check_operation(
        lambda graph, x, labels: graph.soft_max_cross_entropy(x, labels, axis, reduction),
        lambda x, labels: cross_entropy(x, labels, axis, reduction),
        normal(*shape),
        labels,
    )
    graph = Graph()
    x, y = graph.placeholder(shape, np.float64), graph.placeholder(shape, np.float64)
    loss = graph.soft_max_cross_entropy(x, y, axis, reduction)
    weight = graph.constant(normal(*loss.shape))
    explicit = graph.soft_max_cross_entropy_gradient(weight, x, y, axis, reduction)
    derived = graph.gradients(graph.reduction_sum(loss * weight), [x])[x]
    found = graph.run({x: normal(*shape), y: labels}, [explicit, derived])
    assert_close(found[explicit], found[derived])


def test_cross_entropy_of_classes_and_of_certainty():
    x, classes = normal(5, 3), whole(3, 5)
    check_operation(
        lambda graph, x, y: graph.soft_max_cross_entropy(x, y, -1, "mean"),
        lambda x, y: cross_entropy(x, np.eye(3)[y], -1, "mean"),
        x,
        classes,
        unknown=False,
    )
    graph = Graph()
    source = graph.constant(np.array([[0.0, -np.inf]]))
    loss = graph.soft_max_cross_entropy(source, graph.constant(np.array([[1.0, 0.0]])))
    assert graph.run({}, [loss])[loss].tolist() == [0.0]


def test_cast_and_shape_queries():
    check_operation(lambda graph, x: graph.cast(x, np.float64), lambda x: x, normal(3, 4), dtypes=())
    check_operation(
        lambda graph, x: graph.cast(x, np.int32), lambda x: x.astype(np.int32), 10 * normal(3), gradient=False, dtypes=()
    )
    check_operation(lambda graph, x: graph.shape_of(x), lambda x: np.array(x.shape), normal(3, 4), gradient=False, dtypes=())
    check_operation(
        lambda graph, x: graph.dimension_size(x, -1), lambda x: np.array(x.shape[-1]), normal(3, 4), gradient=False, dtypes=()
    )
    graph = Graph()
    x = graph.placeholder([3], np.float32)
    double = graph.cast(x, np.float64)
    gradient = graph.gradients(graph.square(double), [x])[x]
    assert gradient.dtype == np.float32
    assert graph.run({x: [1.0, 2, 3]}, [gradient])[gradient].tolist() == [2, 4, 6]


def test_stochastic_gradient_descent():
    check_operation(
        lambda graph, v, g: graph.stochastic_gradient_descent(0.1, v, g),
        lambda v, g: v - 0.1 * g,
        normal(3, 4),
        normal(3, 4),
        gradient=False,
    )


@pytest.mark.parametrize("maximum", [False, True])
def test_adam(maximum):
    def expected(v, m, s, g, *top):
        m = 0.9 * m + 0.1 * g
        s = 0.99 * s + 0.01 * g * g
        used = np.maximum(top[0], s) if top else s
        v = v - 0.1 * np.sqrt(1 - 0.99**3) / (1 - 0.9**3) * m / (np.sqrt(used) + 1e-3)
        return [v, m, s, used] if top else [v, m, s]

    def build(graph, v, m, s, g, *top):
        return graph.adam(0.1, 0.9, 0.99, 1e-3, 0.9**3, 0.99**3, v, m, s, g, *top)

    arrays = [normal(3, 4), normal(3, 4), positive(3, 4), normal(3, 4)] + [positive(3, 4)] * maximum
    check_operation(build, expected, *arrays, gradient=False, dtypes=["float32", "float16"])


def test_every_public_operation_is_in_the_table_and_has_a_method():
    inner = {
        "minimum_share",
        "maximum_share",
        "filled_like",
        "sum_like",
        "broadcast_like",
        "reduction_spread",
        "reduction_product_gradient",
        "reduction_extreme_gradient",
        "reshape_to",
        "reshape_like",
        "slice_gradient",
        "concat_part",
        "tile_gradient",
        "scatter_like",
        "scatter_nd_like",
        "summed_product",
        "dropout_mask",
        "soft_max_cross_entropy_label_gradient",
    }
    Graph()  # fills the table
    assert {kind for kind in RULES if not hasattr(Graph, kind)} == inner
