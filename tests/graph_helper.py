"""One helper holds an operation to everything: shape, dtype, value on every kind of array, gradient by differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gatewise import Graph, Tensor
from gatewise.arrays import bfloat16
from gatewise.checking import tolerance
from gatewise.graph.place import dtype_of, to_numpy
from gatewise.graph.shapes import compatible

try:
    import array_api_strict
except ImportError:  # a machine for test_graph_gpu.py alone
    array_api_strict = None

STEP = 1e-6  # of the differences, in float64
SHARE = 4  # what part of the tolerance an ordinary operation gets in float32 and float64: errors pile up over no steps


def assert_close(found: Any, wanted: Any, what: str = "", T: int = 0) -> None:
    """Held to the one tolerance, in the dtype of `found`, relative to the largest value or 1."""
    found, wanted = to_numpy(found), np.asarray(wanted)
    dtype = "bfloat16" if found.dtype == bfloat16() else found.dtype.name
    limit = tolerance(dtype, T) / (SHARE if T == 0 and found.dtype.itemsize > 2 else 1)
    wide = np.asarray(wanted, np.float64)
    scale = max(1.0, float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))))
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=0, atol=limit * scale, err_msg=what)


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == bfloat16():
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


KINDS: dict[str, Callable[[np.ndarray], Any]] = {"numpy": lambda array: array, "torch": to_torch}
TYPES: dict[str, type] = {"numpy": np.ndarray, "torch": torch.Tensor}
ORDINARY_KINDS = dict(KINDS)  # of arrays that everything but recurrent layers takes
if array_api_strict is not None:
    KINDS["array_api_strict"] = lambda array: array_api_strict.asarray(np.array(array))
    ON_A_DEVICE = array_api_strict.Device("device1")  # a device that refuses whatever is not on it
    ORDINARY_KINDS |= KINDS
    ORDINARY_KINDS["on_a_device"] = lambda array: array_api_strict.asarray(np.array(array), device=ON_A_DEVICE)
    TYPES |= dict.fromkeys(("array_api_strict", "on_a_device"), type(array_api_strict.asarray(0.0)))
LACKING = dict.fromkeys(("array_api_strict", "on_a_device"), ("float16", "bfloat16"))  # the standard has neither

Build = Callable[..., Any]


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def is_floating(array: np.ndarray) -> bool:
    return array.dtype == np.float64


def check_operation(
    build: Build,
    expected: Callable[..., Any],
    *arrays: Any,
    gradient: bool = True,
    dtypes: Sequence[str] = ("float32", "float16", "bfloat16"),
    unknown: bool = True,
) -> None:
    """`build(graph, *tensors)` against `expected(*arrays)`, both giving one result or a list of them.

    Floating arrays are given in float64, in which gradients are checked too; values also in narrower dtypes.
    With `unknown`, again with placeholders that know nothing but their ranks.
    """
    arrays = tuple(np.asarray(array) for array in arrays)
    with np.errstate(all="ignore"):
        wanted = [np.asarray(each) for each in as_list(expected(*arrays))]
    rng = np.random.default_rng(7)
    weights = [rng.standard_normal(each.shape) for each in wanted]
    slopes = _differences(expected, arrays, weights) if gradient else {}
    for kind, hidden in itertools.product(ORDINARY_KINDS, (False, True) if unknown else (False,)):
        _check_in_float64(kind, hidden, build, arrays, wanted, weights, slopes)
    for kind, dtype in itertools.product(ORDINARY_KINDS, dtypes):
        if dtype in LACKING.get(kind, ()):
            continue
        _check_narrow(kind, dtype, build, expected, arrays)


def _placeholders(graph: Graph, arrays: Sequence[np.ndarray], hidden: bool) -> list[Tensor]:
    return [graph.placeholder([None if hidden else size for size in array.shape], array.dtype) for array in arrays]


def _run(kind: str, graph: Graph, tensors: Sequence[Tensor], arrays: Sequence[np.ndarray], targets: list[Tensor]) -> list[Any]:
    found = graph.run({tensor: ORDINARY_KINDS[kind](array) for tensor, array in zip(tensors, arrays, strict=True)}, targets)
    results = []
    for target in targets:
        result = found[target]
        assert isinstance(result, TYPES[kind]), f"{type(result)} from {kind} feeds"
        assert dtype_of(result) == target.dtype
        if kind == "on_a_device":
            assert result.device == ON_A_DEVICE
            result = result.to_device(array_api_strict.Device("CPU_DEVICE"))
        result = to_numpy(result)
        assert len(result.shape) == len(target.shape)
        assert all(size in (None, real) for size, real in zip(target.shape, result.shape, strict=True))
        results.append(result)
    return results


def _check_in_float64(kind, hidden, build, arrays, wanted, weights, slopes) -> None:
    graph = Graph()
    tensors = _placeholders(graph, arrays, hidden)
    results = as_list(build(graph, *tensors))
    assert len(results) == len(wanted)
    if not hidden:
        assert [result.shape for result in results] == [each.shape for each in wanted], "inferred shape"
    for mine, theirs in zip(_run(kind, graph, tensors, arrays, results), wanted, strict=True):
        assert_close(mine, theirs) if mine.dtype.kind == "f" else np.testing.assert_array_equal(mine, theirs)
        assert (mine.dtype.kind == "f") == (theirs.dtype.kind == "f")
    if not slopes:
        return
    loss = None
    for result, weight in zip(results, weights, strict=True):
        part = graph.reduction_sum(result * graph.constant(weight))
        loss = part if loss is None else loss + part
    sources = [tensors[place] for place in slopes]
    gradients = graph.gradients(loss, sources)
    assert all(compatible(gradients[source].shape, source.shape) for source in sources)
    computed = _run(kind, graph, tensors, arrays, [gradients[source] for source in sources])
    for mine, (place, slope) in zip(computed, slopes.items(), strict=True):
        np.testing.assert_allclose(mine, slope, rtol=1e-6, atol=1e-7, err_msg=f"gradient of argument {place} on {kind}")


def _check_narrow(kind: str, dtype: str, build: Build, expected: Any, arrays: Sequence[np.ndarray]) -> None:
    narrow = [array.astype(bfloat16() if dtype == "bfloat16" else dtype) if is_floating(array) else array for array in arrays]
    graph = Graph()
    tensors = _placeholders(graph, narrow, False)
    results = as_list(build(graph, *tensors))
    with np.errstate(all="ignore"):
        wanted = as_list(
            expected(
                *[each.astype(np.float64) if is_floating(array) else each for each, array in zip(narrow, arrays, strict=True)]
            )
        )
    for tensor, mine, theirs in zip(results, _run(kind, graph, tensors, narrow, results), wanted, strict=True):
        theirs = np.asarray(theirs)
        if theirs.dtype == np.float64:
            assert tensor.dtype.name == dtype
            assert_close(mine, theirs)


def _differences(expected: Any, arrays: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """The gradient of the weighted sum of the results, for every floating argument."""

    def loss(*changed: np.ndarray) -> float:
        return sum(float(np.sum(each * weight)) for each, weight in zip(as_list(expected(*changed)), weights, strict=True))

    slopes = {}
    for place, array in enumerate(arrays):
        if not is_floating(array):
            continue
        slope = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            moved = []
            for sign in (1, -1):
                changed = array.copy()
                changed[index] += sign * STEP
                moved.append(loss(*arrays[:place], changed, *arrays[place + 1 :]))
            slope[index] = (moved[0] - moved[1]) / (2 * STEP)
        slopes[place] = slope
    return slopes
