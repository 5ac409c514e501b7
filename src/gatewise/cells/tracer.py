"""Prints the cells' Python maths as the C++/CUDA headers in native/cells.

    python -m gatewise.cells.tracer native/cells          # write
    python -m gatewise.cells.tracer native/cells --check  # fail if a header is not current

The maths runs once on symbols that record what is done to them; the record is printed as straight-line code over a
value type `V`, which the engines choose (a vector of floats on the CPU, a float on the GPU).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from . import CELLS
from .activations import ACTIVATE, NAMES, SLOPE
from .cell import Cell, Maths

_HEADER = "// Emitted from src/gatewise/cells by `python -m gatewise.cells.tracer`. Do not edit.\n#pragma once\n"
_PER_GATE = {"x", "u", "p", "gate", "dgate", "du", "dx"}


class _Trace:
    """Straight-line code in order of creation; equal expressions are computed once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._known: dict[str, Symbol] = {}

    def symbol(self, expression: str, kind: str = "V") -> Symbol:
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = Symbol(self, f"t{len(self._known)}")
            self.lines.append(f"const {'auto' if kind == 'mask' else 'V'} {known.text} = {expression};")
        return known

    def text(self, value: Any) -> str:
        return value.text if isinstance(value, Symbol) else f"V({float(value)!r})"


