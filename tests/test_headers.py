"""The emitted headers: current, the same numbers as the Python maths in C++, and CUDA without a change."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gatewise.cells import CELLS, Cell, tracer
from gatewise.cells.activations import ACTIVATE, NAMES, SLOPE

ROOT = Path(__file__).parent.parent
HEADERS = ROOT / "native" / "cells"
ROWS = 40


def test_headers_are_current() -> None:
    assert tracer.main([str(HEADERS), "--check"]) == 0


def test_check_notices_a_stale_header(tmp_path: Path) -> None:
    shutil.copytree(HEADERS, tmp_path / "cells")
    assert tracer.main([str(tmp_path / "cells"), "--check"]) == 0
    header = tmp_path / "cells" / "cells.h"
    header.write_text(header.read_text().replace("t3 * v.c", "t3 + v.c", 1))
    assert tracer.main([str(tmp_path / "cells"), "--check"]) == 1
    header.unlink()
    assert tracer.main([str(tmp_path / "cells"), "--check"]) == 1
    assert tracer.main([str(tmp_path / "cells")]) == 0
    assert header.read_text() == (HEADERS / "cells.h").read_text()


def test_tables_are_current() -> None:
    """Number by number: the last digit of a fit may differ from one numpy to the next."""
    module = runpy.run_path(str(ROOT / "native" / "cpu" / "tables.py"))
    powers, tanh = (ROOT / "native" / "cpu" / "tables.h").read_text().split("tanh_table")
    assert [int(each, 16) for each in re.findall(r"0x\w+", powers)] == module["powers"]()
    assert f"tanh_scale = {module['SCALE']}f" in powers
    kept = np.array([float(each) for each in re.findall(r"(-?[\d.]+(?:e-\d+)?)f", tanh)])
    np.testing.assert_allclose(kept, module["tanh_table"]().ravel(), rtol=1e-5)


# What the structs of values.h hold: inputs first, then results, per-gate fields with their number of gates.
FORWARD = (("x", "u", "p"), ("h", "c", "m", "b2"), ("gate",), ("operand", "h_next", "c_next"))
GRADIENT = (
    ("gate", "dgate", "p"),
    ("h", "c", "c_next", "m", "q", "dh", "dc", "e"),
    ("du", "dx"),
    ("h_prev", "c_prev", "operand", "h_next"),
)


def harness() -> str:
    """A C++ program: for every cell and every set of activations, reads the inputs of each function and prints results."""
    lines = [
        "#include <cmath>",
        "#include <cstdio>",
        "#include <cstdlib>",
        "struct Value { double x; Value() : x(0) {} Value(double y) : x(y) {} };",
        "inline Value operator+(Value a, Value b) { return a.x + b.x; }",
        "inline Value operator-(Value a, Value b) { return a.x - b.x; }",
        "inline Value operator*(Value a, Value b) { return a.x * b.x; }",
        "inline bool operator<(Value a, Value b) { return a.x < b.x; }",
        "inline Value tanh(Value a) { return std::tanh(a.x); }",
        "inline Value sigmoid(Value a) { return 1 / (1 + std::exp(-a.x)); }",
        "inline Value select(bool m, Value a, Value b) { return m ? a : b; }",
        '#include "cells.h"',
        "using namespace gatewise;",
        'static double in() { double x; if (std::scanf("%lf", &x) != 1) std::abort(); return x; }',
        'static void out(Value v) { std::printf("%.17g\\n", v.x); }',
        "int main() {",
    ]
    for cell in CELLS:
        G = len(cell.gates)
        for codes in activation_sets(cell):
            act = f"FixedActivations<{', '.join(map(str, codes))}>"
            for struct, fields, calls in functions(cell):
                lines.append(f"  for (int row = 0; row < {ROWS}; ++row) {{ {act} act; {struct}<Value, {G}> v;")
                lines += [f"    for (int g = 0; g < {G}; ++g) v.{name}[g] = in();" for name in fields[0]]
                lines += [f"    v.{name} = in();" for name in fields[1]]
                lines += [f"    {cell.name}::{call}(act, v);" for call in calls]
                lines += [f"    for (int g = 0; g < {G}; ++g) out(v.{name}[g]);" for name in fields[2]]
                lines += [f"    out(v.{name});" for name in fields[3]]
                lines.append("  }")
    return "\n".join([*lines, "}", ""])


def activation_sets(cell: Cell) -> list[tuple[int, ...]]:
    """The default set, and sets that between them give every gate every activation."""
    count = len(cell.activations)
    return [cell.default_activations, *(tuple((shift + k) % 5 for k in range(count)) for shift in range(5))]


def functions(cell: Cell) -> list[tuple[str, Any, list[str]]]:
    """(struct, its fields, functions called in order) of a cell: forward, gradient, restore."""
    phases = range(len(cell.phases))
    found = [
        ("Forward", FORWARD, [f"forward<{phase}>" for phase in phases]),
        ("Gradient", GRADIENT, [f"gradient<{phase}>" for phase in reversed(phases)]),
    ]
    return [*found, ("Gradient", GRADIENT, ["restore"])] if cell.restore else found


class _Numbers:
    tanh = staticmethod(np.tanh)
    select = staticmethod(np.where)
    ones_like = staticmethod(np.ones_like)

    @staticmethod
    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))


def python_results(cell: Cell, codes: tuple[int, ...], call: str, fields: Any, inputs: np.ndarray) -> np.ndarray:
    """The same functions on the Python maths; what a function does not write stays zero."""
    G = len(cell.gates)
    v = SimpleNamespace(activate=lambda k, x: ACTIVATE[codes[k]](_Numbers, x), slope=lambda k, y: SLOPE[codes[k]](_Numbers, y))
    columns = iter(inputs.T)
    for name in fields[0]:
        setattr(v, name, [next(columns) for _ in range(G)])
    for name in fields[1]:
        setattr(v, name, next(columns))
    zeros = np.zeros(len(inputs))
    for name in fields[2]:
        setattr(v, name, getattr(v, name, [zeros] * G))
    for name in fields[3]:
        setattr(v, name, getattr(v, name, zeros))
    if call == "restore":
        assert cell.restore is not None
        cell.restore(v)
    else:
        for phase in cell.phases if call == "forward" else cell.phases[::-1]:
            getattr(phase, call)(v)
    if not cell.dx_differs and hasattr(v, "dx"):
        v.dx = [zeros] * G  # the header leaves dx out where it is du
    per_gate = [each for name in fields[2] for each in getattr(v, name)]
    return np.stack(np.broadcast_arrays(zeros, *per_gate, *(getattr(v, name) for name in fields[3]))[1:], 1)


def test_cpp_gives_the_python_numbers(tmp_path: Path) -> None:
    source, program = tmp_path / "harness.cpp", tmp_path / "harness"
    source.write_text(harness())
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-ffp-contract=off", f"-I{HEADERS}"]
    subprocess.run([*command, str(source), "-o", str(program)], check=True)
    random = np.random.default_rng(3)
    asked = []
    for cell in CELLS:
        for codes in activation_sets(cell):
            for _, fields, calls in functions(cell):
                width = len(cell.gates) * len(fields[0]) + len(fields[1])
                asked.append((cell, codes, calls[0].partition("<")[0], fields, random.uniform(-3, 3, (ROWS, width))))
    text = "\n".join(f"{number:.17g}" for *_, inputs in asked for number in inputs.ravel())
    answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout
    numbers = iter(np.array(answer.split(), np.float64))
    for cell, codes, call, fields, inputs in asked:
        wanted = python_results(cell, codes, call, fields, inputs)
        found = np.array([next(numbers) for _ in range(wanted.size)]).reshape(wanted.shape)
        assert np.abs(found - wanted).max() <= 1e-12 * max(1.0, np.abs(wanted).max()), f"{cell.name} {call} with {codes}"
    assert next(numbers, None) is None


CUDA = """
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ inline float select(bool m, float a, float b) { return m ? a : b; }
#include "cells.h"
template <class Cell>
__device__ void run(float* memory) {
  typename Cell::Default act;
  gatewise::Forward<float, Cell::gates> forward;
  gatewise::Gradient<float, Cell::gates> gradient;
  forward = *reinterpret_cast<decltype(forward)*>(memory);
  gradient = *reinterpret_cast<decltype(gradient)*>(memory);
  Cell::template forward<0>(act, forward);
  if constexpr (Cell::phases == 2) Cell::template forward<1>(act, forward);
  if constexpr (Cell::phases == 2) Cell::template gradient<1>(act, gradient);
  Cell::template gradient<0>(act, gradient);
  if constexpr (Cell::restores_state) Cell::restore(act, gradient);
  memory[threadIdx.x] = forward.h_next + gradient.h_prev;
}
#define KERNEL(NUMBER, NAME) extern "C" __global__ void kernel##NUMBER(float* memory) { run<gatewise::NAME>(memory); }
GATEWISE_CELLS(KERNEL)
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_compiles_as_cuda(architecture: str) -> None:
    """Through NVRTC, which needs no GPU."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(std="c++17", arch=architecture, include_path=str(HEADERS))
    binary = Program(CUDA, "c++", options).compile("cubin")
    assert len(binary.code) > 1000
    for number in range(len(CELLS)):
        assert f"kernel{number}".encode() in binary.code


def test_every_activation_has_a_name() -> None:
    assert len(ACTIVATE) == len(SLOPE) == len(NAMES) == 5
