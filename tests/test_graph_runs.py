"""How graphs run: variables, order, plans, sharing, threads, places, errors."""

from __future__ import annotations

import sys
import threading
import weakref

import array_api_strict
import numpy as np
import pytest
import torch

import gatewise
from gatewise import Graph, ShapedType
from gatewise.graph import plan as plans
from gatewise.graph.rules import RULES, Rule


@pytest.fixture
def counted(monkeypatch):
    """How often each kind of operation was evaluated."""
    counts: dict[str, int] = {}

    def watch(rule: Rule):
        def evaluate(*arguments):
            counts[rule.kind] = counts.get(rule.kind, 0) + 1
            return rule.evaluate(*arguments)

        fields = {name: getattr(rule, name) for name in Rule.__slots__}
        return Rule(**{**fields, "evaluate": evaluate})

    for kind, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, kind, watch(rule))
    return counts


def counter(graph: Graph, value: float = 0.0):
    variable = graph.variable(np.float32(value), name="counter")
    return variable, graph.assign(variable, variable + 1.0)


# Variables


def test_variables_keep_their_values_between_runs():
    graph = Graph()
    variable, add = counter(graph)
    assert graph.run({}, [variable], [add])[variable] == 0  # its value at the start of the run
    assert graph.run({}, [variable])[variable] == 1
    for _ in range(3):
        graph.run(operations=[add])
    assert graph.run({}, [variable])[variable] == 4
    assert graph.variable_values()["counter"] == 4


def test_a_failed_run_changes_no_variable():
    graph = Graph()
    variable, add = counter(graph)
    table, index = graph.constant([1.0, 2.0]), graph.placeholder([], np.int64)
    with graph.control_dependency([add]):
        taken = graph.gather(table, index)
    second = graph.assign(graph.variable(0.0), taken)
    with pytest.raises(
        gatewise.ArgumentError, match=r"gather: index 7 is out of range for size 2 \(made at .*test_graph_runs.py:\d+\)"
    ):
        graph.run({index: 7}, operations=[add, second])
    assert graph.run({}, [variable])[variable] == 0
    graph.run({index: 1}, operations=[add, second])
    assert graph.run({}, [variable])[variable] == 1


def test_read_variable_sees_assignments_made_before_it():
    graph = Graph()
    variable = graph.variable(1.0)
    before = graph.read_variable(variable)
    assign = graph.assign(variable, variable * 10.0)
    with graph.control_dependency([assign]):
        after = graph.read_variable(variable)
    found = graph.run({}, [before, after, variable])
    assert [float(found[each]) for each in (before, after, variable)] == [1, 10, 1]
    assert graph.run({}, [before])[before] == 10
    gradient = graph.gradients(graph.square(before), [variable])[variable]
    assert graph.run({}, [gradient])[gradient] == 20


def test_control_dependencies_make_operations_run():
    graph = Graph()
    variable, add = counter(graph)
    other = graph.constant(5.0)
    with graph.control_dependency([add]):
        result = graph.negative(other)
        with graph.control_dependency([other]):
            inner = graph.square(other)
    outside = graph.negative(other)
    graph.run({}, [outside])
    assert graph.run({}, [variable])[variable] == 0
    assert graph.run({}, [result])[result] == -5
    graph.run({}, [inner])
    assert graph.run({}, [variable])[variable] == 2
    with pytest.raises(gatewise.DTypeError, match="not an operation of this graph"), graph.control_dependency([3]):
        pass


def test_nothing_handed_in_or_out_is_shared_with_a_variable():
    graph = Graph()
    value = np.zeros(3, np.float32)
    variable, fed = graph.variable(value), graph.placeholder([3])
    value[:] = 7
    assert graph.run({}, [variable])[variable].tolist() == [0, 0, 0]
    reshaped = graph.reshape(fed, [1, 3])
    stored = graph.variable(np.zeros((1, 3), np.float32))
    array = np.ones(3, np.float32)
    new = fed + 1.0
    found = graph.run({fed: array}, [new, fed, variable], [graph.assign(stored, reshaped), graph.assign(variable, new)])
    array[:] = 9
    for each in found.values():
        each[...] = 8
    assert graph.run({}, [stored])[stored].tolist() == [[1, 1, 1]]
    assert graph.run({}, [variable])[variable].tolist() == [2, 2, 2]
    constant = graph.constant([1.0])
    graph.run({}, [constant])[constant][:] = 5
    twice = graph.run({}, [doubled := constant * 2.0, again := constant * 2.0])
    twice[doubled][:] = 3
    assert twice[again] == 2
    assert graph.run({}, [constant])[constant] == 1


def test_set_variable_values_all_or_none():
    graph = Graph()
    graph.variable(np.zeros(2, np.float32), name="a")
    graph.variable(np.zeros(3, np.float32), name="b")
    graph.set_variable_values({"a": np.ones(2, np.float32)})
    with pytest.raises(gatewise.ShapeError, match="'b' is float32\\[3\\], got float32\\[2\\]"):
        graph.set_variable_values({"a": np.full(2, 5, np.float32), "b": np.ones(2, np.float32)})
    with pytest.raises(gatewise.ArgumentError, match="no variable 'c'"):
        graph.set_variable_values({"c": np.ones(2, np.float32)})
    assert graph.variable_values()["a"].tolist() == [1, 1]


