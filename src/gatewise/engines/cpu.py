"""The native CPU engine, for the whole option space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import NUMPY, bfloat16, plain
from ..cells import CELLS
from ..errors import ArgumentError, DTypeError
from ..problem import Problem

try:
    from .. import _native

    _missing: str | None = None
except ImportError as error:  # a source tree that was not built
    _native = None  # type: ignore[assignment]
    _missing = f"its native module is not built ({error}); reinstall gatewise"

name = "cpu"

_DTYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.float64): 3}
_BFLOAT16 = 2
_CELL_NUMBER = {cell.name: number for number, cell in enumerate(CELLS)}
_INPUTS = (  # in the order in which the operations return their gradients
    "source",
    "recurrent_weight",
    "input_weight",
    "bias",
    "peephole",
    "init_state",
    "init_cell",
    "secondary_bias",
)
_SAVED = (
    "source_gradient",
    "state_gradient",
    "cell_gradient",
    "z_state",
    "cell_output",
    "output",
    "cell_sequence_gradient",
    "z_state_gradient",
)


def unavailable() -> str | None:
    return _missing


def supports() -> dict[str, str]:
    rows = {
        "operations": "all six, every option",
        "dtypes": "float32, float16, bfloat16 (sums in float32), float64",
    }
    if _native is not None:
        rows["instruction set"] = f"{_native.instruction_set()} (this machine has {', '.join(_native.instruction_sets())})"
        rows["threads"] = str(get_threads())
    return rows


def set_threads(count: int) -> None:
    """Use up to `count` threads per call. Results do not depend on it. The default is GATEWISE_THREADS, or all cores."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise DTypeError(f"set_threads: count must be an int, got {count!r} of type {type(count).__name__}")
    if not 1 <= count <= 256:
        raise ArgumentError(f"set_threads: count must be from 1 to 256, got {count}")
    if _native is not None:
        _native.set_threads(int(count))


def get_threads() -> int:
    """The number of threads a call uses at most."""
    return 1 if _native is None else int(_native.threads())


def round_trip_seconds() -> float | None:
    """How long a cache line takes from one thread to another and back, by a short trial; None where calls have one thread."""
    return None if _native is None else _native.round_trip() or None


def constant(array: Any) -> Any:
    """A copy of a weight, as a NumPy array that nobody can ever write to.

    A call packs its weights before it uses them. A forward call packs those of `constant` the first time only: what it
    packed is kept with the array, so that its numbers take up twice the memory.
    """
    array = NUMPY.read("constant", "array", array)
    if array.dtype not in _DTYPES and array.dtype != bfloat16():
        raise DTypeError(f"constant: array must be float32, float16, bfloat16 or float64, got {array.dtype.name}")
    return unchanging(np.array(array, order="C"))


def unchanging(array: Any) -> Any:
    """The array as a constant, without a copy: for one that nobody will write to."""
    array = plain(array)
    if _native is None:
        array.flags.writeable = False
        return array
    return np.asarray(_native.Constant(array.reshape(-1).view(np.uint8))).view(array.dtype).reshape(array.shape)


def _plain(array: Any) -> Any:
    """Memory the module can read: bfloat16 travels as 16-bit words."""
    array = plain(np.asarray(array))
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


def _mask(problem: Problem) -> tuple[Any, tuple[int, int, int]]:
    """The mask in its own (not the broadcast) size, and its strides in elements over [T, N, D*H]."""
    if problem.mask is None:
        return None, (0, 0, 0)
    mask = np.ascontiguousarray(problem.mask)
    mask = mask.reshape((1,) * (3 - mask.ndim) + mask.shape)
    steps, rows, width = mask.shape
    strides = (rows * width if steps > 1 else 0, width if rows > 1 else 0, 1 if width > 1 else 0)
    return _plain(mask), strides


def _call(gradient: bool, problem: Problem, results: dict[str, Any], arrays: dict[str, Any]) -> None:
    p = problem
    if not (p.T and p.N):
        return
    mask, mask_stride = _mask(p)
    arrays |= {name: _plain(array) for name, array in results.items()}
    for name in _INPUTS:
        array = getattr(p, name)
        if array is not None:
            arrays[name] = _plain(array)
    if mask is not None:
        arrays["mask"] = mask
    if p.lengths is not None:
        arrays["lengths"] = _plain(np.asarray(p.lengths, np.int64))
    if p.resets is not None:
        arrays["resets"] = np.ascontiguousarray(p.resets).view(np.uint8)
    call = _native.read_call(
        gradient,
        _CELL_NUMBER[p.cell.name],
        p.activations,
        p.order,
        _DTYPES.get(p.dtype, _BFLOAT16),
        (p.T, p.N, p.I, p.H),
        p.backwards,
        mask_stride,
        arrays,
    )
    _native.run(call)
    made = [(name, array.shape, array.dtype) for name, array in results.items()]
    p.note = lambda operation, descriptor, given: _native.keep(operation, descriptor, given, call, made)


# The results of a call on NumPy arrays like one that was noted before (`Problem.note`); None if there was none.
again: Callable[[str, Any, dict[str, Any]], list[Any] | None] = _native.again if _native else lambda *_: None


def forward(problem: Problem) -> tuple[Any, Any, Any]:
    p = problem
    training = p.descriptor.training
    width = p.D * p.H
    results = {"state": np.empty((p.T, p.N, width), p.dtype)}
    if p.cell.has_cell and (training or p.descriptor.produce_cell):  # type: ignore[union-attr]
        results["cell"] = np.empty((p.T, p.N, width), p.dtype)
    if training:
        results["z_state"] = np.empty((p.T, p.N, p.G * width), p.dtype)
    _call(False, p, results, {})
    return results["state"], results.get("cell"), results.get("z_state")


def gradients(problem: Problem) -> dict[str, Any]:
    p = problem
    make = np.empty if p.T and p.N else np.zeros
    found = {name: make(getattr(p, name).shape, p.dtype) for name in _INPUTS if getattr(p, name) is not None}
    saved = {name: _plain(array) for name in _SAVED if (array := getattr(p, name)) is not None}
    _call(True, p, {f"d_{name}": array for name, array in found.items()}, saved)
    return found
