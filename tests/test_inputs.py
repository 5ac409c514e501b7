"""What callers give a call: empty and odd sizes, strange layouts, NaN, on every engine and instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gatewise
from calls import GATES, OPERATIONS, SIXTEEN_BITS, bits, cases_with, results_of, simple_call, simple_gradients
from gatewise import RNNActivation, SingleGateRNNDescriptor
from gatewise.checking import check_case, sample

# Sizes


@pytest.mark.parametrize(("T", "N"), [(0, 3), (4, 0), (0, 0)])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_empty_calls(any_engine: str, operation: str, T: int, N: int, bidirectional: bool) -> None:
    with gatewise.use_engine(any_engine):
        call = simple_call(operation, T, N, 3, 2, bidirectional)
        D, G = 2 if bidirectional else 1, GATES[operation]
        results = getattr(gatewise, operation)(**call)
        assert [result.shape[:2] for result in results] == [(T, N)] * len(results)
        assert results[-1].shape == (T, N, D * G * 2)
        gradients = simple_gradients(operation, call, state_gradient=np.ones((N, D * 2), np.float32))
        names = ("source", "recurrent_weight", "input_weight", "bias", "init_state")
        assert [gradient.shape for gradient in gradients] == [call[name].shape for name in names]
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("N", [1, 2, 3])
def test_small_and_odd_sizes(engine: str, N: int) -> None:
    for case in cases_with(120, N, N=N, T=(1, 2, 5), H=(1, 3, 7, 13, 19), I=(1, 2, 9)):
        assert check_case(case, engine) == [], str(case)


def test_larger_sizes(engine: str) -> None:
    """Blocks, panels and threads all have more than one turn."""
    for case in cases_with(24, 3, T=(2, 5), N=(1, 4, 70, 131), H=(128, 200, 257), I=(3, 64, 150)):
        assert check_case(case, engine) == [], str(case)


def test_short_calls(engine: str) -> None:
    """Weights that are used where they lie, and their gradients, in strips of every width."""
    sizes = {"T": (1, 1, 2, 4, 20), "N": (1, 2, 3, 8), "H": (256, 130, 70), "I": (7, 600, 256, 90)}
    # one row, and weights too large to be packed for it
    one_row = cases_with(6, 16, dtype="float32", T=(20, 40), N=1, H=592, I=16)
    wide = cases_with(60, 14, dtype=("float32", "float64"), **sizes)
    for case in wide + cases_with(60, 18, dtype=SIXTEEN_BITS, **sizes) + one_row:
        assert check_case(case, engine) == [], str(case)


def test_long_sequences(engine: str) -> None:
    for case in cases_with(12, 4, T=300, N=(1, 3), H=(5, 20), I=4):
        assert check_case(case, engine) == [], str(case)


# Engines, instruction sets, memory


@pytest.mark.parametrize(("first", "second"), [("reference", "cpu"), ("cpu", "reference")])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_forward_on_one_engine_gradients_on_another(operation: str, first: str, second: str) -> None:
    call = simple_call(operation, 5, 3, 4, 6)
    with gatewise.use_engine(first):
        results = getattr(gatewise, operation)(**call)
    given = call | {"source_gradient": np.ones_like(results[0]), "z_state": results[-1]}
    given |= {"cell_output_fwd": results[1]} if operation == "lstm" else {}
    given |= {"output_fwd": results[0]} if operation == "gru" else {}
    function = getattr(gatewise, operation + "_gradients")
    with gatewise.use_engine(second):
        mixed = function(**given)
    with gatewise.use_engine(first):
        alone = function(**given)
    for a, b in zip(mixed, alone, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("layout", ["strided", "backwards", "transposed", "unaligned"])
def test_layouts_give_the_same_bits(engine: str, layout: str) -> None:
    for plain, other in zip(cases_with(60, 6, layout="plain"), cases_with(60, 6, layout=layout), strict=True):
        assert bits(results_of(plain, engine)) == bits(results_of(other, engine, plain.expected)), str(other)


def placed(array: np.ndarray, after: int) -> np.ndarray:
    """A copy that begins so many numbers after a cache line, with NaN before and after it."""
    room = np.full(array.size + 64, np.nan, array.dtype)
    first = (-room.ctypes.data // array.itemsize) % (64 // array.itemsize) + after
    room[first : first + array.size] = array.ravel()
    return room[first : first + array.size].reshape(array.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_arrays_give_the_same_bits_wherever_they_begin(operation: str, dtype: Any) -> None:
    """Short calls use weights where they lie, by whole cache lines; a mask there must let in nothing of what is around them."""
    for T, N, sizes in (
        (1, 1, (32, 64)),
        (3, 1, (48, 32)),
        (1, 2, (32, 32)),
        (5, 3, (32, 48)),
        (20, 1, (32, 32)),
        (1, 1, (21, 32)),
        (2, 1, (32, 21)),
        (20, 1, (16, 512)),
    ):
        call = {
            name: value.astype(dtype) if isinstance(value, np.ndarray) else value
            for name, value in simple_call(operation, T, N, *sizes).items()
        }
        want = bits(getattr(gatewise, operation)(**call))
        assert not any(np.isnan(result).any() for result in getattr(gatewise, operation)(**call))
        for after in range(64 // np.dtype(dtype).itemsize):
            moved = {
                name: placed(value, after * (name != "source")) if isinstance(value, np.ndarray) else value
                for name, value in call.items()
            }
            assert bits(getattr(gatewise, operation)(**moved)) == want, (T, N, sizes, after)


@pytest.mark.parametrize("name", gatewise.engines.cpu._native.instruction_sets())
def test_every_instruction_set(name: str) -> None:
    """The kernels are compiled several times; all of them are right, not only the one this machine picks."""
    native = gatewise.engines.cpu._native
    before = native.instruction_set()
    try:
        assert native.use_instruction_set(name)
        assert native.instruction_set() == name
        few_rows = cases_with(40, 8, N=(1, 2), H=126)  # blocks of units as wide as they get
        short = cases_with(24, 19, dtype=SIXTEEN_BITS, T=(1, 4), N=(1, 3, 8), H=(130, 70), I=(7, 90))
        for case in [*sample(300, 7), *few_rows, *short]:
            assert check_case(case, "cpu") == [], str(case)
    finally:
        native.use_instruction_set(before)


@pytest.mark.parametrize("name", gatewise.engines.cpu._native.instruction_sets())
@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_vector_maths(name: str, function: str) -> None:
    """The engine's own float32 functions against float64, in units of the last place of the result."""
    native = gatewise.engines.cpu._native
    before = native.instruction_set()
    magnitudes = np.concatenate([np.logspace(-30, 2, 20000), np.linspace(0, 20, 20000)]).astype(np.float32)
    x = np.concatenate([-magnitudes, magnitudes, np.array([0.0, -0.0, np.inf, -np.inf, 88.8, -88.8, 1e38, -1e38], np.float32)])
    found = np.empty_like(x)
    try:
        native.use_instruction_set(name)
        native.maths(function, x, found)
    finally:
        native.use_instruction_set(before)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = np.tanh(wide) if function == "tanh" else 1 / (1 + np.exp(-wide))
    normal = np.abs(wanted) >= np.finfo(np.float32).tiny
    units = np.abs(found - wanted)[normal] / np.spacing(np.abs(wanted[normal]).astype(np.float32))
    assert units.max() <= 4
    assert np.abs(found - wanted)[~normal].max(initial=0.0) <= np.finfo(np.float32).tiny
    assert np.abs(found).max() <= 1
    far = np.abs(x) > 100  # exactly there: what multiplies an infinity must be 0 where the formula says so
    assert np.array_equal(found[far], np.sign(x[far]) if function == "tanh" else x[far] > 0)
    nothing = np.full(8, np.nan, np.float32)
    native.maths(function, nothing.copy(), nothing)
    assert np.isnan(nothing).all()


