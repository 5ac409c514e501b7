"""The CUDA engine on a GPU. Skips itself without one, or without torch built for it.

GATEWISE_GPU_SAMPLES says how many sampled calls are compared with the reference (60), GATEWISE_GPU_LAUNCHES how often a call
is repeated to see the same bits (500).
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np
import pytest

import gatewise
from cuda_samples import (
    OPERATIONS,
    TOLERANCE,
    Sample,
    difference,
    gradient_arguments,
    kernel_jobs,
    reference,
    sample,
    sensitivity,
)
from gatewise import checking
from gatewise.benchmark.cuda import descriptor_of
from gatewise.cells import LSTM
from gatewise.engines import cuda
from gatewise.engines.cuda import driver, planner, warm

torch = pytest.importorskip("torch", reason="the GPU tests make their arrays with torch")
NO_GPU = cuda.unavailable() or (None if torch.cuda.is_available() else "this torch is not built for the GPU")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=str(NO_GPU))]
SAMPLES = int(os.environ.get("GATEWISE_GPU_SAMPLES", "60"))
LAUNCHES = int(os.environ.get("GATEWISE_GPU_LAUNCHES", "500"))
_worst: dict[str, float] = {}  # difference by dtype, so far


def tell(request: pytest.FixtureRequest, text: str) -> None:
    """A line of progress that is seen while the tests run."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{text}", flush=True)


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
def compiled(request: pytest.FixtureRequest) -> None:
    device = driver.device(0)
    jobs = [job for seed in range(SAMPLES) for job in kernel_jobs(sample(seed), device)]
    start = time.perf_counter()
    count, errors = warm.compile_all(jobs, device.architecture)
    tell(
        request, f"{count} kernels of {SAMPLES} samples compiled in {time.perf_counter() - start:.0f} s, {len(errors)} refused"
    )
    assert not errors, errors[0]


