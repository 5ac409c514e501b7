"""The recurrent operations in a graph: results, gradients through every result, whole models against torch."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch

import gatewise
from gatewise import Graph, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from gatewise.checking import tolerance
from gatewise.graph.place import to_numpy
from graph_helper import KINDS, TYPES, assert_close
from graph_whole import check_whole
from torch_loop import run as torch_run

T, N, I, H = 6, 3, 4, 5  # noqa: E741
GATES = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}
DESCRIPTORS = {"lstm": LSTMDescriptor, "gru": GRUDescriptor, "single_gate_rnn": SingleGateRNNDescriptor}
CASES = [
    (operation, descriptor)
    for operation in GATES
    for descriptor in (
        DESCRIPTORS[operation](),
        DESCRIPTORS[operation](bidirectional=True),
        *((GRUDescriptor(reset_after=True, reverse=True),) if operation == "gru" else ()),
        *((LSTMDescriptor(output_peephole="current", forget_gate_last=True),) if operation == "lstm" else ()),
    )
]


def make_arguments(operation: str, descriptor, everything: bool = True) -> dict[str, np.ndarray]:
    """Every argument the operation takes, in float64."""
    rng = np.random.default_rng(3)
    D, rows = 2 if descriptor.bidirectional else 1, GATES[operation] * H

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) * 0.5

    arguments = {
        "source": normal(T, N, I),
        "recurrent_weight": normal(2, rows, H) if D == 2 else normal(rows, H),
        "input_weight": normal(D * rows, I),
    }
    if everything:
        arguments |= {"bias": normal(D * rows), "init_state": normal(N, D * H), "mask": normal(T, 1, D * H)}
        arguments |= {"lengths": np.array([T, 2, 4]), "resets": rng.random((T, N)) < 0.2}
        if operation == "lstm":
            arguments |= {"init_cell": normal(N, D * H), "peephole": normal(2, 4 * H) if D == 2 else normal(4 * H)}
        if operation == "gru" and descriptor.reset_after:
            arguments["secondary_bias"] = normal(D * H)
    return arguments


def place_arguments(graph: Graph, arguments: dict[str, np.ndarray], hidden: bool = False):
    """A placeholder for each; `hidden` hides T and N."""
    per_step = ("source", "resets", "mask")
    tensors = {}
    for name, array in arguments.items():
        shape = list(array.shape)
        if hidden and name in per_step:
            shape[:2] = [None, None]
        elif hidden and name in ("init_state", "init_cell", "lengths"):
            shape[0] = None
        tensors[name] = graph.placeholder(shape, array.dtype, name=name)
    return tensors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("operation", "descriptor"), CASES, ids=str)
def test_results_are_those_of_the_eager_operation(operation, descriptor, training, kind):
    descriptor = replace(descriptor, training=training)
    arguments = make_arguments(operation, descriptor)
    wanted = getattr(gatewise, operation)(**arguments, descriptor=descriptor)
    for hidden in (False, True):
        graph = Graph()
        tensors = place_arguments(graph, arguments, hidden)
        results = getattr(graph, operation)(**tensors, descriptor=descriptor, name="layer")
        assert [result.name.split(":")[0] for result in results] == ["layer"] * len(wanted)
        found = graph.run({tensors[name]: KINDS[kind](array) for name, array in arguments.items()}, results)
        for result, theirs in zip(results, wanted, strict=True):
            assert len(result.shape) == 3
            assert result.shape[-1] == theirs.shape[-1]
            np.testing.assert_array_equal(to_numpy(found[result]), theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("operation", "descriptor"), CASES, ids=str)
def test_explicit_gradients_are_those_of_the_eager_operation(operation, descriptor, kind):
    descriptor = replace(descriptor, training=True)
    arguments = make_arguments(operation, descriptor)
    results = getattr(gatewise, operation)(**arguments, descriptor=descriptor)
    rng = np.random.default_rng(4)
    more = {"source_gradient": rng.standard_normal(results[0].shape), "z_state": results[-1]}
    more["state_gradient"] = rng.standard_normal(results[0].shape[1:])
    if operation == "lstm":
        more |= {"cell_output_fwd": results[1], "cell_gradient": rng.standard_normal(results[0].shape[1:])}
    if operation == "gru":
        more["output_fwd"] = results[0]
    arguments |= more
    wanted = getattr(gatewise, f"{operation}_gradients")(**arguments, descriptor=descriptor)
    graph = Graph()
    tensors = place_arguments(graph, arguments)
    gradients = getattr(graph, f"{operation}_gradients")(**tensors, descriptor=descriptor)
    assert [gradient.shape for gradient in gradients] == [theirs.shape for theirs in wanted]
    found = graph.run({tensors[name]: KINDS[kind](array) for name, array in arguments.items()}, gradients)
    for gradient, theirs in zip(gradients, wanted, strict=True):
        np.testing.assert_array_equal(to_numpy(found[gradient]), theirs)


@pytest.mark.parametrize("use", ["state", "final state", "cell", "z_state", "all"])
@pytest.mark.parametrize(("operation", "descriptor"), CASES, ids=str)
def test_gradients_through_every_result(operation, descriptor, use):
    """Against torch's autograd through a plain loop, whichever results the loss is made of."""
    if use == "cell" and operation != "lstm":
        use = "all"
    descriptor = replace(descriptor, training=True)
    arguments = make_arguments(operation, descriptor)
    rng = np.random.default_rng(5)
    graph = Graph()
    tensors = place_arguments(graph, arguments, hidden=True)
    results = dict(
        zip(
            ["state", "cell", "z_state"] if operation == "lstm" else ["state", "z_state"],
            getattr(graph, operation)(**tensors, descriptor=descriptor),
            strict=True,
        )
    )
    leaves = {name: torch.from_numpy(array) for name, array in arguments.items()}
    wanted = [name for name in arguments if name not in ("mask", "lengths", "resets")]
    for name in wanted:
        leaves[name].requires_grad_()
    state, cell, z_state, *_ = torch_run(operation, descriptor, leaves)
    theirs = {"state": state, "cell": cell, "z_state": z_state}

    loss, their_loss = None, 0.0
    for name in results if use == "all" else [use.removeprefix("final ")]:
        mine, other = (results[name][-1], theirs[name][-1]) if use.startswith("final") else (results[name], theirs[name])
        weight = rng.standard_normal(tuple(other.shape))
        part = graph.reduction_sum(mine * weight)
        loss = part if loss is None else loss + part
        their_loss = their_loss + (other * torch.from_numpy(weight)).sum()
    gradients = graph.gradients(loss, [tensors[name] for name in wanted])
    found = graph.run({tensors[name]: array for name, array in arguments.items()}, [loss, *gradients.values()])
    assert found[loss] == pytest.approx(their_loss.item(), rel=1e-12)
    their_loss.backward()
    for name in wanted:
        grad = leaves[name].grad
        grad = torch.zeros_like(leaves[name]) if grad is None else grad
        assert_close(found[gradients[tensors[name]]], grad, name, T)


