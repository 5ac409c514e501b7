"""The six eager operations: check the arguments, hand them to an engine, give the results back in the caller's kind."""

from __future__ import annotations

from typing import Any

from .descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from .engines import engine_for, replay
from .problem import make_problem

Array = Any

# The order in which gradients are returned; those of arguments that were not given are left out.
_GRADIENT_ORDER = {
    "lstm": ("source", "recurrent_weight", "input_weight", "bias", "peephole", "init_state", "init_cell"),
    "gru": ("source", "recurrent_weight", "input_weight", "bias", "init_state", "secondary_bias"),
    "single_gate_rnn": ("source", "recurrent_weight", "input_weight", "bias", "init_state"),
}


def _forward(operation: str, default: type[Any], descriptor: Any, given: dict[str, Any]) -> list[Array]:
    known, key = replay.again(operation, descriptor, given)
    if known is not None:
        return known
    problem, kind = make_problem(operation, default, descriptor, given, gradient=False)
    training = problem.descriptor.training
    state, cell, z_state = engine_for(operation, kind.device).forward(problem)
    results = [state]
    if problem.cell.has_cell and (training or problem.descriptor.produce_cell):  # type: ignore[union-attr]
        results.append(cell)
    if training:
        results.append(z_state)
    replay.keep(key, problem, descriptor, given)
    return [kind.wrap(result) for result in results]


def _gradients(operation: str, default: type[Any], descriptor: Any, given: dict[str, Any]) -> list[Array]:
    known, key = replay.again(operation, descriptor, given)
    if known is not None:
        return known
    problem, kind = make_problem(operation, default, descriptor, given, gradient=True)
    found = engine_for(operation, kind.device).gradients(problem)
    replay.keep(key, problem, descriptor, given)
    return [kind.wrap(found[name]) for name in _GRADIENT_ORDER[problem.cell.operation] if name in found]


def lstm(
    source: Array,
    recurrent_weight: Array,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    init_cell: Array | None = None,
    mask: Array | None = None,
    peephole: Array | None = None,
    *,
    descriptor: LSTMDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """Run an LSTM over a sequence.

    With T steps, N rows, I features, H units; bidirectional shapes in parentheses:

    **Arguments**

    - `source`: `[T, N, I]`; without `input_weight` `[T, N, 4H]` (`[T, N, 8H]`).
    - `recurrent_weight`: `[4H, H]` (`[2, 4H, H]`), gates i, f, z, o, or i, z, f, o with `forget_gate_last`.
    - `input_weight`: `[4H, I]` (`[8H, I]`). `bias`: `[4H]` (`[8H]`). `peephole`: `[4H]` (`[2, 4H]`).
    - `init_state`, `init_cell`: `[N, H]` (`[N, 2H]`), zeros if left out.
    - `mask`: broadcasts to `[T, N, H]` (`[T, N, 2H]`); multiplies the state in the recurrent product only.
    - `lengths`: int `[N]`; row n takes part in its first `lengths[n]` steps. `resets`: bool `[T, N]`; where true the
      state and cell before that step are zero.

    **Returns** `[state]`, `[state, cell]` with `produce_cell`, `[state, cell, z_state]` with `training`; state and
    cell `[T, N, H]` (`[T, N, 2H]`), z_state the gate values `[T, N, 4H]` (`[T, N, 8H]`).
    """
    return _forward("lstm", LSTMDescriptor, descriptor, locals())


def lstm_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    cell_output_fwd: Array,
    *,
    state_gradient: Array | None = None,
    cell_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    init_cell: Array | None = None,
    mask: Array | None = None,
    peephole: Array | None = None,
    descriptor: LSTMDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """The gradients of `lstm`.

    `source_gradient` `[T, N, H]` is the gradient of its first result; `state_gradient` and `cell_gradient` `[N, H]`
    are those of the final state and cell; `cell_output_fwd` and `z_state` are its results with `training`; the rest
    as given to `lstm`.

    **Returns** the gradients of source, recurrent_weight, input_weight, bias, peephole, init_state and init_cell, in
    this order, leaving out those of arguments that were not given.
    """
    return _gradients("lstm_gradients", LSTMDescriptor, descriptor, locals())


def gru(
    source: Array,
    recurrent_weight: Array,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    secondary_bias: Array | None = None,
    *,
    descriptor: GRUDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """Run a GRU over a sequence.

    Shapes as for `lstm` with 3 gates: z, r, o, or r, z, o with `reset_gate_first`. `secondary_bias` `[H]` (`[2H]`) is
    added to the output gate's recurrent product and needs `reset_after`.

    **Returns** `[state]`, with `training` `[state, z_state]`; state `[T, N, H]` (`[T, N, 2H]`), z_state the gate values
    `[T, N, 3H]` (`[T, N, 6H]`).
    """
    return _forward("gru", GRUDescriptor, descriptor, locals())


def gru_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    output_fwd: Array,
    *,
    state_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    secondary_bias: Array | None = None,
    descriptor: GRUDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """The gradients of `gru`.

    `source_gradient` `[T, N, H]` is the gradient of its first result, `state_gradient` `[N, H]` that of the final
    state; `output_fwd` and `z_state` are its two results with `training`; the rest as given to `gru`.

    **Returns** the gradients of source, recurrent_weight, input_weight, bias, init_state and secondary_bias, in this
    order, leaving out those of arguments that were not given.
    """
    return _gradients("gru_gradients", GRUDescriptor, descriptor, locals())


def single_gate_rnn(
    source: Array,
    recurrent_weight: Array,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    *,
    descriptor: SingleGateRNNDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """Run a single-gate RNN over a sequence. Shapes as for `lstm` with one gate.

    **Returns** `[state]`, with `training` `[state, z_state]`, both `[T, N, H]` (`[T, N, 2H]`); z_state is the value
    before the activation.
    """
    return _forward("single_gate_rnn", SingleGateRNNDescriptor, descriptor, locals())


def single_gate_rnn_gradients(
    source: Array,
    recurrent_weight: Array,
    source_gradient: Array,
    z_state: Array,
    *,
    state_gradient: Array | None = None,
    input_weight: Array | None = None,
    bias: Array | None = None,
    init_state: Array | None = None,
    mask: Array | None = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    lengths: Array | None = None,
    resets: Array | None = None,
) -> list[Array]:
    """The gradients of `single_gate_rnn`; arguments as for `gru_gradients`.

    **Returns** the gradients of source, recurrent_weight, input_weight, bias and init_state, in this order, leaving
    out those of arguments that were not given.
    """
    return _gradients("single_gate_rnn_gradients", SingleGateRNNDescriptor, descriptor, locals())
