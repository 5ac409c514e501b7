"""`gatewise bench`: that it measures the same computation everywhere and reports it; never how fast anything is."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain, groupby, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import gatewise
from gatewise.benchmark import machine, measure, memory, plot, tables, timing
from gatewise.benchmark.limit import sgemm_flops_per_second
from gatewise.benchmark.rivals import Prepared, loop_rivals, standard_rivals
from gatewise.benchmark.rivals.torch_loop import TorchLoop
from gatewise.benchmark.shapes import (
    CELLS,
    LINEARITY,
    MODES,
    PLAIN,
    STANDARD,
    VARIANTS,
    Shape,
    flops,
    parse_names,
    parse_shapes,
)
from gatewise.benchmark.work import make_work
from gatewise.cli import bench
from gatewise.engines.cpu import round_trip_seconds

ONCE = timing.Effort(rounds=1, seconds=0.0, at_most_seconds=0.0)
SHAPES = (Shape(3, 2, 4, 5), Shape(4, 3, 2, 5, bidirectional=True))


@pytest.fixture(autouse=True)
def _quick_and_everywhere(monkeypatch):
    """The reference engine, which is always there; no waiting; a constant for the matrix product, which takes a while."""
    monkeypatch.setattr(timing, "rest", lambda: None)
    monkeypatch.setattr(timing, "_TURN_SECONDS", 0.0)
    monkeypatch.setattr(machine, "others_cpu_seconds", lambda: None)
    monkeypatch.setattr(measure, "sgemm_flops_per_second", lambda threads: {"torch": 1e11, "numpy": 9e10})
    monkeypatch.setattr(measure, "round_trip_seconds", lambda: 8e-8)
    with gatewise.use_engine("reference"):
        yield


def settings(**changes):
    return measure.Settings(**{"threads": 1, "shapes": SHAPES, "variants": False, "effort": ONCE, **changes})


def measured(**changes):
    chosen = settings(**changes)
    report = measure.new_report(chosen)
    measure.run(chosen, report)
    return report


def shown(report):
    """The report's lines on a terminal."""
    terminal = Console(width=80, file=io.StringIO())
    tables.print_report(report, terminal)
    return terminal.file.getvalue().splitlines()


