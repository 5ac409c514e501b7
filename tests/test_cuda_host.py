"""What the CUDA engine asks of the driver and of cuBLAS, without either: see cuda_mock."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import numpy as np
import pytest

import gatewise
from cuda_samples import OPERATIONS, Sample, gradient_arguments, sample

torch = pytest.importorskip("torch")
from cuda_mock import Kind, Library, gpu  # noqa: E402
from gatewise.engines import cuda, replay  # noqa: E402
from gatewise.engines.cuda import driver, kernels, planner, products, tape  # noqa: E402
from gatewise.problem import make_problem  # noqa: E402


def tensor(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(value))


def run(made: Sample, library: Library, kind: Kind, given: dict[str, Any]) -> tuple[list[Any], list[Any], int]:
    """Results of the forward and the gradient call, what was done for them, and how many arrays were made."""
    forward, gradients = OPERATIONS[made.operation]
    arguments = {name: given[name] for name in made.arguments}
    extra = {name: given[name] for name in made.gradients}
    precision = "highest" if made.dtype == "highest" else "default"
    library.calls, kind.allocated = [], []
    with planner.wish(made.family, made.pick, made.starve), gatewise.use_precision(precision):
        results = forward(**arguments, descriptor=made.descriptor)
        saved = gradient_arguments(made.operation, results)
        results += gradients(**arguments, **extra, **saved, descriptor=made.descriptor)
    return results, library.calls, len(kind.allocated)


@pytest.mark.parametrize("seed", range(60))
def test_a_call_done_again_is_the_call(seed: int) -> None:
    """Launch by launch and argument by argument: from the tape, and worked out anew."""
    made = sample(seed)
    given = {name: tensor(value) for name, value in (made.arguments | made.gradients).items()}
    with gpu() as (library, kind), pytest.MonkeyPatch.context() as patch:
        first, _, _ = run(made, library, kind, given)
        replayed, done, arrays = run(made, library, kind, given)
        patch.setattr(Kind, "layouts", lambda *_: None)
        anew, expected, _ = run(made, library, kind, given)
    assert done == expected != []
    assert [(a.shape, a.dtype) for a in replayed] == [(a.shape, a.dtype) for a in anew]
    assert arrays == len(first) + 2  # the results, and for each call one piece of scratch memory


def arguments(T: int = 4, N: int = 16, H: int = 256) -> tuple[Any, ...]:
    return tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in ((T, N, H), (4 * H, H), (4 * H, H), (4 * H,)))


def calls_of(library: Library) -> list[str]:
    names, library.calls = library.names(), []
    return names


@pytest.mark.parametrize("family", ["block", "cluster", "grid"])
def test_operands_are_emptied_before_the_kernel_in_every_call(family: str) -> None:
    marks = ["fill"] if family == "grid" else []
    with gpu() as (library, _), planner.wish(family):
        for _ in range(3):
            gatewise.lstm(*arguments(H=128))
            assert calls_of(library) == ["product", *marks, "pack", "run"]


def test_pointers_are_those_of_the_call() -> None:
    """A tape puts in every pointer anew: the rows of two calls differ exactly where arrays do."""
    with gpu() as (library, kind):
        kind.place = lambda value: value  # type: ignore[method-assign]
        first, second = arguments(), arguments()
        kept = [gatewise.lstm(*first), gatewise.lstm(*second), gatewise.lstm(*second)]
        assert len({results[0].data_ptr() for results in kept}) == 3
        rows = [call for call in library.calls if call[0] == "run"]
    state, bias = kernels.FIELDS.index("state"), kernels.FIELDS.index("bias")
    values = [row[-len(kernels.FIELDS) :] for row in rows]
    assert [row[state] for row in values] == [results[0].data_ptr() for results in kept]
    assert [row[bias] for row in values] == [each[3].data_ptr() for each in (first, second, second)]
    fixed = [k for k in range(len(kernels.FIELDS)) if values[0][k] == values[1][k] == values[2][k]]
    assert {"x", "bias", "recurrent_weight", "weights", "state"} >= {
        name for k, name in enumerate(kernels.FIELDS) if k not in fixed
    } - {"operand0"}


def test_a_pointer_knows_where_it_comes_from() -> None:
    pointer = tape.Pointer(3, 8) + 24
    assert (pointer, pointer.region) == (32, 3)


def test_another_layout_is_another_call() -> None:
    x, R, W, b = arguments()
    wide = torch.zeros(4, 16, 512, dtype=torch.bfloat16)[:, :, ::2]
    crooked = torch.zeros(x.numel() + 1, dtype=torch.bfloat16)[1:].view(x.shape)  # not where products can take it
    with gpu() as (library, _):
        for source, copies in ((x, []), (wide, ["copy"]), (x, []), (wide, ["copy"]), (crooked, ["copy"]), (x, [])):
            gatewise.lstm(source, R, W, b)
            assert [name for name in calls_of(library) if name == "copy"] == copies


def test_errors_are_the_same_after_a_good_call() -> None:
    x, R, W, b = arguments()
    with gpu():
        for _ in range(2):
            gatewise.lstm(x, R, W, b)
        with pytest.raises(gatewise.ShapeError, match="bias must be"):
            gatewise.lstm(x, R, W, b[:-1])
        with pytest.raises(gatewise.DTypeError, match="descriptor must be"):
            gatewise.lstm(x, R, W, b, descriptor=gatewise.GRUDescriptor())  # type: ignore[arg-type]
        with pytest.raises(gatewise.DTypeError, match="descriptor must be"):
            gatewise.lstm(x, R, W, b, descriptor=[])  # type: ignore[arg-type]
        with pytest.raises(gatewise.UnsupportedError, match="requires grad"):
            gatewise.lstm(x, R.clone().requires_grad_(), W, b)
        with pytest.raises(gatewise.UnsupportedError, match="one device"):
            gatewise.lstm(x, np.zeros((1024, 256), np.float32), W, b)


def test_what_tells_layouts_apart() -> None:
    x, _, W, b = arguments()
    with gpu() as (_, kind):

        def layouts(**given: Any) -> Any:
            return kind.layouts({"source": x, "input_weight": W, "bias": None, "descriptor": [], "lengths": None} | given)

        plain = layouts()
        assert plain is not None
        hash(plain)
        same = {"copy": layouts(source=x.clone()), "offset": layouts(source=torch.cat((x, x))[4:])}
        same["parameter"] = layouts(source=torch.nn.Parameter(x, requires_grad=False))
        with torch.no_grad():
            same["under no_grad"] = layouts(source=torch.nn.Parameter(x))
        assert all(each == plain for each in same.values()), same
        other = {
            "shape": layouts(source=x[1:]),
            "strides": layouts(source=x.transpose(0, 1).contiguous().transpose(0, 1)),
            "dtype": layouts(source=x.half()),
            "device": layouts(source=torch.empty(x.shape, dtype=x.dtype, device="meta")),
            "more": layouts(bias=b),
            "another argument": layouts(bias=b, input_weight=None),
        }
        assert all(each is not None and each != plain for each in other.values()), other
        assert len(set(other.values())) == len(other)
        closer = {
            "requires grad": layouts(source=torch.nn.Parameter(x)),
            "negative": layouts(source=torch._neg_view(x)),
            "sparse": layouts(input_weight=W.float().to_sparse()),
            "subclass": layouts(source=x.as_subclass(type("Odd", (torch.Tensor,), {}))),
            "another library": layouts(source=np.zeros(3)),
        }
        assert all(each is None for each in closer.values()), closer


@pytest.mark.parametrize(("T", "N"), [(0, 3), (4, 0), (0, 0)])
def test_empty_calls_launch_nothing(T: int, N: int) -> None:
    with gpu() as (library, _):
        for _ in range(2):
            x, R, W, b = arguments(T, N, 64)
            state, cell, z = gatewise.lstm(x, R, W, b, descriptor=gatewise.LSTMDescriptor(training=True))
            assert state.shape == cell.shape == (T, N, 64)
            assert state.stride() == torch.empty(T, N, 64).stride()
            assert not library.calls
            found = gatewise.lstm_gradients(x, R, state, z, cell, input_weight=W, bias=b)
            assert [each.shape for each in found] == [each.shape for each in (x, R, W, b)]
            assert calls_of(library) == ["clear"] * 3  # of the weights and the bias; the source's gradient is empty


def test_threads_share_a_tape() -> None:
    made = arguments(2, 3, 32)
    results: list[Any] = []
    with gpu() as (library, _):
        gatewise.lstm(*made)
        calls_of(library)
        threads = [threading.Thread(target=lambda: results.append(gatewise.lstm(*made))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({result[0].data_ptr() for result in results}) == 4
    assert sorted(set(library.names())) == ["pack", "product", "run"]


def test_kinds_that_tell_no_layouts_are_checked_every_time() -> None:
    assert Kind.replays
    with gpu() as (library, kind), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kind, "layouts", lambda *_: None)
        for _ in range(3):
            kind.allocated = []
            gatewise.lstm(*arguments())
            assert calls_of(library)[-2:] == ["pack", "run"]
        assert len(kind.allocated) == 2  # the result, and scratch memory in one piece


def test_launches_for_very_many_steps_are_not_kept() -> None:
    made = arguments(T=2100, N=2, H=16)
    with gpu() as (library, _), planner.wish("steps"):
        for _ in range(2):
            gatewise.lstm(*made)
            assert calls_of(library) == ["product", "forward_start", *["product", "forward_step0"] * 2100]
        assert not replay._known
        gatewise.lstm(*arguments(T=100, N=2, H=16))
        assert len(replay._known) == 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("cuLaunchKernelEx", r"^CUDA: launching a kernel: not today \(error 719\)$"),
        ("cublasLtMatmul", r"^cuBLAS: product of 64x256 and 256x1024 failed \(status 719\)$"),
    ],
)
def test_an_error_of_the_driver_is_told_in_every_call(function: str, message: str) -> None:
    made = arguments()
    with gpu() as (library, _):
        for code in (719, 0, 719, 0):  # worked out, and from the tape
            library.fail = function, code
            if code:
                with pytest.raises(driver.CudaError, match=message):
                    gatewise.lstm(*made)
            else:
                gatewise.lstm(*made)


def test_products_without_a_library_are_launches() -> None:
    made = arguments()
    with gpu() as (library, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_cublas", lambda: None)
        for _ in range(2):
            gatewise.lstm(*made)
            assert [name for name in calls_of(library) if name != "fill"] == ["multiply", "pack", "run"]
        parts = products.plain(0, products.Product(65535 * 64 + 1, 2, 3, 3, False, 2, False, 2, "float32", "float32", True),
                               tape.Pointer(1), tape.Pointer(2), tape.Pointer(3))  # fmt: skip
    (_, first), (_, second) = parts
    assert first[3][0] + second[3][0] == 65535 * 64 + 1
    assert (second[0][0], getattr(second[0][0], "region", None)) == (first[3][0] * 3 * 4, 1)
    assert (second[2][0], getattr(second[2][0], "region", None)) == (first[3][0] * 2 * 4, 3)


def test_the_threads_gpu_is_left_as_it_was() -> None:
    made, me = arguments(), threading.get_ident()
    with gpu() as (library, _):
        for _ in range(2):
            library.contexts[me] = 51
            gatewise.lstm(*made)
            assert library.contexts[me] == 51


def test_a_problem_can_be_run_twice() -> None:
    x, R, W, b = arguments()
    given = dict.fromkeys(inspect.signature(gatewise.lstm).parameters) | {"source": x, "recurrent_weight": R}
    given |= {"input_weight": W, "bias": b}
    with gpu() as (library, kind):
        problem, _ = make_problem("lstm", gatewise.LSTMDescriptor, None, given, gradient=False)
        done = []
        for _ in range(2):
            library.calls, kind.allocated = [], []
            cuda.forward(problem)
            done.append(library.calls)
        assert done[0] == done[1] != []
        assert problem.source.pointer == x.data_ptr()
