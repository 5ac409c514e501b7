"""The CUDA engine on a GPU. Skips itself without one, or without torch built for it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import gatewise
from cuda_samples import OPERATIONS, TOLERANCE, Sample, difference, kernel_jobs, reference, sample
from gatewise import checking
from gatewise.engines import cuda
from gatewise.engines.cuda import driver, planner, warm

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda.unavailable() is not None or not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
SAMPLES = int(os.environ.get("GATEWISE_GPU_SAMPLES", "60"))


def to_gpu(value: np.ndarray) -> Any:
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.uint16).copy()).cuda().view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(value)).cuda()


def run(made: Sample, saved: dict[str, np.ndarray]) -> tuple[list[Any], list[Any]]:
    forward, gradients = OPERATIONS[made.operation]
    arguments = {name: to_gpu(value) for name, value in made.arguments.items()}
    extra = {name: to_gpu(value) for name, value in (made.gradients | saved).items()}
    precision = "highest" if made.dtype == "highest" else "default"
    with planner.wish(made.family, made.pick, made.starve), gatewise.use_precision(precision):
        return (
            forward(**arguments, descriptor=made.descriptor),
            gradients(**arguments, **extra, descriptor=made.descriptor),
        )


@pytest.fixture(scope="module")
def compiled() -> None:
    device = driver.device(0)
    jobs = [job for seed in range(SAMPLES) for job in kernel_jobs(sample(seed), device)]
    _, errors = warm.compile_all(jobs, device.architecture)
    assert not errors, errors[0]


@pytest.fixture
def _poisoned() -> Any:
    """Fresh memory holds NaN: a result that was not written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("compiled", "_poisoned")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_agrees_with_the_reference(seed: int) -> None:
    made = sample(seed)
    expected, expected_gradients, saved = reference(made)
    got, got_gradients = run(made, saved)
    again, gradients_again = run(made, saved)
    for name, found, wanted in (("forward", got, expected), ("gradient", got_gradients, expected_gradients)):
        for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
            worst = difference(a.double().cpu().numpy(), b)
            assert worst <= TOLERANCE[made.dtype], f"{name} result {place} differs by {worst:.2e}: {made.text}"
    for a, b in zip([*got, *got_gradients], [*again, *gradients_again], strict=True):
        assert torch.equal(a, b), made.text


def test_option_space() -> None:
    for case in checking.sample(40, seed=5):
        assert checking.check_case(case, "cuda") == [], str(case)


def plain_lstm(T: int = 6, N: int = 8, H: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(1)
    shapes = ((T, N, H), (4 * H, H), (4 * H, H), (4 * H,))
    return tuple(((torch.rand(shape, device="cuda") - 0.5) / H**0.5).bfloat16() for shape in shapes)


@pytest.mark.parametrize("family", ["block", "cluster", "grid", "steps"])
def test_in_a_cuda_graph(family: str) -> None:
    arguments = plain_lstm()
    with planner.wish(family):
        (expected,) = gatewise.lstm(*arguments)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (result,) = gatewise.lstm(*arguments)
    result.zero_()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


def test_on_the_callers_stream() -> None:
    arguments = plain_lstm()
    (expected,) = gatewise.lstm(*arguments)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        (result,) = gatewise.lstm(*arguments)
        torch.cuda.current_stream().synchronize()
    assert torch.equal(result, expected)


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_other_frameworks(name: str) -> None:
    module = pytest.importorskip(name)
    xp = module.numpy if name == "jax" else module
    if name == "jax" and not any(device.platform == "gpu" for device in module.devices()):
        pytest.skip("JAX has no GPU here")
    host = [tensor.float().cpu().numpy() for tensor in plain_lstm()]
    with gatewise.use_precision("highest"):
        (result,) = gatewise.lstm(*[xp.asarray(array) for array in host])
        (expected,) = gatewise.lstm(*[torch.from_numpy(array).cuda() for array in host])
    assert type(result).__module__.startswith(("cupy", "jax"))
    assert np.array_equal(np.asarray(result.get() if name == "cupy" else result), expected.cpu().numpy())


def test_a_nan_row_stays_alone() -> None:
    x, *rest = plain_lstm(N=9)
    (clean,) = gatewise.lstm(x, *rest)
    x[2, 4] = float("nan")
    (state,) = gatewise.lstm(x, *rest)
    others = [row for row in range(9) if row != 4]
    assert torch.equal(state[:, others], clean[:, others])
    assert torch.isnan(state[2:, 4]).all()


def test_arrays_on_two_devices_are_refused() -> None:
    x, R, *rest = plain_lstm()
    with pytest.raises(gatewise.UnsupportedError, match="one device"):
        gatewise.lstm(x, R.cpu(), *rest)


@pytest.mark.parametrize("family", ["block", "cluster", "grid"])
def test_many_launches_give_the_same_bits(family: str) -> None:
    launches = int(os.environ.get("GATEWISE_GPU_LAUNCHES", "500"))
    arguments = plain_lstm(T=4, N=16, H=128)
    with planner.wish(family):
        (expected,) = gatewise.lstm(*arguments)
        differing = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(launches):
            (state,) = gatewise.lstm(*arguments)
            differing += (state != expected).any()
    assert differing.item() == 0
