"""What callers do with calls: any number of threads, several at once, interrupts, thousands of them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gatewise
from calls import SIXTEEN_BITS, bits, cases_with, results_of, simple_call, simple_gradients
from gatewise.benchmark import memory
from gatewise.benchmark.shapes import STANDARD, Shape
from gatewise.checking import check_case, sample
from gatewise.engines import ENGINES

# Rows enough for gradients to be summed in sections.
MANY_ROWS = {"T": (150, 250), "N": (37, 33, 16), "H": (8, 17, 33), "I": (5, 16)}


def test_gradients_of_many_rows(engine: str) -> None:
    wrong = [f"{case}: {line}" for case in cases_with(60, 13, **MANY_ROWS) for line in check_case(case, engine)]
    assert not wrong, "\n".join(wrong[:10])


def test_same_bits_for_every_thread_count(engine: str) -> None:
    cases = list(sample(100, 8)) + cases_with(24, 9, T=(3, 6), N=(1, 2, 40), H=(33, 130), I=(5, 64))
    cases += cases_with(18, 12, **MANY_ROWS)
    cases += cases_with(18, 15, T=(1, 3), N=(1, 2, 4), H=(64, 128), I=(32, 64))  # few enough that a thread may have one row
    cases += cases_with(4, 17, dtype="float32", T=20, N=1, H=592, I=16)
    # as they are, or widened
    cases += cases_with(18, 20, dtype=SIXTEEN_BITS, T=(1, 3, 9), N=(1, 4, 6), H=(64, 130), I=(32, 64))
    before = gatewise.get_threads()
    try:
        gatewise.set_threads(1)
        wanted = [bits(results_of(case, engine)) for case in cases]
        for count in range(2, 9):
            gatewise.set_threads(count)
            assert gatewise.get_threads() == count
            for case, want in zip(cases, wanted, strict=True):
                assert bits(results_of(case, engine)) == want, f"{count} threads: {case}"
    finally:
        gatewise.set_threads(before)


def test_eight_python_threads_at_once(engine: str) -> None:
    cases = list(sample(80, 10)) + cases_with(16, 11, T=6, N=(1, 33), H=(64, 120), I=20)
    wanted = [bits(results_of(case, engine)) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = list(pool.map(lambda case: bits(results_of(case, engine)), cases))
            assert found == wanted


def test_gil_is_released(engine: str) -> None:
    """Python goes on while a call runs in another thread."""
    call = simple_call("lstm", 400, 64, 64, 128)
    ticks = 0
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: [gatewise.lstm(**call) for _ in range(5)])
        while not future.done():
            ticks += 1
            time.sleep(0.001)
    assert ticks > 20


def memory_in_use() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_calls_do_not_grow(engine: str) -> None:
    """20,000 calls, half of them gradients, and 10,000 refused ones."""
    call = simple_call("gru", 3, 2, 4, 8)
    results = gatewise.gru(**call)
    given = call | {"source_gradient": np.ones_like(results[0]), "z_state": results[-1], "output_fwd": results[0]}
    wrong = call | {"bias": np.zeros(5, np.float32)}

    def some(count: int) -> None:
        for _ in range(count):
            gatewise.gru(**call)
            gatewise.gru_gradients(**given)
            with pytest.raises(gatewise.ShapeError):
                gatewise.gru(**wrong)

    some(1000)
    before = memory_in_use()
    some(10000)
    assert memory_in_use() - before < 2**20  # one forgotten array per call would be 2 MB


def test_larger_calls_do_not_grow(engine: str) -> None:
    """Work memory of many sizes is given back or used again."""
    calls = [simple_call("lstm", 5, N, 16, H) for N in (1, 7, 40) for H in (8, 33, 128)]
    for call in calls:
        simple_gradients("lstm", call)
    before = memory_in_use()
    for _ in range(30):
        for call in calls:
            simple_gradients("lstm", call)
    assert memory_in_use() - before < 8 * 2**20


@pytest.mark.parametrize(("shape", "threads"), [*((shape, 2) for shape in STANDARD), (Shape(300, 64, 32, 128), 8)], ids=str)
@pytest.mark.parametrize("cell", ["lstm", "gru", "single"])
def test_a_call_does_not_grow_beyond_its_z_state_and_packed_weights(cell: str, shape: Shape, threads: int) -> None:
    if ENGINES["cpu"].unavailable() is not None:
        pytest.skip("the native engine is not there")
    with gatewise.use_engine("cpu"):
        for row in memory.measure(cell, shape, threads):
            assert row["extra_bytes"] <= row["z_state_bytes"] + row["packed_weight_bytes"], row


LONG_CALL = """
import signal, sys, time
import numpy as np
import gatewise
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without it
threads, gradient = int(sys.argv[1]), sys.argv[2] == "gradients"
gatewise.set_threads(threads)
H = 1024
weight = np.zeros((H, H), np.float32)
tanh = gatewise.SingleGateRNNDescriptor(activation=gatewise.RNNActivation.TANH)
def call(T):
    steps = np.zeros((T, 1, H), np.float32)
    if gradient:
        return gatewise.single_gate_rnn_gradients(steps, weight, steps, steps, descriptor=tanh)
    return gatewise.single_gate_rnn(steps, weight, descriptor=tanh)
call(200)
T, took = 1000, 0.0
while took < 0.5:
    T *= 2
    start = time.monotonic()
    call(T)
    took = time.monotonic() - start
print(took * 8, flush=True)
try:
    call(T * 8)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    print("alive", call(2)[0].shape, flush=True)
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "gradients"])
def test_interrupt_ends_a_long_call(threads: int, direction: str) -> None:
    command = [sys.executable, "-c", LONG_CALL, str(threads), direction]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        whole = float(process.stdout.readline())
        time.sleep(whole / 8)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert process.stdout.readline() == "interrupted\n"
        waited = time.monotonic() - sent
        assert process.stdout.readline() == "alive (2, 1, 1024)\n"
    assert process.returncode == 0
    assert waited < whole / 2


def test_threads_setting() -> None:
    for wrong, error in ((0, gatewise.ArgumentError), (-1, gatewise.ArgumentError), (257, gatewise.ArgumentError)):
        with pytest.raises(error, match="set_threads: count must be from 1 to 256"):
            gatewise.set_threads(wrong)
    for wrong in (True, 1.0, "2", None):
        with pytest.raises(gatewise.DTypeError, match="set_threads: count must be an int"):
            gatewise.set_threads(wrong)  # type: ignore[arg-type]
    code = "import gatewise; print(gatewise.get_threads())"
    environment = os.environ | {"GATEWISE_THREADS": "3"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout == "3\n"