def test_the_forward_operation_runs_once_and_saves_only_what_is_used(monkeypatch):
    seen = []
    original = gatewise.operations._forward

    def watched(operation, default, descriptor, given):
        seen.append(descriptor)
        return original(operation, default, descriptor, given)

    monkeypatch.setattr(gatewise.operations, "_forward", watched)
    graph = Graph()
    tensors = place_arguments(graph, make_arguments("lstm", LSTMDescriptor(), everything=False))
    feeds = {tensors[name]: array for name, array in make_arguments("lstm", LSTMDescriptor(), everything=False).items()}
    (state,) = graph.lstm(**tensors)
    loss = graph.reduction_sum(state)
    graph.run(feeds, [loss])
    gradients = graph.gradients(loss, list(tensors.values()))
    graph.run(feeds, [loss, *gradients.values()])
    graph.run(feeds, [loss])
    assert [(each.training, each.produce_cell) for each in seen] == [(False, False), (True, True), (False, False)]
    state, _, _ = graph.lstm(**tensors, descriptor=LSTMDescriptor(training=True))
    graph.run(feeds, [state])
    assert not seen[-1].training


@pytest.mark.parametrize("operation", [name + end for name in GATES for end in ("", "_gradients")])
def test_arguments_are_those_of_the_eager_operation(operation):
    def arguments(function):
        return [(each.name, each.kind, each.default) for each in signature(function).parameters.values()]

    *mine, name = arguments(getattr(Graph(), operation))
    assert mine == arguments(getattr(gatewise, operation))
    assert name[0] == "name"