# NaN and infinity


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["source", "init_state"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_bad_values_stay_in_their_row(any_engine: str, operation: str, where: str, bad: float) -> None:
    call = simple_call(operation, 4, 19, 3, 18)
    if operation == "single_gate_rnn":
        call["descriptor"] = SingleGateRNNDescriptor(training=True, activation=RNNActivation.TANH)
    spoiled = call | {where: call[where].copy()}
    row = 7
    if where == "source":
        spoiled["source"][1, row, 0] = bad
    else:
        spoiled["init_state"][row, 0] = bad
    rows = np.arange(19) != row
    with gatewise.use_engine(any_engine):
        clean, dirty = getattr(gatewise, operation)(**call), getattr(gatewise, operation)(**spoiled)
        for a, b in zip(clean, dirty, strict=True):
            assert a[:, rows].tobytes() == b[:, rows].tobytes()
            assert (a[1:, row] != b[1:, row]).any()
        a, b = simple_gradients(operation, call), simple_gradients(operation, spoiled)
    assert a[0][:, rows].tobytes() == b[0][:, rows].tobytes()  # of the source
    assert a[-1][rows].tobytes() == b[-1][rows].tobytes()  # of the initial state


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_nan_past_the_end_reaches_nothing(any_engine: str, operation: str, bidirectional: bool) -> None:
    """Padding may hold anything: source, and what the gradient call is given there."""
    lengths = np.array([5, 0, 2])
    call = simple_call(operation, 5, 3, 4, 6, bidirectional) | {"lengths": lengths}
    padding = np.arange(5)[:, None] >= lengths
    dirty = call | {"source": np.where(padding[:, :, None], np.float32(np.nan), call["source"])}
    with gatewise.use_engine(any_engine):
        wanted, found = getattr(gatewise, operation)(**call), getattr(gatewise, operation)(**dirty)
        assert bits(wanted) == bits(found)
        assert not any(result[padding].any() for result in found)
        state = wanted[0]
        upstream = np.where(padding[:, :, None], np.float32(np.nan), np.ones_like(state))
        clean = simple_gradients(operation, call)
        more = {"z_state": np.where(padding[:, :, None], np.float32(np.nan), wanted[-1])}
        if operation == "lstm":
            more["cell_output_fwd"] = np.where(padding[:, :, None], np.float32(np.nan), wanted[1])
        if operation == "gru":
            more["output_fwd"] = np.where(padding[:, :, None], np.float32(np.nan), state)
        spoiled = simple_gradients(operation, dirty, source_gradient=upstream, **more)
    assert bits(clean) == bits(spoiled)
    assert not clean[0][padding].any()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_reset_hides_a_bad_state(any_engine: str, operation: str) -> None:
    """A reset puts zeros in place of the state, it does not multiply by zero."""
    call = simple_call(operation, 3, 2, 4, 5)
    resets = np.zeros((3, 2), bool)
    resets[0] = True
    with gatewise.use_engine(any_engine):
        wanted = getattr(gatewise, operation)(**call | {"resets": resets, "init_state": None})
        bad = np.full_like(call["init_state"], np.nan)
        found = getattr(gatewise, operation)(**call | {"resets": resets, "init_state": bad})
        assert bits(wanted) == bits(found)
        gradients = simple_gradients(operation, call | {"resets": resets, "init_state": bad})
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert not gradients[-1].any()
