"""The command line: what it prints and its exit codes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gatewise
from gatewise.cli import app
from gatewise.engines import ENGINES, reference

runner = CliRunner()


def run(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_info_names_every_engine() -> None:
    code, text = run("info")
    assert code == 0
    assert gatewise.__version__ in text
    for name in ENGINES:
        assert name in text
    assert "instruction set" in text
    assert "threads" in text


def test_info_says_in_full_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINES["cuda"], "unavailable", lambda: "NVRTC is not installed (pip install gatewise[cuda13])")
    assert "(pip install gatewise[cuda13])" in run("info")[1]


def test_check_passes_on_this_machine() -> None:
    code, text = run("check", "--cases", "60", "--seed", "3")
    assert code == 0, text
    assert "cpu: 60 calls, forward and every gradient: all agree with the reference" in text


def test_check_of_one_engine_and_one_case() -> None:
    code, text = run("check", "--engine", "reference", "--case", "17")
    assert code == 0
    assert "reference: 1 calls" in text
    assert "cpu" not in text


class _Wrong:
    """The reference with a mistake in the LSTM's bias gradient."""

    name = "wrong"
    unavailable = staticmethod(reference.unavailable)
    supports = staticmethod(reference.supports)
    forward = staticmethod(reference.forward)

    @staticmethod
    def gradients(problem: Any) -> dict[str, Any]:
        found = reference.gradients(problem)
        if problem.cell.has_cell and "bias" in found:
            found["bias"] = found["bias"] * np.asarray(1.5, found["bias"].dtype)
        return found


def test_check_fails_on_a_mismatch_and_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "wrong", _Wrong)
    code, text = run("check", "--cases", "60", "--engine", "wrong", "--seed", "4")
    assert code == 1
    assert "gradient of bias differs" in text
    again = re.search(r"again: gatewise (check --engine wrong --seed 4 --case \d+)", text)
    assert again is not None
    code, text = run(*again.group(1).split())
    assert code == 1
    assert "wrong: 1 calls, forward and every gradient: 1 differ" in text


def test_check_fails_when_nothing_could_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Wrong, "unavailable", staticmethod(lambda: "there is no such device"))
    monkeypatch.setitem(ENGINES, "wrong", _Wrong)
    code, text = run("check", "--engine", "wrong")
    assert code == 1
    assert "wrong: cannot run here: there is no such device" in text


@pytest.mark.parametrize("arguments", [("check", "--engine", "none"), ("check", "--cases", "0"), ("check", "--seed", "-1")])
def test_wrong_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert run(*arguments)[0] == 2


def test_no_arguments_shows_help() -> None:
    _, text = run()
    assert "check" in text
    assert "info" in text