# Plans


def test_equal_operations_are_merged(counted):
    graph = Graph()
    x = graph.placeholder([3])
    a, b = graph.tanh(x * 2.0), graph.tanh(x * 2.0)
    other = graph.tanh(x * 3.0)
    found = graph.run({x: [1, 2, 3]}, [a, b, other])
    assert counted["tanh"] == 2
    np.testing.assert_array_equal(found[a], found[b])
    assert (found[a] != found[other]).all()
    # not merged: the two axes differ, and random operations never are
    y = graph.placeholder([2, 2])
    graph.run({y: np.eye(2, dtype=np.float32)}, [graph.reduction_sum(y, 0), graph.reduction_sum(y, 1)])
    assert counted["reduction_sum"] == 2
    graph.run({}, [graph.random_tensor([2]), graph.random_tensor([2])])
    assert counted["random_tensor"] == 2


def test_constants_are_folded_once(counted):
    graph = Graph()
    x = graph.placeholder([2])
    result = x + graph.exponent(graph.constant([0.0, 1.0]) * 2.0)
    for _ in range(3):
        graph.run({x: [0, 0]}, [result])
    assert counted["exponent"] == 1
    large = graph.broadcast(graph.constant(1.0), [1000, 1000])
    total = graph.reduction_sum(large)
    graph.run({}, [total])
    graph.run({}, [total])
    assert counted["broadcast"] == 2  # four megabytes would be kept for nothing


def test_one_plan_serves_all_runs(monkeypatch):
    made = []
    original = plans.Plan.__init__
    monkeypatch.setattr(plans.Plan, "__init__", lambda self, *arguments: made.append(1) or original(self, *arguments))
    graph = Graph()
    x = graph.placeholder([None])
    total = graph.reduction_sum(x)
    for size in (3, 4, 3):
        graph.run({x: np.ones(size, np.float32)}, [total])
    assert len(made) == 1


def test_only_what_is_asked_for_is_computed(counted):
    graph = Graph()
    x = graph.placeholder([2])
    graph.exponent(x)
    graph.run({x: [1, 2]}, [graph.tanh(x)])
    assert "exponent" not in counted


def test_results_are_freed_after_their_last_use(monkeypatch):
    """In a chain, at most the value being read and the one being written are alive."""
    made: list[weakref.ref] = []
    most = 0

    class Watched(np.ndarray):
        pass

    rule = RULES["tanh"]

    def evaluate(place, attributes, x):
        nonlocal most
        result = np.tanh(x).view(Watched)
        made.append(weakref.ref(result))
        most = max(most, sum(each() is not None for each in made))
        return result

    fields = {name: getattr(rule, name) for name in Rule.__slots__}
    monkeypatch.setitem(RULES, "tanh", Rule(**{**fields, "evaluate": evaluate}))
    graph = Graph()
    x = graph.placeholder([4])
    y = x
    for _ in range(20):
        y = graph.tanh(y)
    graph.run({x: np.ones(4, np.float32)}, [y])
    assert len(made) == 20
    assert most == 2


def test_runs_do_not_pile_up_memory():
    graph = Graph()
    x = graph.placeholder([None])
    y = graph.reduction_sum(x)
    for size in range(1, 1500):
        graph.run({x: np.ones(size, np.float32)}, [y])
    (plan,) = graph._plans.values()
    assert len(plan.checked) <= 1001
    for _ in range(100):
        graph.run({x: np.ones(2, np.float32)}, [graph.negative(y)])
    assert len(graph._plans) <= 64


# Threads


def test_threads_share_an_executable():
    graph = Graph()
    x = graph.placeholder([None, 4], name="x")
    weight = graph.variable(np.random.default_rng(0).standard_normal((4, 4)), np.float32)
    executable = graph.compile({x: ShapedType((None, 4))}, [graph.tanh(x @ weight)])
    data = [np.random.default_rng(k).standard_normal((k + 1, 4)).astype(np.float32) for k in range(6)]
    wanted = [executable.run([array])[0] for array in data]
    wrong = []

    def work(number: int) -> None:
        found = [executable.run([data[number]])[0] for _ in range(100)]
        wrong.extend(number for each in found if not np.array_equal(each, wanted[number]))

    _in_threads(work, 6)
    assert not wrong


