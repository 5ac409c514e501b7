"""The reference itself: its gradients against complex-step differences and against autograd of a torch loop."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from gatewise import reference
from gatewise.checking import Case, sample
from torch_loop import run

ARGUMENTS = ("source", "recurrent_weight", "input_weight", "bias", "peephole", "init_state", "init_cell", "secondary_bias")
BOUND = 1e-9


def float64_cases(count: int, seed: int) -> list[Case]:
    """Sampled cases in float64 that have steps and rows, and no sum that is exactly zero, where relu has its kink."""
    cases = []
    for case in sample(count, seed):
        o = case.options
        changed = {"dtype": "float64", "T": max(o["T"], 1), "N": max(o["N"], 1), "I": max(o["I"], 1)}
        cases.append(dataclasses.replace(case, options=o | changed | {"T": min(changed["T"], 8), "H": min(o["H"], 17)}))
    return cases


def loss_of(problem: Any, state: Any, cell: Any, z_state: Any, final_state: Any, final_cell: Any) -> Any:
    """The scalar whose gradient the gradient call computes."""
    total = (state * problem.source_gradient).sum()
    for result, gradient in (
        (z_state, problem.z_state_gradient),
        (cell, problem.cell_sequence_gradient),
        (final_state, problem.state_gradient),
        (final_cell, problem.cell_gradient),
    ):
        if gradient is not None:
            total = total + (result * gradient.reshape(result.shape)).sum()
    return total


def final_of(problem: Any, sequence: Any, initial: Any) -> Any:
    """The last value each row took, from the results over all steps; [N, D*H]."""
    p = problem
    lengths = np.full(p.N, p.T) if p.lengths is None else np.asarray(p.lengths, int)
    parts = sequence.reshape(p.T, p.N, p.D, p.H)
    start = np.zeros((p.N, p.D, p.H)) if initial is None else np.asarray(initial).reshape(p.N, p.D, p.H)
    final = np.zeros((p.N, p.D, p.H), np.result_type(sequence, start))
    for n in range(p.N):
        for k in range(p.D):
            last = 0 if p.backwards[k] else lengths[n] - 1
            final[n, k] = parts[last, n, k] if lengths[n] else start[n, k]
    return final.reshape(p.N, p.D * p.H)


def complex_step(problem: Any, name: str, direction: np.ndarray) -> float:
    """The derivative of the loss along a direction of one argument, without a difference that could cancel."""
    step = 1e-30
    moved = dataclasses.replace(problem, **{name: getattr(problem, name) + 1j * step * direction})
    state, cell, z_state = reference.forward(moved)
    final_state = final_of(moved, state, moved.init_state)
    final_cell = None if cell is None else final_of(moved, cell, moved.init_cell)
    return float(np.imag(loss_of(moved, state, cell, z_state, final_state, final_cell)) / step)


@pytest.mark.parametrize("part", range(4))
def test_gradients_equal_complex_step(part: int) -> None:
    for case in float64_cases(400, seed=11)[part::4]:
        problem = case.gradient_problem(*case.expected)
        found = reference.gradients(problem)
        assert set(found) == {name for name in ARGUMENTS if getattr(problem, name) is not None}
        random = np.random.default_rng(case.number)
        for name, gradient in found.items():
            direction = random.uniform(-1, 1, gradient.shape)
            terms = gradient * direction
            difference = abs(terms.sum() - complex_step(problem, name, direction))
            assert difference <= BOUND * np.abs(terms).sum(), f"{name} of {case}"


def autograd(case: Case, dtype: torch.dtype = torch.float64) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The torch loop's results, its gradients by name, and the gradient problem they belong to."""
    problem = case.gradient_problem(*case.expected)

    def tensor(array: Any) -> Any:
        if array is None:
            return None
        wide = np.array(array) if array.dtype.kind in "biu" else np.array(array, np.float64)
        return torch.from_numpy(wide).to(dtype) if wide.dtype.kind == "f" else torch.from_numpy(wide)

    given = {name: tensor(value) for name, value in case.arguments.items()}
    wanted = [name for name in ARGUMENTS if given.get(name) is not None]
    for name in wanted:
        given[name].requires_grad_()
    results = run(case.operation, case.descriptor, given)
    fields = ("source_gradient", "z_state_gradient", "cell_sequence_gradient", "state_gradient", "cell_gradient")
    weights = dataclasses.replace(problem, **{name: tensor(getattr(problem, name)) for name in fields})
    found = torch.autograd.grad(loss_of(weights, *results), [given[name] for name in wanted], allow_unused=True)
    gradients = {
        name: np.zeros(given[name].shape) if value is None else value.double().numpy()
        for name, value in zip(wanted, found, strict=True)
    }
    return results, gradients, problem


def close(found: Any, wanted: Any) -> bool:
    return found.shape == wanted.shape and np.abs(found - wanted).max(initial=0.0) <= BOUND * np.abs(wanted).max(initial=0.0)


@pytest.mark.parametrize("part", range(4))
def test_equals_torch_autograd(part: int) -> None:
    for case in float64_cases(400, seed=12)[part::4]:
        results, wanted, problem = autograd(case)
        for found, result in zip(case.expected, results[:3], strict=True):
            assert found is None or close(found, result.detach().numpy()), str(case)
        found = reference.gradients(problem)
        assert found.keys() == wanted.keys()
        for name in found:
            assert close(found[name], wanted[name]), f"{name} of {case}"


def test_slopes_are_zero_at_kinks() -> None:
    """relu at 0; hard sigmoid at its two corners."""
    from gatewise import RNNActivation, SingleGateRNNDescriptor, single_gate_rnn_gradients, use_engine

    for activation, z in (("RELU", 0.0), ("RELU", -0.0), ("HARD_SIGMOID", 2.5), ("HARD_SIGMOID", -2.5)):
        at = np.full((1, 1, 1), z)
        with use_engine("reference"):
            source, recurrent = single_gate_rnn_gradients(
                at,
                np.ones((1, 1)),
                np.ones((1, 1, 1)),
                at,
                init_state=None,
                descriptor=SingleGateRNNDescriptor(activation=RNNActivation[activation]),
            )
        assert source.item() == 0.0, activation
        assert recurrent.item() == 0.0, activation
