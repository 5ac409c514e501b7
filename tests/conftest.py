"""Shared by all tests: which engines are held to the reference."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the peers' threads would only wait for each other

import pytest

from gatewise.engines import ENGINES

# An engine for the machine everybody has must run; one for a device may be missing with the device.
_OPTIONAL = {"cuda"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        names = [name for name in ENGINES if name != "reference"]
        metafunc.parametrize("engine", [name for name in names if name not in _OPTIONAL or not ENGINES[name].unavailable()])
    if "any_engine" in metafunc.fixturenames:
        metafunc.parametrize("any_engine", [name for name in ENGINES if name not in _OPTIONAL])
