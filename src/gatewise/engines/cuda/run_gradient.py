"""A gradient call: what multiplied R, the steps from the last to the first, then the products over all steps."""

from __future__ import annotations

from typing import Any

from ...device_arrays import DeviceArray
from ...problem import Problem
from . import driver, kernels
from .call import Call
from .products import Matrix
from .steps import Steps
from .tiling import ceil_div

_ARGUMENTS = (
    "source", "recurrent_weight", "input_weight", "bias", "peephole", "init_state", "init_cell", "secondary_bias",
)  # fmt: skip


def gradients(problem: Problem) -> dict[str, Any]:
    call = Call(problem, backward=True)
    p = call.problem
    results = {name: call.result(getattr(p, name).shape) for name in _ARGUMENTS if getattr(p, name) is not None}
    if call.rows == 0:
        for result in results.values():
            call.clear(result.pointer, result.size * result.dtype.itemsize)
    else:
        _Gradient(call, results).run()
    call.finish()
    return results


class _Gradient:
    """The parts of one gradient call, in the order they run."""

    def __init__(self, call: Call, results: dict[str, DeviceArray]) -> None:
        self.call = call
        self.results = results
        p = self.p = call.problem
        self.size = p.dtype.itemsize
        self.values = call.common_arguments()
        self.values.update(
            state=call.plain(p.output),
            cell=call.plain(p.cell_output),
            z_state=call.plain(p.z_state),
            source_gradient=call.plain(p.source_gradient),
            state_gradient=call.plain(p.state_gradient),
            cell_gradient=call.plain(p.cell_gradient),
            cell_sequence_gradient=call.plain(p.cell_sequence_gradient),
            z_state_gradient=call.plain(p.z_state_gradient),
        )
        for name in ("init_state", "init_cell"):
            if name in results:
                self.values[f"{name}_gradient"] = results[name].pointer
        self.around = call.prepared.once("around", lambda: kernels.module(call.index, "around.cu", call.macros()))

    def run(self) -> None:
        self.operands()
        self.steps()
        self.weights()
        self.sums()

    def operands(self) -> None:
        """What multiplied R at every step; and the product again, where the cell's gradient needs it."""
        call, p = self.call, self.p
        for phase in range(len(p.cell.phases)):
            self.values[f"operand{phase}"] = call.scratch(call.rows * p.D * call.HP)
        call.launch(driver.Launch(self.around["operands"], (kernels.BLOCKS, 1, 1), 256), kernels.arguments(self.values))
        if not p.cell.needs_product:
            return
        product = self.values["product"] = call.scratch(call.rows * p.D * p.H)
        for d in range(p.D):
            rows_of_gate = (d * p.G + p.order[-1]) * p.H
            call.product(
                (call.rows, p.H, p.H),
                Matrix(self.values["operand0"] + d * call.HP * self.size, p.D * call.HP),
                Matrix(self.values["recurrent_weight"] + rows_of_gate * p.H * self.size, p.H, transposed=True),
                Matrix(product + d * p.H * self.size, p.D * p.H),
            )

    def steps(self) -> None:
        call, p, tiling = self.call, self.p, self.call.plan.tiling
        packed_width = call.HP == p.H
        serves_as_source = p.input_weight is None and packed_width and not p.cell.dx_differs
        source = self.results["source"].pointer
        self.values["du"] = source if serves_as_source else call.scratch(call.rows * p.D * p.G * call.HP)
        if p.input_weight is None and not serves_as_source:
            self.values["dx"] = source
        elif p.cell.dx_differs:
            self.values["dx"] = call.scratch(call.rows * p.D * p.G * p.H)
        if tiling is not None:
            call.run_persistent(self.values)
            return
        steps = Steps(call, self.values)
        last = len(p.cell.phases) - 1
        for step in range(p.T - 1, -1, -1):
            if step + 1 < p.T:
                steps.gradient_product(0, step + 1)
            steps.launch(f"gradient_step{last}", step)
            for phase in range(last - 1, -1, -1):
                steps.gradient_product(phase + 1, step)
                steps.launch(f"gradient_step{phase}", step)
        if p.init_state is not None or p.init_cell is not None:
            steps.gradient_product(0, 0)
            steps.launch("gradient_end")

    def weights(self) -> None:
        """The gradients of R, W and the source."""
        call, p = self.call, self.p
        du_pitch = p.D * p.G * call.HP
        for d in range(p.D):
            for phase, each in enumerate(p.cell.phases):
                operand = Matrix(self.values[f"operand{phase}"] + d * call.HP * self.size, p.D * call.HP)
                for first, count in self._runs([p.order[g] for g in each.gates]):
                    column = (d * p.G + first) * call.HP
                    call.product(
                        (count * p.H, p.H, call.rows),
                        Matrix(self.values["du"] + column * self.size, du_pitch, transposed=True),
                        operand,
                        Matrix(self._row("recurrent_weight", (d * p.G + first) * p.H, p.H), p.H),
                    )
        if p.input_weight is None or p.I == 0:
            return
        if "dx" in self.values:
            dx, unit_pitch = self.values["dx"], p.H
        else:
            dx, unit_pitch = self.values["du"], call.HP
        pitch = p.D * p.G * unit_pitch
        source = Matrix(call.plain(p.source, lengths=p.lengths is not None), p.I)
        gates = p.D * p.G
        whole = unit_pitch == p.H
        for gate in range(1 if whole else gates):
            call.product(
                (gates * p.H if whole else p.H, p.I, call.rows),
                Matrix(dx + gate * unit_pitch * self.size, pitch, transposed=True),
                source,
                Matrix(self._row("input_weight", gate * p.H, p.I), p.I),
            )
        weight = call.plain(p.input_weight)
        if not whole:  # zero rows where dx has padding
            padded = call.scratch(gates * unit_pitch * p.I)
            call.clear(padded, gates * unit_pitch * p.I * self.size)
            call.copy(weight, padded, (gates, p.H, p.I), (p.H * p.I, p.I, 1), (unit_pitch * p.I, p.I))
            weight = padded
        result = Matrix(self.results["source"].pointer, p.I)
        call.product((call.rows, p.I, pitch), Matrix(dx, pitch), Matrix(weight, p.I), result)

    def sums(self) -> None:
        """The gradients that are sums over all rows: bias, peephole, secondary bias."""
        call, p = self.call, self.p
        names = ("bias", "peephole", "secondary_bias")
        which = sum(1 << place for place, name in enumerate(names) if name in self.results)
        if not which:
            return
        columns = p.D * p.G * p.H
        width = 2 * columns + p.D * p.H
        blocks = ceil_div(columns, 32 * kernels.units_at_once(p.H, call.HP, call.dtype))
        shares = max(1, min(ceil_div(kernels.BLOCKS, blocks), ceil_div(call.rows, 32)))  # of all rows, one for a block
        partial = call.scratch(shares * width, call.sum_dtype)
        row = kernels.arguments(self.values)
        call.launch(driver.Launch(self.around["column_sums"], (blocks, shares, 1), 256), row, (partial,), (which,))
        pointers = [self.results[name].pointer if name in self.results else 0 for name in names]
        launch = driver.Launch(self.around["finish_sums"], (ceil_div(width, 32), 1, 1), 256)
        call.launch(launch, row, *[(value,) for value in (partial, shares, *pointers)])

    def _row(self, name: str, row: int, width: int) -> int:
        return self.results[name].pointer + row * width * self.size

    def _runs(self, slots: list[int]) -> list[tuple[int, int]]:
        """A phase's gates as runs of rows one product can cover: all of them, or one by one where du has padding."""
        if self.call.HP == self.p.H:
            return [(min(slots), len(slots))]
        return [(slot, 1) for slot in slots]