@pytest.fixture
def _poisoned() -> Any:
    """Fresh memory holds NaN: a result that was not written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("compiled", "_poisoned")
@pytest.mark.timeout(60, func_only=True)  # compiling all samples ahead may take longer
@pytest.mark.parametrize("seed", range(SAMPLES))
def test_agrees_with_the_reference(seed: int, request: pytest.FixtureRequest) -> None:
    made = sample(seed)
    expected, expected_gradients, saved = reference(made)
    got, got_gradients = run(made, saved)
    again, gradients_again = run(made, saved)
    wanted = [*expected, *expected_gradients]
    found = [difference(a.double().cpu().numpy(), b) for a, b in zip([*got, *got_gradients], wanted, strict=True)]
    limit = TOLERANCE[made.dtype]
    if max(found) <= limit:
        _worst[made.dtype] = max(*found, _worst.get(made.dtype, 0.0))
    if (seed + 1) % 50 == 0 or seed + 1 == SAMPLES:
        largest = ", ".join(f"{dtype} {worst:.1e}" for dtype, worst in sorted(_worst.items()))
        tell(request, f"{seed + 1} of {SAMPLES} samples; largest differences: {largest}")
    for a, b in zip([*got, *got_gradients], [*again, *gradients_again], strict=True):
        assert torch.equal(a, b), made.text
    if max(found) > limit:  # no agreement; the question is whether there is a result to agree on
        moved = sensitivity(made, wanted)
        assert all(worst <= max(limit, 4 * move) for worst, move in zip(found, moved, strict=True)), f"{found}: {made.text}"
        pytest.skip(f"the rounding of its arguments alone moves the reference by {max(moved):.1e}: {made.text}")


def test_option_space() -> None:
    for case in checking.sample(40, seed=5):
        assert checking.check_case(case, "cuda") == [], str(case)


def plain_lstm(T: int = 6, N: int = 8, H: int = 64) -> tuple[Any, ...]:
    torch.manual_seed(1)
    shapes = ((T, N, H), (4 * H, H), (4 * H, H), (4 * H,))
    return tuple(((torch.rand(shape, device="cuda") - 0.5) / H**0.5).bfloat16() for shape in shapes)


@pytest.mark.parametrize("family", ["block", "cluster", "grid", "relay", "wide", "steps"])
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


def test_threads_with_streams_of_their_own() -> None:
    """One tape in many threads at once, each with its own stream, cuBLAS handle and arrays."""
    calls = [training_call(6, 9, 96, seed=seed) for seed in range(4)]
    expected = [train(*each) for each in calls]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                found = train(*calls[number])
                if not all(torch.equal(a, b) for a, b in zip(found, expected[number], strict=True)):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_gpu_stays_the_callers() -> None:
    arguments = plain_lstm()
    there = [each.to("cuda:1") for each in arguments]
    (expected,) = gatewise.lstm(*arguments)
    for _ in range(2):
        (result,) = gatewise.lstm(*there)
        assert torch.cuda.current_device() == 0
        assert torch.equal(result.cpu(), expected.cpu())


def test_parameters_without_gradients() -> None:
    arguments = plain_lstm()
    (expected,) = gatewise.lstm(*arguments)
    parameters = [torch.nn.Parameter(each) for each in arguments]
    with torch.no_grad():
        for _ in range(2):
            (result,) = gatewise.lstm(*parameters)
            assert torch.equal(result, expected)
            assert not result.requires_grad


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


@pytest.mark.parametrize(
    ("family", "N", "H"),
    [("wide", 256, 1024), ("wide", 64, 2048), ("wide", 100, 700), ("relay", 64, 1024), ("relay", 128, 512), ("relay", 52, 700)],
)
@pytest.mark.parametrize("operation", ["lstm", "gru"])
def test_large_kernels_agree_with_products_step_by_step(operation: str, family: str, N: int, H: int) -> None:
    arguments, incoming, descriptor = training_call(6, N, H, operation)
    if operation == "gru":
        descriptor = gatewise.GRUDescriptor(training=True, reset_after=True)
    arguments["recurrent_weight"] *= 4
    arguments["init_state"] *= H**0.5
    forward, gradients = OPERATIONS[operation]
    with planner.wish("steps"):
        results = forward(**arguments, descriptor=descriptor)
        extra = incoming | gradient_arguments(operation, results)
        expected = [*results, *gradients(**arguments, **extra, descriptor=descriptor)]

    def call() -> list[Any]:
        with planner.wish(family):
            results = forward(**arguments, descriptor=descriptor)
            return [*results, *gradients(**arguments, **extra, descriptor=descriptor)]

    first = call()
    for found, steps in zip(first, expected, strict=True):
        assert difference(found.float().cpu().numpy(), steps.double().cpu().numpy()) < TOLERANCE["bfloat16"]
    for _ in range(LAUNCHES // 50):  # by as many blocks as there can be
        assert all(torch.equal(*pair) for pair in zip(call(), first, strict=True))


@pytest.mark.parametrize("family", ["block", "cluster", "grid", "relay", "wide"])
@pytest.mark.parametrize("mode", ["forward", "training"])
def test_many_launches_give_the_same_bits(family: str, mode: str) -> None:
    arguments, made = plain_lstm(T=4, N=16, H=128), training_call(4, 16, 128)
    with planner.wish(family):
        call = (lambda: gatewise.lstm(*arguments)) if mode == "forward" else (lambda: train(*made))
        expected = call()
        differing = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(LAUNCHES):
            for result, before in zip(call(), expected, strict=True):
                differing += (result != before).any()
    assert differing.item() == 0


def training_call(T: int, N: int, H: int, operation: str = "lstm", seed: int = 1) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Arguments, incoming gradients and descriptor of a call with initial values."""
    torch.manual_seed(seed)
    G = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}[operation]
    kinds = {
        "lstm": gatewise.LSTMDescriptor,
        "gru": gatewise.GRUDescriptor,
        "single_gate_rnn": gatewise.SingleGateRNNDescriptor,
    }

    def make(*shape: int) -> Any:
        return ((torch.rand(shape, device="cuda") - 0.5) / max(H, 1) ** 0.5).bfloat16()

    arguments = {
        "source": make(T, N, 8),
        "recurrent_weight": make(G * H, H),
        "input_weight": make(G * H, 8),
        "bias": make(G * H),
        "init_state": make(N, H),
    }
    if operation == "lstm":
        arguments["init_cell"] = make(N, H)
    return arguments, {"source_gradient": make(T, N, H), "state_gradient": make(N, H)}, kinds[operation](training=True)


def train(arguments: dict[str, Any], extra: dict[str, Any], descriptor: Any, operation: str = "lstm") -> list[Any]:
    forward, gradients = OPERATIONS[operation]
    results = forward(**arguments, descriptor=descriptor)
    saved = gradient_arguments(operation, results)
    return [*results, *gradients(**arguments, **extra, **saved, descriptor=descriptor)]


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize(("T", "N"), [(0, 3), (4, 0), (0, 0)])
def test_empty_calls(operation: str, T: int, N: int) -> None:
    arguments, extra, descriptor = training_call(T, N, 24, operation)
    for _ in range(2):  # checked and worked out; then from its tape
        found = train(arguments, extra, descriptor, operation)
        gradients = found[-len(arguments) :]
        assert found[0].shape == (T, N, 24)
        assert sorted(each.shape for each in gradients) == sorted(each.shape for each in arguments.values())
        assert all((each == 0).all().item() for each in gradients)


