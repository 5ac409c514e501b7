"""`gatewise bench cuda` without a GPU: tables, floors, the picture and the loops. What is timed needs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gatewise.benchmark import cuda, cuda_floors, cuda_plot, cuda_variants
from gatewise.benchmark.rivals.torch_loop import TorchLoop
from gatewise.benchmark.shapes import Shape
from gatewise.benchmark.work import make_work
from gatewise.cells import GRU_BEFORE, LSTM
from gatewise.cli import bench
from gatewise.engines import ENGINES
from gatewise.engines.cuda import driver
from gatewise.engines.cuda.planner import Wish, choose


def row(cell: str = "lstm", ours: float = 1.0, cudnn: float | None = 4.0, floor: float | None = 0.5) -> dict[str, Any]:
    def part(scale: float) -> dict[str, Any]:
        other = None if cudnn is None else cudnn * scale
        ratio = None if cudnn is None else cudnn / ours
        return {
            "ms": 0.512 * ours * scale,
            "us_per_step": ours * scale,
            "cudnn_ms": None if other is None else 0.512 * other,
            "cudnn_us_per_step": other,
            "ratio": ratio,
        }

    sizes = {"T": 512, "N": 64, "I": 256, "H": 256, "directions": 1}
    parts = {"forward": part(1), "training": part(3)}
    return {
        "cell": cell,
        "dtype": "bfloat16",
        **sizes,
        "families": ["grid", "grid"],
        "floor_us_per_step": floor,
        "steps_us_per_step": floor and 0.8 * ours,
        **parts,
    }


def test_the_table_by_hand() -> None:
    text = cuda.markdown([row(), row("gru_before", 12.0, None, None)])
    assert "| lstm | bfloat16 | 512, 64, 256, 256 | grid / grid | 0.50 | 0.80 | 0.51 | 1.00 | 4.00 | 4.00 | 1.54 |" in text
    assert "| 1.54 | 3.00 | 12.0 | 4.00 |" in text
    assert (
        "| gru_before | bfloat16 | 512, 64, 256, 256 | grid / grid | – | – | 6.14 | 12.0 | – | – | 18.4 | 36.0 | – | – |"
        in text
    )
    assert "- lstm bfloat16, geometric mean over cuDNN: forward 4.00 (least 4.00), training 4.00 (least 4.00)" in text
    assert "steps alone over the floor 1.60 (most 1.60), forward over the floor 2.00 (most 2.00)" in text
    header, rule, *_ = text.splitlines()
    assert header.count("|") == rule.count("|") == 15
    json.dumps([row()], allow_nan=False)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row(), {**row("gru", 2.0, None, None), "dtype": "float32", "directions": 2}]
    cuda_plot.draw(rows, tmp_path / "a.png", "H200")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        cuda_plot.draw([], tmp_path / "b.png")


def test_floors_are_those_measured() -> None:
    def floor(cell: Any, N: int, H: int, family: str, machine: str = "NVIDIA H200") -> Any:
        plan = choose(cell, False, N, H, 1, "bfloat16", False, driver.H200, Wish(family))
        assert plan.family == family
        return plan.tiling, cuda_floors.floor(plan, N, machine)

    tiling, found = floor(LSTM, 64, 512, "grid")  # 64 KB
    assert tiling is not None
    assert found == {1: 2.7, 2: 1.9, 3: 1.9}.get(tiling.groups, 1.4)
    tiling, found = floor(LSTM, 64, 256, "cluster")
    assert tiling is not None
    assert 0.25 < found < 2.1
    assert floor(LSTM, 64, 512, "grid", "NVIDIA A100")[1] is None
    assert floor(LSTM, 8, 64, "block")[1] is None
    assert floor(LSTM, 4096, 256, "grid")[1] is None  # larger than what was measured
    assert floor(GRU_BEFORE, 4096, 128, "cluster")[1] is None  # not all rows at once
    tiling, found = floor(GRU_BEFORE, 64, 512, "grid")  # two exchanges
    assert tiling is not None
    assert found == pytest.approx(2 * {1: 2.7, 2: 1.9, 3: 1.9}.get(tiling.groups, 1.4))


def test_floors_lie_on_lines_between_sizes() -> None:
    assert cuda_floors._between(cuda_floors.GRID, 40 * 1024, 0) == pytest.approx((1.6 + 2.7) / 2)
    assert cuda_floors._between(cuda_floors.GRID, 0, 1) == 1.0
    assert cuda_floors._between(cuda_floors.CLUSTER, 33 * 1024, 1) is None


def variant_row(compiled: bool) -> dict[str, Any]:
    def part(loop: float) -> dict[str, Any]:
        found: dict[str, Any] = {"ms": 1.0, "plain_ms": 0.8, "us_per_step": 2.0, "cost": 1.25}
        found["loop"] = {"us_per_step": loop, "ratio": loop / 2}
        if compiled:
            found["compiled loop"] = {"us_per_step": loop / 2, "ratio": loop / 4}
        return {**found, "difference": 0.015625}

    notes = [] if compiled else ["compiled loop, forward: no triton"]
    start = {"cell": "lstm", "variant": "mask", "dtype": "bfloat16", "shape": "512,64,256,256", "notes": notes}
    return {**start, "forward": part(238.0), "training": part(574.0)}


def test_the_table_of_variants_by_hand() -> None:
    text = cuda_variants.markdown([variant_row(True), variant_row(False)])
    assert "| lstm | mask | bfloat16 | 512, 64, 256, 256 | forward | 2.00 | 1.25 | 238 | 119 | 119 | 59.5 | 1.6e-02 |" in text
    assert "| training | 2.00 | 1.25 | 574 | 287 | – | – | 1.6e-02 |" in text
    assert text.endswith("- not measured: compiled loop, forward: no triton\n")


@pytest.mark.parametrize("variant", cuda_variants.VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("mode", ["forward", "training"])
def test_the_loop_and_gatewise_compute_the_same(variant: Any, mode: str) -> None:
    """The calls that are timed on a GPU, on the CPU."""
    work = make_work(variant.cell, Shape(5, 4, 3, 6), variant)
    rival = TorchLoop(False, "cpu", "float32")
    loop, reason = cuda_variants._loop(rival, work, mode)
    assert loop is not None, reason
    ours = cuda_variants._ours(work, mode, rival.place)
    np.testing.assert_allclose(ours().numpy(), loop()[0].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_loop_in_sixteen_bits_runs() -> None:
    variant = cuda_variants.VARIANTS[0]
    rival = TorchLoop(False, "cpu", "bfloat16")
    prepared = rival.prepare(make_work(variant.cell, Shape(3, 2, 3, 4), variant), "training", 1)
    results = prepared.results(prepared.call())
    assert results["state"].dtype == np.float32
    assert "gradient of peephole" in results


@pytest.mark.skipif(ENGINES["cuda"].unavailable() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = CliRunner().invoke(bench.app, ["cuda", "--quick"])
    assert done.exit_code == 2
    assert "NVIDIA" in done.output


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--family", "grid,wide"], "family must be one of block, cluster, grid, relay, wide, steps, got 'grid,wide'"),
        (["--shapes", "64,256"], "a shape is T,N,I,H or T,N,I,H,bi with whole numbers from 1, got '64,256'"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: list[str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES["cuda"], "unavailable", lambda: None)
    done = CliRunner().invoke(bench.app, ["cuda", *given], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert expected in done.output
