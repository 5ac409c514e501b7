"""The CUDA engine without a GPU: kernels compile, plans keep within the chip, calls say what is missing."""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gatewise
from cuda_samples import kernel_jobs, sample
from gatewise.cells import CELLS, GRU_AFTER, GRU_BEFORE, LSTM, Cell
from gatewise.engines import cuda
from gatewise.engines.cuda import compiler, driver, kernels, planner, products, relay_tiling, warm, wide_tiling
from gatewise.engines.cuda.planner import Wish, choose, wish
from gatewise.engines.cuda.tiling import THREADS, Tiling, ceil_div
from gatewise.engines.cuda.wide_tiling import HELD, WideTiling

NO_GPU = cuda.unavailable()
GRU = gatewise.GRUDescriptor(reset_after=True)
SHAPES = [
    (1, 1),
    (1, 512),
    (3, 33),
    (16, 1024),
    (64, 128),
    (64, 512),
    (64, 1000),
    (256, 1024),
    (64, 2048),
    (64, 4096),
    (4096, 256),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path))
    monkeypatch.setenv("GATEWISE_QUIET", "1")


@pytest.mark.parametrize(("architecture", "seeds"), [("sm_80", (0, 2, 6)), ("sm_90", (3, 4, 5, 7, 39))])
def test_sampled_kernels_compile(architecture: str, seeds: tuple[int, ...]) -> None:
    device = {"sm_80": driver.A100, "sm_90": driver.H200}[architecture]
    jobs = [job for seed in seeds for job in kernel_jobs(sample(seed), device)]
    count, errors = warm.compile_all(jobs, architecture, processes=2)
    assert not errors, errors[0]
    assert len(compiler.cached()) == count > len(seeds)


def test_the_wide_kernel_compiles_at_the_sizes_it_is_for() -> None:
    calls = [(gatewise.LSTMDescriptor(), 256, 1024), (gatewise.LSTMDescriptor(), 64, 2048), (GRU, 256, 1024)]
    jobs = [job for call in calls for job in warm.jobs(call[0], "bfloat16", *call[1:], driver.H200)]
    for source in ("wide_forward.cu", "wide_gradient.cu"):
        assert [file for file, _ in jobs].count(source) == len(calls)
    _, errors = warm.compile_all(jobs, "sm_90", processes=2)
    assert not errors, errors[0]


def test_the_relay_kernel_compiles_at_the_sizes_it_is_for() -> None:
    both = gatewise.GRUDescriptor(reset_after=True, bidirectional=True)
    calls = [(gatewise.LSTMDescriptor(), 64, 1024), (both, 64, 512), (gatewise.LSTMDescriptor(bidirectional=True), 64, 512)]
    jobs = [job for call in calls for job in warm.jobs(call[0], "bfloat16", *call[1:], driver.H200, gradient=False)]
    assert [file for file, _ in jobs].count("relay_forward.cu") == len(calls)
    _, errors = warm.compile_all(jobs, "sm_90", processes=2)
    assert not errors, errors[0]


@pytest.mark.parametrize("device", [driver.H200, driver.A100], ids=lambda device: device.architecture)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("cell", [LSTM, GRU_AFTER, GRU_BEFORE], ids=lambda cell: cell.name)
def test_plans_keep_within_the_chip(cell: object, dtype: str, device: driver.Device) -> None:
    for N, H in SHAPES:
        for directions in (1, 2):
            for backward in (False, True):
                plan = choose(cell, backward, N, H, directions, dtype, False, device, Wish())  # type: ignore[arg-type]
                t = plan.tiling
                if t is None:
                    assert planner.is_library()
                    continue
                assert t.shared_bytes <= device.shared_limit
                assert t.padded >= H
                assert plan.family in plan.explanation
                if isinstance(t, WideTiling):
                    assert device.major == 9
                    assert t.groups * t.blocks * directions <= device.sm_count
                    assert t.held <= min(HELD, t.fragments)
                    assert t.groups * t.rows >= N
                    assert t.fits
                    continue
                assert sum(t.held[phase] * t.tiles(phase) * 8 for phase in t.phases) + t.working_registers() <= t.registers + 8
                assert t.groups * t.passes * t.pass_rows >= N
                assert all(t.streamed(phase) >= 0 for phase in t.phases)
                if t.on_chip:
                    assert t.blocks <= 16
                    assert t.blocks == 1 or device.major >= 9
                else:  # every block must be resident at once, or those that wait would wait for ever
                    assert t.groups * t.blocks * directions <= device.sm_count
                    handed_on = N * directions * sum(ceil_div(t.k(phase) * t.element_bytes, 64) * 64 for phase in t.phases)
                    assert handed_on <= 4 * t.exchanged_words(N, directions) < 2 * handed_on