@pytest.mark.parametrize("T", [1, 2])
def test_few_steps_in_several_passes(T: int) -> None:
    """A block with more rows than it takes in one pass reads ahead, from the first product on."""
    arguments, extra, descriptor = training_call(T, 256, 1024)
    with planner.wish("grid"):
        plan = planner.choose(LSTM, True, 256, 1024, 1, "bfloat16", False, driver.device(0), planner.current_wish())
        assert plan.tiling is not None
        if plan.tiling.passes == 1:
            pytest.skip("this GPU needs one pass only")
        found = train(arguments, extra, descriptor)
    with planner.wish("steps"):
        expected = train(arguments, extra, descriptor)
    for a, b in zip(found, expected, strict=True):
        assert difference(a.double().cpu().numpy(), b.double().cpu().numpy()) <= TOLERANCE["bfloat16"]


def test_a_call_done_again_on_other_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [training_call(5, 9, 96, seed=seed) for seed in range(3)]
    found = [train(*each) for each in calls]
    monkeypatch.setattr("gatewise.device_arrays._TorchCuda.layouts", lambda *_: None)
    for each, results in zip(calls, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results, train(*each), strict=True))


@pytest.mark.parametrize("family", ["block", "cluster", "grid", "relay", "wide", "steps"])
@pytest.mark.parametrize("own_stream", [False, True])
def test_the_same_memory_with_other_values(family: str, own_stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third call on, everything lies where it lay: a graph of the engine's own runs."""
    (x, R, W, b), values = plain_lstm(), []
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    with planner.wish(family), torch.cuda.stream(stream):
        for seed in range(6):
            torch.manual_seed(seed)
            x.copy_(torch.rand_like(x, dtype=torch.float32))
            values.append((x.clone(), [each.clone() for each in gatewise.lstm(x, R, W, b)]))
        monkeypatch.setattr("gatewise.device_arrays._TorchCuda.layouts", lambda *_: None)
        for source, found in values:
            assert all(torch.equal(a, c) for a, c in zip(found, gatewise.lstm(source, R, W, b), strict=True))


@pytest.mark.parametrize("family", ["block", "cluster", "grid", "relay", "wide", "steps"])
def test_gradients_in_a_cuda_graph(family: str) -> None:
    made = training_call(6, 9, 96)
    with planner.wish(family):
        expected = train(*made)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = train(*made)
    for _ in range(3):
        for each in results:
            each.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_equals_cudnn(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's layers on a GPU are cuDNN's: their gates' order, and where their second bias goes."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(3)
    layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](40, 96, bidirectional=True).cuda()
    source, H = torch.randn(9, 17, 40, device="cuda"), 96
    weights = {name: value.detach() for name, value in layer.named_parameters()}

    def both(name: str) -> list[Any]:
        return [weights[f"{name}_l0"], weights[f"{name}_l0_reverse"]]

    bias, second = torch.stack(both("bias_ih")), torch.stack(both("bias_hh"))
    given = {"recurrent_weight": torch.stack(both("weight_hh")), "input_weight": torch.cat(both("weight_ih"))}
    if cell == "gru":
        given["secondary_bias"] = second[:, 2 * H :].flatten()
        second = torch.cat((second[:, : 2 * H], torch.zeros(2, H, device="cuda")), 1)
    given["bias"] = (bias + second).flatten()
    run, descriptor = OPERATIONS[cell][0], descriptor_of(cell, directions=2, training=False)
    with torch.no_grad(), gatewise.use_precision("highest"):
        found, expected = run(source, **given, descriptor=descriptor)[0], layer(source)[0]
    assert difference(found.cpu().numpy(), expected.double().cpu().numpy()) <= TOLERANCE["highest"]


def test_arguments_that_are_not_aligned() -> None:
    x, R, W, b = plain_lstm()
    crooked = [torch.cat((each.flatten()[:1], each.flatten()))[1:].view(each.shape) for each in (x, R, W, b)]
    assert crooked[0].data_ptr() % 16
    for _ in range(2):
        assert torch.equal(gatewise.lstm(*crooked)[0], gatewise.lstm(x, R, W, b)[0])


def test_lengths_out_of_range_act_like_the_nearest() -> None:
    arguments = plain_lstm(T=6, N=4)
    wild = torch.tensor([-(2**32) + 3, -1, 6, 2**40], device="cuda")
    (state,) = gatewise.lstm(*arguments, lengths=wild)
    (expected,) = gatewise.lstm(*arguments, lengths=wild.clamp(0, 6))
    assert torch.equal(state, expected)
    assert (state[:, :2] == 0).all().item()
