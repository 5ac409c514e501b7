"""Graphs fed with arrays on a GPU: every test of the ordinary operations again, with torch's and CuPy's arrays there, and a
whole model held to NumPy. Skips itself without a GPU; CuPy's part without CuPy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import gatewise
import graph_helper
import test_graph_operations
import test_graph_shaping
from gatewise import Graph
from gatewise.arrays import bfloat16
from gatewise.engines import cuda
from graph_whole import check_whole
from test_graph_operations import *  # noqa: F403
from test_graph_shaping import *  # noqa: F403

NO_GPU = cuda.unavailable() or (None if torch.cuda.is_available() else "this torch is not built for the GPU")
if NO_GPU is not None:
    pytest.skip(NO_GPU, allow_module_level=True)
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # frameworks warn about the machine

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import cupy
except ImportError:
    cupy = None

KINDS: dict[str, Any] = {"torch": lambda array: graph_helper.to_torch(array).cuda()}
TYPES: dict[str, type] = {"torch": torch.Tensor}
if cupy is not None:
    KINDS["cupy"] = lambda array: cupy.asarray(np.array(array))
    TYPES["cupy"] = cupy.ndarray


NO_CUPY = pytest.mark.skipif(cupy is None, reason="CuPy is not installed")


@pytest.fixture(autouse=True, params=["torch", pytest.param("cupy", marks=NO_CUPY)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One kind of array at a time; the imported tests see no other."""
    monkeypatch.setattr(graph_helper, "ORDINARY_KINDS", {request.param: KINDS[request.param]})
    monkeypatch.setattr(graph_helper, "TYPES", TYPES)
    monkeypatch.setattr(graph_helper, "SHARE", 1)  # a GPU's functions are good for more units in the last place
    monkeypatch.setattr(graph_helper, "LACKING", {"cupy": ("bfloat16",)})
    for module in (test_graph_operations, test_graph_shaping):
        module.RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
    return str(request.param)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_whole_model(dtype: type, kind: str) -> None:
    check_whole(dtype, KINDS[kind], TYPES[kind])


def test_variables_move_between_places(kind: str) -> None:
    graph = Graph()
    x, weight = graph.placeholder([2]), graph.variable([1.0, 2.0])
    result, step = x * weight + graph.constant([1.0, 1.0]), graph.assign(weight, weight * 2.0)
    convert = KINDS[kind]
    found = graph.run({x: convert(np.ones(2, np.float32))}, [result], [step])[result]
    assert isinstance(found, TYPES[kind])
    assert "cuda" in str(found.device).lower()
    assert next(iter(graph.variable_values().values())).tolist() == [2, 4]
    alone = graph.run({}, [weight])[weight]
    assert isinstance(alone, TYPES[kind]), "without feeds a run is where the variables are"
    assert isinstance(graph.run({x: np.ones(2, np.float32)}, [result], [step])[result], np.ndarray)
    assert isinstance(graph.run({}, [weight])[weight], np.ndarray)
    again = graph.run({x: convert(np.ones(2, np.float32))}, [result])[result]
    assert again.tolist() == [5, 9]


def test_an_index_out_of_range_is_found(kind: str) -> None:
    graph = Graph()
    table, index = graph.placeholder([3, 2]), graph.placeholder([4], np.int64)
    taken = graph.gather(table, index)
    feeds = {table: KINDS[kind](np.zeros((3, 2), np.float32)), index: KINDS[kind](np.array([0, 1, 3, 2]))}
    with pytest.raises(gatewise.ArgumentError, match="index 3 is out of range"):
        graph.run(feeds, [taken])


def test_executables_and_profiles_run_there(kind: str, tmp_path: Any) -> None:
    graph = Graph()
    x = graph.placeholder([None, 8])
    y = graph.tanh(x @ graph.variable(np.eye(8, dtype=np.float32)) + 1.0)
    given = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    graph.compile({x: gatewise.ShapedType((None, 8))}, [y]).save(tmp_path / "model")
    (found,) = gatewise.Executable.load(tmp_path / "model").run([KINDS[kind](given)])
    assert isinstance(found, TYPES[kind])
    graph_helper.assert_close(found, np.tanh(given.astype(np.float64) + 1))
    assert graph.profile({x: KINDS[kind](given)}, [y]).seconds > 0


def test_bfloat16_where_there_is_one(kind: str) -> None:
    if kind == "cupy":
        pytest.skip("CuPy has no bfloat16")
    graph = Graph()
    x = graph.placeholder([3], "bfloat16")
    y = graph.exponent(x) * graph.constant([1.0, 2.0, 3.0], "bfloat16")
    values = np.array([0.0, 0.5, 1.0]).astype(bfloat16())
    on_gpu = graph.run({x: KINDS[kind](values)}, [y])[y]
    here = graph.run({x: values}, [y])[y]
    np.testing.assert_array_equal(graph_helper.to_numpy(on_gpu).astype(np.float32), here.astype(np.float32))