def test_a_wish_is_granted_where_it_fits() -> None:
    for family in ("block", "cluster", "grid", "relay", "wide", "steps"):
        plan = choose(LSTM, False, 8, 128, 1, "bfloat16", False, driver.H200, Wish(family))
        assert plan.family == family
        assert plan.tiling is None or plan.tiling.family == family
    assert choose(LSTM, False, 8, 2048, 1, "bfloat16", False, driver.H200, Wish("block")).family == "steps"
    with wish("steps"):
        pass


@pytest.mark.parametrize("found", [True, False])
def test_much_work_is_left_to_a_library_if_there_is_one(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "is_library", lambda: found)
    choose.cache_clear()
    for backward in (False, True):
        plan = choose(LSTM, backward, 4096, 256, 1, "bfloat16", False, driver.H200, Wish())
        assert (plan.family == "steps") == found, plan.explanation
        plan = choose(LSTM, backward, 64, 512, 1, "bfloat16", False, driver.H200, Wish())
        assert plan.tiling is not None, plan.explanation
    choose.cache_clear()


def test_the_wide_kernels_are_for_steps_with_much_work() -> None:
    def family(N: int, H: int, backward: bool, cell: Cell = LSTM, dtype: str = "bfloat16") -> str:
        return choose(cell, backward, N, H, 1, dtype, False, driver.H200, Wish()).family

    for backward in (False, True):
        assert family(256, 1024, backward) == "wide"
        assert family(64, 2048, backward) == "wide"
        assert family(64, 512, backward) == ("grid" if backward else "relay")
        assert "wide" not in {family(256, 1024, backward, GRU_BEFORE), family(256, 1024, backward, dtype="float32")}
        assert choose(LSTM, backward, 256, 1024, 1, "bfloat16", False, driver.A100, Wish()).family != "wide"


def test_the_relay_kernel_keeps_all_of_r_on_the_chip() -> None:
    for cell, N, H, directions in itertools.product(CELLS, (8, 40, 128), (1, 33, 200, 512, 1000, 2048), (1, 2)):
        for t in relay_tiling.candidates(cell, N, H, directions, 2, driver.H200):
            assert len(cell.phases) == 1
            assert t.groups * 2 * t.pass_rows >= N
            assert t.groups * t.blocks * directions <= driver.H200.sm_count
            assert t.held[0] + t.shared[0] == t.chunks(0)
            assert t.shared_bytes <= driver.H200.shared_limit
    assert not relay_tiling.candidates(LSTM, 8, 128, 1, 2, driver.A100)


def test_turns_are_for_plans_that_fill_the_chip() -> None:
    def family(N: int, H: int) -> str:
        return choose(LSTM, False, N, H, 1, "bfloat16", False, driver.H200, Wish()).family

    assert family(16, 1024) == "grid"  # both halves have room side by side
    assert family(64, 512) == family(64, 1024) == "relay"


def test_wide_kernels_are_cut_without_rest() -> None:
    """Every unit has an owner, every k a part, whatever H and the number of gates."""
    for cell, backward, H in itertools.product((LSTM, GRU_AFTER), (False, True), (1, 33, 64, 200, 700, 1000, 1300, 2048)):
        for t in wide_tiling.candidates(cell, backward, 40, H, 1, driver.H200):
            assert t.padded >= H
            assert t.blocks * t.units == t.padded
            assert t.blocks % t.parts == 0
            assert t.parts * t.k == t.padded * (len(cell.gates) if backward else 1)
            assert t.packed_bytes == t.padded * t.parts * t.k * (1 if backward else 4) * 2