class Symbol:
    """A value of type V in the traced code."""

    def __init__(self, trace: _Trace, text: str) -> None:
        self.trace = trace
        self.text = text

    def _binary(self, sign: str, other: Any, swapped: bool = False, kind: str = "V") -> Symbol:
        left, right = self.trace.text(self), self.trace.text(other)
        if swapped:
            left, right = right, left
        return self.trace.symbol(f"{left} {sign} {right}", kind)

    def __add__(self, other: Any) -> Symbol:
        return self._binary("+", other)

    def __radd__(self, other: Any) -> Symbol:
        return self._binary("+", other, swapped=True)

    def __sub__(self, other: Any) -> Symbol:
        return self._binary("-", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._binary("-", other, swapped=True)

    def __mul__(self, other: Any) -> Symbol:
        return self._binary("*", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._binary("*", other, swapped=True)

    def __lt__(self, other: Any) -> Symbol:
        return self._binary("<", other, kind="mask")

    def __gt__(self, other: Any) -> Symbol:  # Python's spelling of `constant < symbol`
        return self._binary("<", other, swapped=True, kind="mask")


class _Ops:
    """The functions the activations are written with."""

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace

    def tanh(self, x: Symbol) -> Symbol:
        return self._trace.symbol(f"tanh({x.text})")

    def sigmoid(self, x: Symbol) -> Symbol:
        return self._trace.symbol(f"sigmoid({x.text})")

    def select(self, condition: Symbol, a: Any, b: Any) -> Symbol:
        return self._trace.symbol(f"select({condition.text}, {self._trace.text(a)}, {self._trace.text(b)})")

    def ones_like(self, x: Symbol) -> float:
        return 1.0


class _PerGate(list[Any]):
    """A per-gate field: reads of what was not written are inputs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.written: dict[int, Any] = {}

    def __getitem__(self, gate: Any) -> Any:
        return self.written[gate] if gate in self.written else self.inputs[gate]

    def __setitem__(self, gate: Any, value: Any) -> None:
        self.written[gate] = value

    def __iter__(self) -> Any:
        return iter([self[gate] for gate in range(len(self.inputs))])

    inputs: list[Symbol]


class _TracedValues:
    """The `Values` object handed to the maths: attributes read are inputs, attributes set are results."""

    _trace: _Trace

    def __init__(self, trace: _Trace, gates: int) -> None:
        object.__setattr__(self, "_trace", trace)
        object.__setattr__(self, "_gates", gates)
        object.__setattr__(self, "results", {})
        object.__setattr__(self, "per_gate", {})

    def __getattr__(self, name: str) -> Any:
        if name in self.results:
            return self.results[name]
        if name not in _PER_GATE:
            return Symbol(self._trace, f"v.{name}")
        if name not in self.per_gate:
            field = self.per_gate[name] = _PerGate(name)
            field.inputs = [Symbol(self._trace, f"v.{name}[{g}]") for g in range(self._gates)]
        return self.per_gate[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PER_GATE:
            for gate, each in enumerate(value):
                getattr(self, name)[gate] = each
        else:
            self.results[name] = value

    def activate(self, k: int, x: Symbol) -> Symbol:
        return self._trace.symbol(f"act.template activate<{k}>({x.text})")

    def slope(self, k: int, y: Symbol) -> Symbol:
        return self._trace.symbol(f"act.template slope<{k}>({y.text})")


def _needed(lines: list[str], results: list[str]) -> list[str]:
    """The lines that some result depends on, and the results."""
    kept = list(results)
    used = set(re.findall(r"\bt\d+\b", " ".join(results)))
    for line in reversed(lines):
        name, expression = line.split(" = ", 1)
        if name.split()[-1] in used:
            used |= set(re.findall(r"\bt\d+\b", expression))
            kept.insert(0, line)
    return kept


def _maths(cell: Cell, maths: Maths, signature: str) -> list[str]:
    trace = _Trace()
    values = _TracedValues(trace, len(cell.gates))
    maths(values)
    results = []
    for name, field in values.per_gate.items():
        if name == "dx" and not cell.dx_differs:
            continue  # the same numbers as du
        results += [f"v.{name}[{gate}] = {trace.text(value)};" for gate, value in sorted(field.written.items())]
    results += [f"v.{name} = {trace.text(value)};" for name, value in values.results.items()]
    body = "\n".join(f"    {line}" for line in _needed(trace.lines, results))
    return [f"  {signature} {{\n{body}\n  }}"]


def _function(name: str, values: str) -> str:
    return f"template <class V, class Act>\n  GATEWISE_CELL static void {name}(const Act& act, {values}& v)"


def cell_source(cell: Cell) -> str:
    """The C++ type of one cell."""
    gates = len(cell.gates)
    functions = []
    for direction, values in (("forward", f"Forward<V, {gates}>"), ("gradient", f"Gradient<V, {gates}>")):
        for number, phase in enumerate(cell.phases):
            maths = getattr(phase, direction)
            functions += _maths(cell, maths, _function(f"{direction}{number}", values))
        functions += _dispatch(direction, values, len(cell.phases))
        if direction == "forward":
            reads_state = re.search(r"\bv\.h\b", "".join(functions)) is not None
    restore = "" if cell.restore is None else _maths(cell, cell.restore, _function("restore", f"Gradient<V, {gates}>"))[0]
    constants = {
        "int gates": gates,
        "int phases": len(cell.phases),
        "int activations": len(cell.activations),
        "bool has_cell": cell.has_cell,
        "bool peephole": cell.peephole,
        "bool needs_product": cell.needs_product,
        "bool dx_differs": cell.dx_differs,
        "bool output_sees_new_cell": cell.output_sees_new_cell,
        "bool reads_state": reads_state,
        "bool restores_state": cell.restore is not None,
    }
    lines = [f"// {cell.operation}: gates {', '.join(cell.gates)}", f"struct {cell.name} {{"]
    lines += [f"  static constexpr {name} = {str(value).lower()};" for name, value in constants.items()]
    firsts = ", ".join(str(phase.gates[0]) for phase in cell.phases)
    counts = ", ".join(str(len(phase.gates)) for phase in cell.phases)
    lines += [f"  static constexpr int first_gate[] = {{{firsts}}};", f"  static constexpr int gate_count[] = {{{counts}}};"]
    defaults = ", ".join(str(code) for code in cell.default_activations)
    restored = ", ".join(str(f"v.gate[{gate}]" in restore).lower() for gate in range(gates))
    lines += [f"  static constexpr bool restored_from[] = {{{restored}}};"]
    lines += [f"  using Default = FixedActivations<{defaults}>;", "", *functions]
    lines += [restore] if restore else []
    lines += ["};", ""]
    return "\n".join(lines)


def _dispatch(direction: str, values: str, phases: int) -> list[str]:
    """One entry for drivers that loop over phases at compile time."""
    calls = [f"    if constexpr (PHASE == {number}) {direction}{number}(act, v);" for number in range(phases)]
    head = f"  GATEWISE_CELL static void {direction}(const Act& act, {values}& v) {{"
    return ["  template <int PHASE, class V, class Act>", head, *calls, "  }"]


def activations_source() -> str:
    """The activations and slopes as function templates over the activation's code."""
    lines = []
    for name, argument, formulas in (("activate", "x", ACTIVATE), ("slope", "y", SLOPE)):
        lines += ["template <int CODE, class V>", f"GATEWISE_CELL V {name}(const V& {argument}) {{"]
        for code, formula in enumerate(formulas):
            trace = _Trace()
            result = trace.text(formula(_Ops(trace), Symbol(trace, argument)))
            keyword = "if" if code == 0 else "} else if"
            lines += [f"  {keyword} constexpr (CODE == {code}) {{  // {NAMES[code]}"]
            lines += [f"    {line}" for line in trace.lines] + [f"    return {result};"]
        lines += ["  }", "}", ""]
    return "\n".join(lines)


def headers() -> dict[str, str]:
    """Every emitted header by file name."""
    opening, closing = "namespace gatewise {\n\n", "\n}  // namespace gatewise\n"
    activations = f'{_HEADER}#include "values.h"\n\n{opening}{activations_source()}{closing}'
    cells = "\n".join(cell_source(cell) for cell in CELLS)
    listed = "  ".join(f"CELL({number}, {cell.name})" for number, cell in enumerate(CELLS))
    listing = f"// Every cell with its number.\n#define GATEWISE_CELLS(CELL) {listed}\n"
    listing += f"#define GATEWISE_CELL_COUNT {len(CELLS)}\n"
    body = f'{_HEADER}#include "activations.h"\n\n{opening}{cells}{closing}\n{listing}'
    return {"activations.h": activations, "cells.h": body}


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    stale = []
    for name, text in headers().items():
        path = folder / name
        if "--check" in arguments:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
        else:
            path.write_text(text)
    if stale:
        print(f"not current: {', '.join(stale)}; run python -m gatewise.cells.tracer {folder}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