def test_refusals():
    graph = Graph()
    arguments = make_arguments("lstm", LSTMDescriptor())
    tensors = place_arguments(graph, arguments)
    (state,) = graph.lstm(**tensors)
    loss = graph.reduction_sum(state)
    with pytest.raises(gatewise.UnsupportedError, match="no gradient for its mask"):
        graph.gradients(loss, [tensors["mask"]])
    gradient = graph.gradients(loss, [tensors["source"]])[tensors["source"]]
    with pytest.raises(
        gatewise.UnsupportedError, match=r"lstm_gradients '.*' has no gradient \(made at .*test_graph_recurrent"
    ):
        graph.gradients(graph.reduction_sum(gradient), [tensors["source"]])
    with pytest.raises(gatewise.ShapeError, match=r"lstm 'encoder': bias must be \[4·H\] = \[20\], got \[19\].*made at .*py:"):
        graph.lstm(tensors["source"], tensors["recurrent_weight"], tensors["input_weight"], np.zeros(19), name="encoder")
    free = graph.placeholder([None, None, I], np.float64)
    with pytest.raises(gatewise.ShapeError, match=r"input_weight must be \[4·H, I\] = \[20, 4\], got \[20, 3\]"):
        graph.lstm(free, tensors["recurrent_weight"], np.zeros((20, 3)))
    with pytest.raises(gatewise.DTypeError, match="descriptor must be a GRUDescriptor"):
        graph.gru(free, tensors["recurrent_weight"], descriptor=LSTMDescriptor())
    with pytest.raises(gatewise.DTypeError, match="bias must be float64 like source"):
        graph.lstm(free, tensors["recurrent_weight"], tensors["input_weight"], np.zeros(20, np.float32))
    with pytest.raises(gatewise.ShapeError, match=r"init_state must be \[N, H\] = \[\?, 5\], got \[\?, 4\]"):
        graph.lstm(
            free, tensors["recurrent_weight"], tensors["input_weight"], init_state=graph.placeholder([None, 4], np.float64)
        )


# A whole model: embedding, two bidirectional peephole LSTMs with a recurrent dropout mask, softmax cross entropy.

VOCABULARY, WIDTH = 11, 4


def model_values(rng: np.random.Generator, dtype) -> dict[str, np.ndarray]:
    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.4).astype(dtype)

    values = {"embedding": normal(VOCABULARY, WIDTH)}
    for layer, width in enumerate((WIDTH, 2 * H)):
        values |= {
            f"recurrent_weight_{layer}": normal(2, 4 * H, H),
            f"input_weight_{layer}": normal(8 * H, width),
            f"bias_{layer}": normal(8 * H),
            f"peephole_{layer}": normal(2, 4 * H),
        }
    return values | {"output_weight": normal(2 * H, VOCABULARY), "output_bias": normal(VOCABULARY)}


def graph_model(values: dict[str, np.ndarray], mask: np.ndarray):
    graph = Graph()
    words = graph.placeholder([None, None], np.int64, name="words")
    classes = graph.placeholder([None, None], np.int64, name="classes")
    variables = {name: graph.variable(value, name=name) for name, value in values.items()}
    x = graph.gather(variables["embedding"], words)
    for layer in range(2):
        (x,) = graph.lstm(
            x,
            variables[f"recurrent_weight_{layer}"],
            variables[f"input_weight_{layer}"],
            variables[f"bias_{layer}"],
            mask=graph.constant(mask),
            peephole=variables[f"peephole_{layer}"],
            descriptor=LSTMDescriptor(bidirectional=True),
        )
    scores = x @ variables["output_weight"] + variables["output_bias"]
    loss = graph.soft_max_cross_entropy(scores, graph.one_hot(classes, VOCABULARY, dtype=scores.dtype), reduction="mean")
    return graph, words, classes, variables, loss