@pytest.fixture
def hurried_threads():
    """Threads take turns after every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_no_thread_loses_anothers_assignment(hurried_threads):
    graph = Graph()
    variable, add = counter(graph)
    _in_threads(lambda number: [graph.run(operations=[add]) for _ in range(100)], 8)
    assert graph.run({}, [variable])[variable] == 800


def _in_threads(work, number: int) -> None:
    failures = []

    def guarded(each: int) -> None:
        try:
            work(each)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# Places


def test_results_are_where_the_feeds_are():
    graph = Graph()
    x = graph.placeholder([2])
    weight = graph.variable([1.0, 2.0])
    result = x * weight + graph.constant([1.0, 1.0])
    step = graph.assign(weight, weight * 2.0)
    assert isinstance(graph.run({x: torch.ones(2)}, [result], [step])[result], torch.Tensor)
    assert isinstance(
        graph.run({x: array_api_strict.ones(2, dtype=array_api_strict.float32)}, [result])[result],
        type(array_api_strict.asarray(0)),
    )
    assert isinstance(graph.run({x: np.ones(2, np.float32)}, [result])[result], np.ndarray)
    assert graph.run({x: [1.0, 1.0]}, [result])[result].tolist() == [3, 5]
    other = graph.placeholder([2])
    both = x + other
    assert isinstance(graph.run({x: torch.ones(2), other: np.ones(2, np.float32)}, [both])[both], torch.Tensor)
    with pytest.raises(gatewise.ArgumentError, match="different places"):
        graph.run({x: torch.ones(2), other: array_api_strict.ones(2, dtype=array_api_strict.float32)}, [both])
    with pytest.raises(gatewise.UnsupportedError, match="'placeholder' requires grad"):
        graph.run({x: torch.ones(2, requires_grad=True)}, [result])


def test_random_numbers_are_the_same_bits_everywhere():
    def draw(make):
        graph = Graph()
        x = graph.placeholder([50])
        results = [
            graph.random_tensor([50], "uniform", 3) + x * 0.0,
            graph.random_tensor([50], "normal", 3) + x * 0.0,
            graph.random_tensor([500], "truncated_normal", 4) + graph.reduction_sum(x) * 0.0,
            graph.dropout(x, 0.5),
        ]
        runs = [[np.asarray(value).tolist() for value in graph.run({x: make()}, results).values()] for _ in range(2)]
        assert all(a != b for a, b in zip(*runs, strict=True)), "each run draws new numbers"
        graph.random_state = 0
        again = [np.asarray(value).tolist() for value in graph.run({x: make()}, results).values()]
        assert again == runs[0]
        return runs

    uniform, normal, truncated, dropped = draw(lambda: np.ones(50, np.float32))[0]
    assert 0 <= min(uniform) < 0.2
    assert 0.8 < max(uniform) < 1
    assert abs(np.mean(normal)) < 0.5
    assert 0.5 < np.std(normal) < 1.5
    assert 1.5 < max(np.abs(truncated)) <= 2
    assert set(dropped) == {0.0, 2.0}
    assert draw(lambda: np.ones(50, np.float32)) == draw(lambda: torch.ones(50))
    assert draw(lambda: np.ones(50, np.float32)) == draw(lambda: array_api_strict.ones(50, dtype=array_api_strict.float32))


def test_dropout_differentiates_with_the_mask_it_used_and_can_be_switched_off():
    graph = Graph()
    x, rate = graph.placeholder([1000]), graph.placeholder([])
    result = graph.dropout(x, rate)
    gradient = graph.gradients(result, [x])[x]
    found = graph.run({x: np.ones(1000, np.float32), rate: 0.25}, [result, gradient])
    np.testing.assert_array_equal(found[result], found[gradient])
    assert 0.15 < np.mean(found[result] == 0) < 0.35
    assert (graph.run({x: np.ones(1000, np.float32), rate: 0.0}, [result])[result] == 1).all()
    first, second = graph.dropout(x, 0.5), graph.dropout(x, 0.5)
    found = graph.run({x: np.ones(1000, np.float32)}, [first, second])
    assert (found[first] != found[second]).any()
    with pytest.raises(gatewise.ArgumentError, match="rate must be from 0 to below 1"):
        graph.dropout(x, 1.0)
    with pytest.raises(gatewise.ArgumentError, match="rate must be from 0 to below 1"):
        graph.run({x: np.ones(1000, np.float32), rate: 1.5}, [result])


def test_a_failed_run_draws_its_numbers_again():
    graph = Graph()
    index = graph.placeholder([], np.int64)
    drawn = graph.random_tensor([3]) + graph.gather(graph.constant([0.0, 0.0]), index)
    with pytest.raises(gatewise.ArgumentError):
        graph.run({index: 9}, [drawn])
    assert graph.random_state == 0
    graph.run({index: 0}, [drawn])
    assert graph.random_state == 1


# And besides


def test_large_graphs_do_not_recurse():
    graph = Graph()
    x = graph.placeholder([2], np.float64)
    y = x
    for _ in range(5000):
        y = y + x
    gradient = graph.gradients(y, [x])[x]
    assert graph.run({x: [1.0, 2.0]}, [gradient])[gradient].tolist() == [5001, 5001]


def test_numpy_warnings_stay_away():
    graph = Graph()
    x = graph.placeholder([2])
    result = graph.logarithm(x)
    found = graph.run({x: [0, -1]}, [result])[result]
    assert found[0] == -np.inf
    assert np.isnan(found[1])
