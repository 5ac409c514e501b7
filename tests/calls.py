"""Calls that several tests make, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from gatewise.checking import Case, sample
from gatewise.engines import ENGINES

OPERATIONS = ("lstm", "gru", "single_gate_rnn")
DESCRIPTOR = {"lstm": LSTMDescriptor, "gru": GRUDescriptor, "single_gate_rnn": SingleGateRNNDescriptor}
GATES = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}
SIXTEEN_BITS = ("float16", "bfloat16")


def cases_with(count: int, seed: int, **wanted: Any) -> list[Case]:
    """Sampled cases with some options set; a tuple is gone through in turn."""
    cases = []
    for case in sample(count, seed):
        chosen = {
            name: value[case.number % len(value)] if isinstance(value, tuple) else value for name, value in wanted.items()
        }
        cases.append(Case(case.number, seed, case.operation, case.options | chosen))
    return cases


def results_of(case: Case, engine: str, saved: Any = None) -> list[np.ndarray]:
    """Everything a case computes, forward and gradients, the gradients from the given saved values or the reference's."""
    forward = [result for result in ENGINES[engine].forward(case.problem(case.arguments)) if result is not None]
    gradients = ENGINES[engine].gradients(case.gradient_problem(*(saved or case.expected)))
    return forward + list(gradients.values())


def bits(arrays: list[Any]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


def simple_call(operation: str, T: int, N: int, I: int, H: int, bidirectional: bool = False) -> dict[str, Any]:  # noqa: E741
    """A forward training call with the arguments every operation has."""
    random = np.random.default_rng(1)
    G, D = GATES[operation], 2 if bidirectional else 1

    def make(*shape: int) -> np.ndarray:
        return random.uniform(-0.5, 0.5, shape).astype(np.float32)

    return {
        "source": make(T, N, I),
        "recurrent_weight": make(2, G * H, H) if bidirectional else make(G * H, H),
        "input_weight": make(D * G * H, I),
        "bias": make(D * G * H),
        "init_state": make(N, D * H),
        "descriptor": DESCRIPTOR[operation](training=True, bidirectional=bidirectional),
    }


def simple_gradients(operation: str, call: dict[str, Any], **more: Any) -> list[np.ndarray]:
    """The gradients after a simple call, of a loss that is the sum of all states."""
    results = getattr(gatewise, operation)(**call)
    given = call | {"source_gradient": np.ones_like(results[0]), "z_state": results[-1]} | more
    if operation == "lstm":
        given.setdefault("cell_output_fwd", results[1])
    if operation == "gru":
        given.setdefault("output_fwd", results[0])
    return getattr(gatewise, operation + "_gradients")(**given)