def torch_model(leaves: dict[str, torch.Tensor], mask: np.ndarray, words: np.ndarray, classes: np.ndarray) -> torch.Tensor:
    x = leaves["embedding"][torch.from_numpy(words)]
    for layer in range(2):
        arguments = {"source": x, "mask": torch.from_numpy(mask)}
        for name in ("recurrent_weight", "input_weight", "bias", "peephole"):
            arguments[name] = leaves[f"{name}_{layer}"]
        x, *_ = torch_run("lstm", LSTMDescriptor(bidirectional=True), arguments)
    scores = x @ leaves["output_weight"] + leaves["output_bias"]
    return torch.nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), torch.from_numpy(classes).reshape(-1))


def model_data(rng: np.random.Generator, dtype):
    words, classes = rng.integers(0, VOCABULARY, (2, T, N))
    mask = (rng.random((N, 2 * H)) < 0.75).astype(dtype) / dtype(0.75)
    return words, classes, mask


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
def test_model_against_torch(dtype, kind):
    rng = np.random.default_rng(11)
    values = model_values(rng, dtype)
    words, classes, mask = model_data(rng, dtype)
    graph, words_in, classes_in, variables, loss = graph_model(values, mask)
    gradients = graph.gradients(loss, list(variables.values()))
    feeds = {words_in: KINDS[kind](words), classes_in: KINDS[kind](classes)}
    found = graph.run(feeds, [loss, *gradients.values()])

    wide = {name: torch.from_numpy(value.astype(np.float64)).requires_grad_() for name, value in values.items()}
    their_loss = torch_model(wide, mask.astype(np.float64), words, classes)
    their_loss.backward()
    limit = tolerance(np.dtype(dtype).name, T)
    assert float(found[loss]) == pytest.approx(their_loss.item(), rel=limit)
    for name, variable in variables.items():
        theirs = wide[name].grad.numpy()
        difference = np.abs(to_numpy(found[gradients[variable]]) - theirs).max() / np.abs(theirs).max()
        assert difference < limit, f"{name}: {difference}"


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(("rate", "amsgrad", "torch_epsilon"), [(0.005, False, False), (0.02, False, True), (0.02, True, True)])
def test_fifty_steps_of_adam_follow_torch(kind, rate, amsgrad, torch_epsilon):
    rng = np.random.default_rng(12)
    values = model_values(rng, np.float32)
    _, _, mask = model_data(rng, np.float32)
    graph, words_in, classes_in, variables, loss = graph_model(values, mask)
    gradients = graph.gradients(loss, list(variables.values()))
    powers = [graph.variable(np.float64(beta)) for beta in (0.9, 0.999)]
    updates = [graph.assign(power, power * beta) for power, beta in zip(powers, (0.9, 0.999), strict=True)]
    epsilon = graph.square_root(1.0 - powers[1]) * 1e-8 if torch_epsilon else 1e-8
    for variable in variables.values():
        state = [graph.variable(np.zeros(variable.shape, np.float32)) for _ in range(3 if amsgrad else 2)]
        new = graph.adam(rate, 0.9, 0.999, epsilon, *powers, variable, *state[:2], gradients[variable], *state[2:])
        updates += [graph.assign(*pair) for pair in zip([variable, *state], new, strict=True)]

    leaves = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in values.items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=rate, amsgrad=amsgrad)
    first = None
    for step in range(50):
        words, classes = rng.integers(0, VOCABULARY, (T, N)), np.arange(T * N).reshape(T, N) % VOCABULARY
        found = graph.run({words_in: KINDS[kind](words), classes_in: KINDS[kind](classes)}, [loss], updates)
        optimizer.zero_grad()
        their_loss = torch_model(leaves, mask, words, classes)
        their_loss.backward()
        optimizer.step()
        first = first or their_loss.item()
        assert float(found[loss]) == pytest.approx(their_loss.item(), rel=tolerance("float32", 50 * T)), f"step {step}"
    assert their_loss.item() < 0.97 * first


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "numpy"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_whole_model_gives_the_same_numbers_on_every_kind_of_array(dtype, kind):
    check_whole(dtype, KINDS[kind], TYPES[kind])
