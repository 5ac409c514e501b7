"""The kernels of a call: macros, compilation, and the row of arguments they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...cells import Cell
from ...problem import Problem
from . import driver
from .compiler import cubin
from .tiling import Tiling, ceil_div
from .wide_tiling import WideTiling

ELEMENTS = {"float32": "Float", "float16": "Float16", "bfloat16": "Bfloat16", "float64": "Double"}
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
BLOCKS = 1056  # of a launch that keeps every multiprocessor busy, whatever its size

# The fields of `Arguments` in native/cuda/problem.cuh, in order; each is 8 bytes wide.
FIELDS = (
    "T", "N", "D", "backwards",
    "x", "bias", "peephole", "secondary_bias", "init_state", "init_cell",
    "mask", "mask_t", "mask_n", "mask_k",
    "lengths", "lengths_type", "lengths_stride", "resets", "resets_t", "resets_n",
    "recurrent_weight", "weights", "look_after", "exchange", "counters", "parts",
    "state", "cell", "z_state", "operand0", "operand1", "carry", "sums",
    "source_gradient", "state_gradient", "cell_gradient", "cell_sequence_gradient", "z_state_gradient",
    "product", "du", "dx", "init_state_gradient", "init_cell_gradient",
)  # fmt: skip
_NULLS = dict.fromkeys(FIELDS, 0)


def arguments(values: dict[str, int]) -> tuple[int, ...]:
    """`Arguments` as a row of integers; fields that are not named are null."""
    return tuple((_NULLS | values).values())


def units_at_once(H: int, HP: int, dtype: str) -> int:
    """Neighbouring units a thread takes at a time before and after the steps (native/cuda/around.cu): 16 bytes if H allows."""
    whole = 16 // ELEMENT_BYTES[dtype]
    return whole if H % whole == 0 and HP % whole == 0 else 1


def macros(
    cell: Cell, activations: tuple[int, ...], order: tuple[int, ...], dtype: str, input_dtype: str, H: int, HP: int
) -> dict[str, str]:
    """What every kernel that knows the cell is compiled with."""
    found = {
        "GATEWISE_CELL_NAME": cell.name,
        "GATEWISE_ACTIVATIONS": ",".join(map(str, activations)),
        "GATEWISE_SLOTS": ",".join(map(str, order)),
        "GATEWISE_ELEMENT": ELEMENTS[dtype],
        "GATEWISE_INPUT_ELEMENT": ELEMENTS[input_dtype],
        "GATEWISE_H": str(H),
        "GATEWISE_HP": str(HP),
        "GATEWISE_UNITS_AT_ONCE": str(units_at_once(H, HP, dtype)),
    }
    if dtype in ("float16", "bfloat16"):
        found["GATEWISE_FAST_EXP"] = "1"
    return found


# Optional arguments the persistent kernels are compiled for, in the order of `Option` in native/cuda/problem.cuh.
_OPTIONS = ("bias", "mask", "lengths", "resets", "z_state_gradient", "cell_sequence_gradient")


def options(problem: Problem, backward: bool) -> int:
    """A bit for each of them that the call has."""
    taken = _OPTIONS[1:] if backward else _OPTIONS[:4]
    return sum(1 << _OPTIONS.index(name) for name in taken if getattr(problem, name) is not None)


def tiling_macros(tiling: Tiling | WideTiling, given: int) -> dict[str, str]:
    common = {
        "GATEWISE_FAST_EXP": "1",  # products here are not more exact than these
        "GATEWISE_OPTIONS": str(given),
        "GATEWISE_SMALL_STEPS": "1",
        "GATEWISE_SHARED_BYTES": str(tiling.shared_bytes),
    }
    return common | tiling.macros()


@dataclass(frozen=True)
class StepsCut:
    """How the per-step kernels (native/cuda/steps.cu) divide a call of these sizes."""

    cell: Cell
    N: int
    H: int
    D: int
    backward: bool

    @property
    def split(self) -> bool:
        """Whether a gradient product leaves the sums of its gates apart: it is long, and its result alone would not keep the
        GPU busy. Otherwise cuBLAS would divide it and add up the parts in a launch of its own."""
        return self.backward and ceil_div(self.N, 128) * ceil_div(self.H, 128) < 64

    def macros(self, given: int) -> dict[str, str]:
        found = {
            "GATEWISE_OPTIONS": str(given),
            "GATEWISE_SPLIT": str(int(self.split)),
        }
        if self.N * self.D * len(self.cell.gates) * self.H < 2**31:
            found["GATEWISE_SMALL_STEPS"] = "1"
        return found


_modules: dict[tuple[Any, ...], driver.Module] = {}


def module(index: int, file: str, given: dict[str, str]) -> driver.Module:
    """A source file compiled with these macros and loaded on GPU `index`. Two threads may both load it: harmless."""
    key = (index, file, tuple(given.items()))
    found = _modules.get(key)
    if found is None:
        architecture = driver.device(index).architecture
        found = _modules[key] = driver.Module(cubin(file, given, architecture))
    return found


def array_macros(dtype: str, result_dtype: str | None = None) -> dict[str, str]:
    return {"GATEWISE_ELEMENT": ELEMENTS[dtype], "GATEWISE_RESULT_ELEMENT": ELEMENTS[result_dtype or dtype]}


def array_kernels(index: int, dtype: str, result_dtype: str | None = None) -> driver.Module:
    """Copies, and products whose result may be of another type."""
    return module(index, "arrays.cu", array_macros(dtype, result_dtype))


def persistent_launches(
    loaded: driver.Module, tiling: Tiling | WideTiling, directions: int
) -> tuple[driver.Launch, driver.Launch]:
    """The two launches of a persistent kernel: pack the weights, then run all steps."""
    run = driver.Launch(
        loaded["run"],
        (tiling.groups * tiling.blocks * directions, 1, 1),
        tiling.threads,
        shared_bytes=tiling.shared_bytes,
        cooperative=tiling.cooperative,
        cluster=tiling.cluster,
    )
    return driver.Launch(loaded["pack"], (264, 1, 1), 256), run