def test_blocks_look_for_results_when_they_can_be_there() -> None:
    def looks_after(N: int, H: int, family: str = "grid", backward: bool = False) -> int:
        tiling = choose(LSTM, backward, N, H, 1, "bfloat16", False, driver.H200, Wish(family)).tiling
        assert isinstance(tiling, Tiling)
        return tiling.look_after(N, 1)

    assert looks_after(1, 512) == 0  # so little is read that looking early is no harm
    assert 0 < looks_after(16, 1024) < looks_after(16, 1024, backward=True) < looks_after(64, 1024)
    assert looks_after(16, 128, "cluster") == 0  # a barrier says when


def test_long_gradient_products_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_split(N: int, H: int, backward: bool = True) -> bool:
        return kernels.StepsCut(LSTM, N, H, 1, backward).split

    assert is_split(256, 1024)
    assert is_split(64, 2048)
    assert not is_split(4096, 256)  # its result keeps the GPU busy
    assert not is_split(256, 1024, backward=False)
    monkeypatch.setattr(products, "array_kernels", lambda *_: {"multiply": ctypes.c_void_p(1)})
    three = products.Product(4, 4, 8, 8, False, 4, False, 4, "float32", "float32", True, 3, (8, 32, 16))
    parts = products.plain(0, three, 0, 0, 0)
    assert [[rows[i][0] for i in range(3)] for _, rows in parts] == [[0, 0, 0], [32, 128, 64], [64, 256, 128]]


def test_exact_products_are_not_given_to_tensor_cores() -> None:
    for dtype, exact in (("float64", False), ("float32", True)):
        plan = choose(LSTM, False, 8, 128, 1, dtype, exact, driver.H200, Wish())
        assert plan.family == "steps"
        assert "exact" in plan.explanation


def test_no_rows_need_no_plan() -> None:
    assert choose(LSTM, True, 0, 64, 2, "bfloat16", False, driver.H200, Wish()).family == "steps"


def test_arguments_are_the_fields_of_the_kernels() -> None:
    text = (compiler.sources() / "cuda" / "problem.cuh").read_text()
    body = re.search(r"struct Arguments \{(.*?)\n\};", text, re.DOTALL)
    assert body is not None
    code = re.sub(r"//[^\n]*", "", body[1])
    names = [name for line in code.split(";") for name in re.findall(r"(\w+)\s*(?:,|$)", line.strip())]
    assert tuple(names) == kernels.FIELDS
    assert kernels.arguments({"N": 3}) == (0, 3, *[0] * (len(names) - 2))


def test_kernels_hold_no_gate_maths() -> None:
    for file in (compiler.sources() / "cuda").iterdir():
        text = file.read_text()
        assert not [cell.name for cell in CELLS if re.search(rf"\b{cell.name}\b", text)], file


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    macros = kernels.array_macros("float32")
    first = compiler.cubin("arrays.cu", macros, "sm_90")
    monkeypatch.setattr(compiler, "compile_now", lambda *_: pytest.fail("compiled again"))
    assert compiler.cubin("arrays.cu", macros, "sm_90") == first


def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "CACHE_LIMIT", 3)
    monkeypatch.setattr(compiler, "compile_now", lambda *_: b"code")
    for number in range(6):
        compiler.cubin("arrays.cu", {"A": str(number)}, "sm_90")
    assert len(compiler.cached()) == 3
    assert not list(tmp_path.glob("*.new"))


def test_a_refused_kernel_says_why() -> None:
    with pytest.raises(compiler.CompileError, match="GATEWISE_ELEMENT"):
        compiler.cubin("arrays.cu", {}, "sm_90")


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_calls_without_a_gpu_say_so() -> None:
    source = np.zeros((2, 1, 4), np.float32)
    with gatewise.use_engine("cuda"), pytest.raises(gatewise.UnsupportedError, match="cuda engine cannot run here"):
        gatewise.lstm(source, np.zeros((4, 1), np.float32))


def test_importing_gatewise_loads_no_cuda() -> None:
    code = (
        "import gatewise, sys; print([name for name in sys.modules if name.startswith(('cuda', 'gatewise.engines.cuda.run'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_threads_of_a_block() -> None:
    assert THREADS == 256


def test_precision_is_checked() -> None:
    with pytest.raises(gatewise.ArgumentError, match="highest"), gatewise.use_precision("exact"):
        pass