def without(monkeypatch, *modules):
    """As on a machine where these modules are not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in modules else find(name, *rest))


def test_flop_counts_by_hand():
    assert flops("lstm", Shape(100, 32, 256, 256), "forward") == 2 * 100 * 32 * 1024 * 512
    assert flops("gru", Shape(7, 3, 5, 2), "forward") == 2 * 7 * 3 * 6 * 7
    assert flops("single", Shape(7, 3, 5, 2), "training") == 3 * 2 * 7 * 3 * 2 * 7
    assert flops("lstm", Shape(7, 3, 5, 2, True), "training") == 2 * flops("lstm", Shape(7, 3, 5, 2), "training")


def test_shapes_are_read_and_refused():
    assert parse_shapes("1,2,3,4; 5,6,7,8,bi;") == (Shape(1, 2, 3, 4), Shape(5, 6, 7, 8, True))
    assert parse_shapes(";".join(map(str, STANDARD))) == STANDARD
    for wrong in ("", "1,2,3", "1,2,3,4,5", "1,2,3,0", "1,2,3,x", "1,2,3,-4"):
        with pytest.raises(ValueError, match="T,N,I,H"):
            parse_shapes(wrong)
    assert parse_names("cells", "gru, lstm", CELLS) == ("lstm", "gru")
    with pytest.raises(ValueError, match="some of lstm, gru, single"):
        parse_names("cells", "lstm,elman", CELLS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cell", CELLS)
def test_every_rival_computes_the_same(cell, mode, shape):
    work = make_work(cell, shape)
    compared = 0
    ours, *others = [rival.prepare(work, mode, 1) for rival in standard_rivals() if mode in rival.modes]
    expected = ours.results(ours.call())
    for other in others:
        theirs = other.results(other.call())
        gradients = {f"gradient of {name}" for name in work.arguments} if mode == "training" else set()
        assert set(theirs) == {"state", *gradients}
        for name, array in theirs.items():
            np.testing.assert_allclose(expected[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
            compared += 1
    assert compared == (len(work.arguments) + 1 if mode == "training" else 3)


@pytest.mark.parametrize("variant", [*VARIANTS, PLAIN["lstm"], PLAIN["gru"]], ids=lambda v: f"{v.cell} {v.name}")
def test_the_loop_computes_every_variant(variant):
    work = make_work(variant.cell, Shape(5, 4, 3, 6), variant)
    ours, loop = (rival.prepare(work, "training", 1) for rival in (standard_rivals()[0], TorchLoop(compiled=False)))
    expected, theirs = ours.results(ours.call()), loop.results(loop.call())
    assert set(expected) == set(theirs)
    for name, array in theirs.items():
        np.testing.assert_allclose(expected[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_report_holds_every_case():
    report = json.loads(json.dumps(measured()))
    assert report["schema"] == measure.SCHEMA
    assert report["disagreements"] == report["notes"] == []
    assert set(report["rivals"]) == {"gatewise", "gatewise constant", "torch", "onnxruntime"}
    assert {"cpu", "instructions", "cpus", "python", "system", "versions", "engine"} <= set(report["machine"])
    assert len(report["standard"]) == len(SHAPES) * len(CELLS) * len(MODES)
    for row in report["standard"]:
        forward = row["mode"] == "forward"
        rivals = {"torch", "onnxruntime"} if forward else {"torch"}
        assert set(row["ratio"]) == rivals
        assert set(row.get("constant_ratio", ())) == (rivals if forward else set())
        timed = {"gatewise", *rivals, *(["gatewise constant"] if forward else [])}
        assert set(row["seconds"]) == set(row["times_limit"]) == set(row["quartiles"]) == timed
        assert row["ratio"]["torch"] == row["seconds"]["torch"] / row["seconds"]["gatewise"]
        assert row["times_limit"]["torch"] == pytest.approx(row["seconds"]["torch"] * 1e11 / row["flops"])


def test_variants_and_linearity_are_reported():
    linear = (Shape(2, 2, 3, 4), Shape(20, 2, 3, 4))
    report = measured(
        standard=False,
        variants=True,
        linearity=True,
        cells=("lstm", "gru"),
        modes=("forward",),
        loops=(TorchLoop(compiled=False),),
        variants_shapes=SHAPES[:1],
        linearity_shapes=linear,
    )
    assert [(row["cell"], row["variant"]) for row in report["variants"]] == [(v.cell, v.name) for v in VARIANTS]
    assert all(set(row["ratio"]) == {"torch loop"} and row["cost"] > 0 for row in report["variants"])
    assert [row["relative"] == 1 for row in report["linearity"]] == [True, False, True, False]
    titles = [table.title for table in tables.tables(report)]
    assert titles == ["Variants at T,N,I,H = 3,2,4,5", "Linear in T"]


@pytest.mark.skipif(memory.unavailable() is not None, reason="peak memory is read from Linux's /proc/self")
def test_memory_is_reported():
    (shape,) = parse_shapes("20,8,32,64")
    report = measured(standard=False, memory=True, cells=("gru",), memory_shapes=(shape,))
    assert [row["call"] for row in report["memory"]] == ["forward", "training forward", "gradients"]
    assert report["memory"][0]["z_state_bytes"] == 4 * 20 * 8 * 3 * 64
    assert report["memory"][0]["extra_bytes"] > 0  # the reference computes in float64


def test_missing_rivals_are_said(monkeypatch):
    without(monkeypatch, "torch", "onnxruntime")
    report = measured(variants=True, loops=loop_rivals(), cells=("lstm",), modes=("forward",), variants_shapes=SHAPES[:1])
    assert set(report["rivals"]) == {"gatewise", "gatewise constant"}
    assert [note.split(" is not measured: ")[0] for note in report["notes"]] == [
        "torch",
        "onnxruntime",
        "torch loop",
        "torch loop, compiled",
    ]
    assert "note: torch is not measured: torch not installed (pip install 'gatewise[rivals]')" in "".join(shown(report))
    assert all(row["ratio"] == {} for row in (*report["standard"], *report["variants"]))
    assert "| 3,2,4,5 |" in tables.markdown(report)


def test_a_failing_compiler_is_said_once(monkeypatch):
    def broken(step, **options):
        def call(*arguments):
            raise RuntimeError("no compiler today\nand a long trace")

        return call

    monkeypatch.setattr("torch.compile", broken)
    loops = (TorchLoop(compiled=False), TorchLoop(compiled=True))
    report = measured(standard=False, variants=True, cells=("gru",), loops=loops, variants_shapes=SHAPES[:1])
    assert len(report["notes"]) == 1
    assert report["notes"][0].endswith("torch.compile failed: no compiler today")
    assert all(set(row["ratio"]) == {"torch loop"} for row in report["variants"])


def test_a_rival_that_computes_something_else_is_not_timed():
    class Wrong:
        name = "wrong"
        modes = MODES

        def unavailable(self):
            return None

        def version(self):
            return "0"

        def prepare(self, work, mode, threads):
            return Prepared(lambda: None, lambda raw: {"state": np.full_like(work.output_gradient, np.nan)})

    report = measured(rivals=(standard_rivals()[0], Wrong()), cells=("gru",), modes=("forward",), shapes=SHAPES[:1])
    assert report["standard"][0]["ratio"] == {}
    assert report["disagreements"] == ["gru plain 3,2,4,5 forward: state of wrong is inf away from gatewise's: not timed"]
    assert report["disagreements"][0] in tables.markdown(report)


def test_summary_and_tables_by_hand():
    def row(T, ours, torch, ort=None):
        seconds = {"gatewise": ours, "torch": torch} | ({"onnxruntime": ort} if ort else {})
        ratio = {name: value / ours for name, value in seconds.items() if name != "gatewise"}
        shape = {"T": T, "N": 1, "I": 2, "H": 3, "bidirectional": T == 8}
        limits = {"gatewise": ours * 10, "torch": torch * 10}
        return {"cell": "gru", "mode": "forward", **shape, "seconds": seconds, "ratio": ratio, "times_limit": limits}

    report = measure.new_report(settings())
    report["standard"] = [row(4, 0.2, 0.4), row(8, 0.8, 6.4, 0.4)]
    report["notes"] = ["a note"]
    (entry,) = tables.summary(report)
    assert entry["times_limit"] == pytest.approx(4)
    assert entry["ratio"]["torch"] == pytest.approx({"geometric_mean": 4, "least": 2, "least_at": "4,1,2,3"})
    assert entry["ratio"]["better rival"] == pytest.approx({"geometric_mean": 1, "least": 0.5, "least_at": "8,1,2,3 bi"})
    text = tables.markdown(report)
    assert "| T,N,I,H | gatewise | torch | onnxruntime | × torch | × onnxruntime | / limit |" in text
    assert "| 4,1,2,3 | 200 ms | 400 ms | – | 2.00 | – | 2.00 |" in text
    assert "| 8,1,2,3 bi | 800 ms | 6.40 s | 400 ms | 8.00 | 0.50 | 8.00 |" in text
    assert "- a note" in text
    assert "constant" not in text

    for given, constant in zip(report["standard"], (0.1, 0.2), strict=True):
        given["seconds"]["gatewise constant"] = constant
        given["constant_ratio"] = {name: given["seconds"][name] / constant for name in given["ratio"]}
    (entry,) = tables.summary(report)
    least = {"geometric_mean": 8**0.5, "least": 2, "least_at": "8,1,2,3 bi"}
    assert entry["ratio"]["constant × better"] == pytest.approx(least)
    assert "| 8,1,2,3 bi | 800 ms | 200 ms | 6.40 s | 400 ms | 8.00 | 0.50 | 2.00 | 8.00 |" in tables.markdown(report)


def test_every_table_fits_a_terminal_of_80_columns():
    def row(cell, mode, shape, rivals, **more):
        seconds = dict.fromkeys(("gatewise", *rivals), 12.3e-3)
        size = {"T": shape.T, "N": shape.N, "I": shape.I, "H": shape.H, "bidirectional": shape.bidirectional}
        return {"cell": cell, "mode": mode, **size, "seconds": seconds, "ratio": dict.fromkeys(rivals, 12.3), **more}

    report = measure.new_report(settings(variants=True))
    rivals, loops = ("torch", "onnxruntime"), ("torch loop", "torch loop, compiled")
    for shape in STANDARD:
        known = {"times_limit": {"gatewise": 12.3}, "constant_ratio": dict.fromkeys(rivals, 12.3)}
        report["standard"].append(row("lstm", "forward", shape, rivals, **known))
        report["standard"][-1]["seconds"]["gatewise constant"] = 12.3e-6
    for variant in VARIANTS:
        report["variants"].append(row(variant.cell, "training", STANDARD[-1], loops, variant=variant.name, cost=1.23))
        report["variants"][-1]["seconds"]["plain"] = 12.3e-3
    report["linearity"] = [row("single", "training", LINEARITY[-1], (), seconds_per_step=12.3e-6, relative=1.234)]
    sizes = {"extra_bytes": 123_456_789, "z_state_bytes": 123_456_789, "packed_weight_bytes": 123_456_789}
    report["memory"] = [row("single", "training", STANDARD[-1], (), call="training forward", **sizes)]
    lines = shown(report)
    assert max(map(len, lines)) == 80
    assert not any("…" in line for line in lines)
    assert "100,32,256,256 bi  12.3 ms  12.3 µs 12.3 ms 12.3 ms  12.3    12.3     12.3  12.3" in lines


def test_command_writes_report_picture_and_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "QUICK", ONCE)
    file, picture, again = tmp_path / "report.json", tmp_path / "report.png", tmp_path / "again.svg"
    run = CliRunner().invoke
    command = ["cpu", "--quick", "--shapes", "3,2,4,5;4,3,2,5,bi", "--cells", "gru,single", "--threads", "1"]
    done = run(bench.app, [*command, "--json", str(file), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    assert "GRU, training step" in done.output
    assert "4,3,2,5 bi" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert {row["cell"] for row in report["standard"]} == {"gru", "single"}
    assert len(report["summary"]) == 4
    done = run(bench.app, ["table", str(file)])
    assert done.output == tables.markdown(report)
    assert run(bench.app, ["plot", str(file), str(again)]).exit_code == 0
    assert again.stat().st_size > 1000
    report["standard"] = []
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.draw(report, again)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_stopped_run_shows_what_there_is(tmp_path, monkeypatch, number):
    monkeypatch.setattr(timing, "QUICK", ONCE)
    turns = measure.take_turns
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            signal.raise_signal(number)
        return turns(*arguments)

    monkeypatch.setattr(measure, "take_turns", interrupted)
    file = tmp_path / "report.json"
    done = CliRunner().invoke(bench.app, ["cpu", "--quick", "--shapes", "3,2,4,5", "--threads", "1", "--json", str(file)])
    assert done.exit_code == 130
    assert "LSTM, training step" in done.output
    assert "stopped after 3 of 8 measurements" in done.output
    assert len(json.loads(file.read_text(encoding="utf-8"))["standard"]) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ["cpu", "--shapes", "1,2"],
        ["cpu", "--cells", "elman"],
        ["cpu", "--modes", "sideways"],
        ["cpu", "--threads", "0"],
        ["cpu", "--json", "no/such/folder/report.json"],
        ["cpu", "--plot", "report.txt"],
        ["table", "no-such-file.json"],
        ["table", __file__],
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused_before_measuring(wrong):
    done = CliRunner().invoke(bench.app, wrong)
    assert done.exit_code == 2, done.output


def test_without_an_engine_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr("gatewise.engines.reference.unavailable", lambda: "taken away")
    done = CliRunner().invoke(bench.app, ["cpu", "--quick"])
    assert done.exit_code == 2
    assert "the reference engine cannot run here: taken away" in done.output


def test_turns_alternate(monkeypatch):
    monkeypatch.setattr(timing, "_TURN_SECONDS", 0.001)
    order = []
    found = timing.take_turns({name: lambda name=name: order.append(name) for name in "abc"}, timing.Effort(3, 0.0, 9.0))
    turns = [(name, len(list(calls))) for name, calls in groupby(order)]
    assert "".join(name for name, _ in turns) == "abc" * 3
    assert all(calls > 2 for _, calls in turns)
    assert all(len(each.samples) == 3 for each in found.values())
    assert all(each.quartiles[0] <= each.median <= each.quartiles[1] for each in found.values())


def test_a_ratio_is_that_of_turns_moments_apart():
    ours, theirs = timing.Timing((1.0, 2.0, 2.0, 2.0)), timing.Timing((3.0, 6.0, 3.0, 6.0))
    assert theirs.over(ours) == 3.0
    assert (ours.median, ours.quartiles) == (2.0, (1.75, 2.0))


def test_a_slow_first_call_does_not_make_turns_short(monkeypatch):
    monkeypatch.setattr(timing, "_TURN_SECONDS", 0.02)
    pauses = chain([0.05, 0.05], repeat(0.0))
    found = timing.take_turns({"a": lambda: time.sleep(next(pauses))}, timing.Effort(3, 0.05, 9.0))
    assert len(found["a"].samples) <= 4


def test_drift_is_said(monkeypatch):
    speeds = iter((1e11, 5e10))
    monkeypatch.setattr(measure, "sgemm_flops_per_second", lambda threads: {"torch": next(speeds)})
    report = measured(standard=False)
    assert report["notes"] == [
        "the matrix product ran at 100 GFLOP/s at the start and at 50 at the end: the machine was not quiet, measure again"
    ]


def test_other_programs_are_said(monkeypatch):
    readings = iter((0.0, 1e6))
    monkeypatch.setattr(machine, "others_cpu_seconds", lambda: next(readings))
    report = measured(standard=False)
    assert report["others_share"] > 1
    assert report["notes"][0].endswith("of the machine's CPU time meanwhile: measure again without them")


def test_the_limit_is_measured(monkeypatch):
    monkeypatch.setattr("gatewise.benchmark.limit._EFFORT", ONCE)
    found = sgemm_flops_per_second(timing.available_cpus(), size=32)
    assert set(found) == {"torch", "numpy"}
    assert min(found.values()) > 0


def test_a_round_trip_is_measured_and_shown():
    assert tables.heading(measured(standard=False))[-1] == (
        "a cache line goes to another thread and back in 80 ns, at the end in 80 ns"
    )
    with timing.same_threads(1):
        assert round_trip_seconds() is None
    if timing.available_cpus() > 1:
        with timing.same_threads(2):
            assert round_trip_seconds() > 0


def test_threads_are_restored(monkeypatch):
    set_to = []
    monkeypatch.setattr(timing, "gatewise", SimpleNamespace(get_threads=lambda: 7, set_threads=set_to.append))
    import torch

    before = torch.get_num_threads()
    with timing.same_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert set_to == [1, 7]


def test_importing_gatewise_imports_none_of_this():
    code = "import sys, gatewise; print(sorted({'gatewise.benchmark', 'gatewise.cli', 'typer', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"
