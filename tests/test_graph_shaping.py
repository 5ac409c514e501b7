"""Operations that move elements: shapes, pieces, indices. Values and gradients as in test_graph_operations."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise import Graph
from graph_helper import check_operation

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def whole(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


def test_reshape():
    check_operation(lambda graph, x: graph.reshape(x, [2, -1]), lambda x: x.reshape(2, -1), normal(3, 4))
    check_operation(lambda graph, x: graph.reshape(x, []), lambda x: x.reshape(()), normal(1, 1))


def test_reshape_to_a_shape_known_only_at_the_run():
    graph = Graph()
    x, y = graph.placeholder([None, None], np.float64), graph.placeholder([None, None, None], np.float64)
    shaped = graph.reshape(x, graph.shape_of(y))
    assert shaped.shape == (None, None, None)
    gradient = graph.gradients(graph.reduction_sum(shaped * y), [x])[x]
    a, b = normal(3, 4), normal(2, 2, 3)
    found = graph.run({x: a, y: b}, [shaped, gradient])
    np.testing.assert_array_equal(found[shaped], a.reshape(2, 2, 3))
    np.testing.assert_array_equal(found[gradient], b.reshape(3, 4))


def test_transpose_squeeze_expand_broadcast_reverse():
    check_operation(lambda graph, x: graph.transpose(x), np.transpose, normal(2, 3, 4))
    check_operation(lambda graph, x: graph.transpose(x, [1, 2, 0]), lambda x: x.transpose(1, 2, 0), normal(2, 3, 4))
    check_operation(lambda graph, x: graph.squeeze(x, [0, -1]), lambda x: x.squeeze((0, -1)), normal(1, 3, 1))
    check_operation(lambda graph, x: graph.squeeze(x), np.squeeze, normal(1, 3, 1), unknown=False)
    check_operation(lambda graph, x: graph.expand_dims(x, [0, 2]), lambda x: np.expand_dims(x, (0, 2)), normal(3, 4))
    check_operation(lambda graph, x: graph.broadcast(x, [2, 3, 4]), lambda x: np.broadcast_to(x, (2, 3, 4)), normal(3, 1))
    check_operation(lambda graph, x: graph.reverse(x, 1), lambda x: x[:, ::-1], normal(3, 4))
    check_operation(lambda graph, x: graph.reverse(x), lambda x: x[::-1, ::-1], normal(3, 4))


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1],
        np.s_[-1],
        np.s_[:, 1:3],
        np.s_[::2, ::-1],
        np.s_[-3:-1, 3:0:-2],
        np.s_[..., -1],
        np.s_[1:, None, 2],
        np.s_[5:2],
        np.s_[-100:100, 100:],
        np.s_[...],
    ],
    ids=str,
)
def test_slice(key):
    check_operation(lambda graph, x: x[key], lambda x: x[key], normal(5, 4))


def test_slice_method():
    check_operation(lambda graph, x: graph.slice(x, [1, 0], [5, 4], [2, 1]), lambda x: x[1:5:2, 0:4], normal(6, 5))


def test_concat_split_stack_pad_tile():
    check_operation(
        lambda graph, a, b, c: graph.concat([a, b, c], -1),
        lambda a, b, c: np.concatenate([a, b, c], -1),
        normal(2, 3),
        normal(2, 1),
        normal(2, 0),
    )
    check_operation(lambda graph, x: graph.split(x, 3, 1), lambda x: np.split(x, 3, 1), normal(2, 6), unknown=False)
    check_operation(lambda graph, x: graph.split(x, [1, 0, 4], 0), lambda x: [x[:1], x[1:1], x[1:]], normal(5, 2))
    check_operation(lambda graph, a, b: graph.stack([a, b], 1), lambda a, b: np.stack([a, b], 1), normal(2, 3), normal(2, 3))
    check_operation(
        lambda graph, x: graph.pad(x, [1, 0], [2, 3], 0.5),
        lambda x: np.pad(x, ((1, 2), (0, 3)), constant_values=0.5),
        normal(2, 3),
    )
    check_operation(lambda graph, x: graph.tile(x, [2, 3]), lambda x: np.tile(x, (2, 3)), normal(2, 3))


def test_one_part_of_a_split_is_enough():
    graph = Graph()
    x = graph.placeholder([6], np.float64)
    _, middle, _ = graph.split(x, 3, 0)
    gradient = graph.gradients(middle, [x])[x]
    assert graph.run({x: np.arange(6.0)}, [gradient])[gradient].tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("shape", "indices", "axis", "batch"),
    [
        ((5, 3), (4,), 0, 0),
        ((5, 3), (2, 3), 0, 0),
        ((2, 5, 3), (4,), 1, 0),
        ((5, 3), (), 0, 0),
        ((2, 5, 3), (2, 4), 1, 1),
        ((2, 3, 5, 2), (2, 4), 2, 1),
        ((2, 3, 5), (2, 3, 4, 2), 2, 2),
        ((5, 3), (0,), 0, 0),
        ((2, 5), (2, 7), -1, 1),
    ],
    ids=str,
)
def test_gather(shape, indices, axis, batch):
    def expected(x, index):
        place = axis % x.ndim
        if batch == 0:
            return np.take(x, index, place)
        result = np.empty(x.shape[:place] + index.shape[batch:] + x.shape[place + 1 :])
        for each in np.ndindex(x.shape[:batch]):
            result[each] = np.take(x[each], index[each], place - batch)
        return result

    check_operation(
        lambda graph, x, index: graph.gather(x, index, axis, batch), expected, normal(*shape), whole(shape[axis], *indices)
    )


@pytest.mark.parametrize(
    ("shape", "indices", "batch"),
    [((4, 5, 3), (6, 2), 0), ((4, 5), (2, 3, 2), 0), ((2, 4, 5), (2, 3, 1), 1), ((4, 5), (3, 1), 0), ((4, 5), (0, 2), 0)],
    ids=str,
)
def test_gather_nd(shape, indices, batch):
    def expected(x, index):
        result = np.empty(index.shape[:-1] + x.shape[batch + index.shape[-1] :])
        for each in np.ndindex(index.shape[:-1]):
            result[each] = x[each[:batch]][tuple(index[each])]
        return result

    index = np.stack([whole(size, *indices[:-1]) for size in shape[batch : batch + indices[-1]]], -1)
    # the size of the indices' last axis has to be known
    check_operation(lambda graph, x, i: graph.gather_nd(x, i, batch), expected, normal(*shape), index, unknown=False)


@pytest.mark.parametrize("rows", [3, 40])
def test_scatter_adds_up(rows):
    def expected(updates, index):
        result = np.zeros((2, rows))
        for column, place in enumerate(index):
            result[:, place] += updates[:, column]
        return result

    check_operation(
        lambda graph, u, i: graph.scatter(u, i, rows, axis=1), expected, normal(2, 17), whole(rows, 17), dtypes=["float32"]
    )


def test_one_hot():
    for axis in (-1, 0, 1):
        check_operation(
            lambda graph, i, axis=axis: graph.one_hot(i, 4, axis, np.float64),
            lambda i, axis=axis: np.moveaxis((i[..., None] == np.arange(4)).astype(float), -1, axis),
            np.array([[0, 3, 5], [1, -1, 2]]),
            gradient=False,
            dtypes=(),
        )
