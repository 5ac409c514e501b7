"""Every engine against the reference over the sampled option space, and the sampler itself."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import gatewise
from gatewise import checking
from gatewise.checking import OPTIONS, Case, check_case, every_pair, pairs_of, sample
from gatewise.engines import ENGINES, reference

CASES = 2400
PART = 100
SEED = 20240611


@pytest.mark.parametrize("part", range(CASES // PART))
def test_engine_equals_reference(engine: str, part: int) -> None:
    cases = list(sample((part + 1) * PART, SEED))[part * PART :]
    wrong = [f"{case}: {line}" for case in cases for line in check_case(case, engine)]
    assert not wrong, "\n".join(wrong[:10])


def test_sample_has_every_pair_of_options() -> None:
    cases = list(sample(CASES, SEED))
    assert len(cases) >= 2000
    for operation in OPTIONS:
        shown = set().union(*(pairs_of(case.options) for case in cases if case.operation == operation))
        assert every_pair(operation) - shown == set()


def test_sample_has_every_descriptor_field() -> None:
    """A flag or activation added to a descriptor must be added to the option space too."""
    cases = list(sample(CASES, SEED))
    for operation, kind in checking._DESCRIPTORS.items():
        for name in (field.name for field in fields(kind)):
            seen = {getattr(case.descriptor, name) for case in cases if case.operation == operation}
            assert len(seen) == (5 if "activation" in name else 2), (operation, name)


def test_sample_repeats_itself() -> None:
    first, again = list(sample(40, 3)), list(sample(40, 3))
    assert first == again
    for a, b in zip(first, again, strict=True):
        for name, array in a.arguments.items():
            assert array is None or array.tobytes() == b.arguments[name].tobytes()
    assert list(sample(40, 4)) != first


def test_values_do_not_grow() -> None:
    """No case is decided by overflow or by an amplified rounding error."""
    for case in sample(300, 5):
        for result in case.expected:
            assert result is None or np.abs(result).max(initial=0.0) < 8


@pytest.mark.parametrize("layout", OPTIONS["lstm"]["layout"])
def test_layouts_are_what_they_say(layout: str) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    view = checking.lay_out(array, layout)
    assert not view.flags.writeable
    assert view.shape == array.shape
    if layout == "broadcast":
        assert view.strides[0] == 0
    else:
        assert np.array_equal(view, array)
    if layout == "backwards":
        assert all(stride < 0 for stride in view.strides)
    assert view.flags.aligned == (layout != "unaligned")
    assert view.flags.c_contiguous == (layout in ("plain", "unaligned"))


class _Slightly:
    """The reference, with one result off by a given part of its scale."""

    name = "slightly"

    def __init__(self, what: str, by: float) -> None:
        self.what, self.by = what, by

    def unavailable(self) -> None:
        return None

    def supports(self) -> dict[str, str]:
        return {}

    def _off(self, name: str, array: np.ndarray | None) -> np.ndarray | None:
        if name != self.what or array is None or not array.size:
            return array
        array = array.copy()
        flat = array.reshape(-1)
        flat[-1] += flat.dtype.type(self.by * np.abs(flat.astype(float)).max())
        return array

    def forward(self, problem: gatewise.problem.Problem) -> tuple:
        results = zip(("state", "cell", "z_state"), reference.forward(problem), strict=True)
        return tuple(self._off(name, array) for name, array in results)

    def gradients(self, problem: gatewise.problem.Problem) -> dict:
        return {name: self._off(name, array) for name, array in reference.gradients(problem).items()}


@pytest.mark.parametrize(
    "what",
    ["state", "cell", "z_state", "source", "recurrent_weight", "input_weight", "bias", "peephole", "init_state", "init_cell"],
)
@pytest.mark.parametrize(("dtype", "by"), [("float64", 1e-11), ("float32", 1e-3), ("float16", 0.1), ("bfloat16", 0.5)])
def test_check_sees_small_differences(monkeypatch: pytest.MonkeyPatch, what: str, dtype: str, by: float) -> None:
    options = {name: values[-1] for name, values in OPTIONS["lstm"].items()} | {"dtype": dtype, "T": 3, "N": 2, "I": 3, "H": 5}
    options |= {name: gatewise.RNNActivation.SIGMOID for name in options if "activation" in name} | {"layout": "plain"}
    case = Case(0, 1, "lstm", options)
    monkeypatch.setitem(ENGINES, "slightly", _Slightly(what, 0.0))
    assert check_case(case, "slightly") == []
    monkeypatch.setitem(ENGINES, "slightly", _Slightly(what, by))
    wrong = check_case(case, "slightly")
    assert len(wrong) == 1
    assert wrong[0].startswith((what, f"gradient of {what}"))


def test_check_sees_a_written_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in sample(100, 0) if case.options["layout"] == "plain" and case.arguments["source"].size)
    case.arguments["source"].flags.writeable = True

    class WritesSource(_Slightly):
        def forward(self, problem: gatewise.problem.Problem) -> tuple:
            results = super().forward(problem)
            problem.source[...] = 0
            return results

    monkeypatch.setitem(ENGINES, "slightly", WritesSource("", 0.0))
    assert "forward wrote to source" in check_case(case, "slightly")
