"""Wrong arguments: thousands of valid calls, each with something changed. None may crash or be silently misread.

A changed call either raises a GatewiseError that names the operation, or is valid and equals the reference.
"""

from __future__ import annotations

import random as standard_random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gatewise
from gatewise import GatewiseError, GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from gatewise.checking import Case, sample, tolerance

CALLS = 6000
PART = 1000

Random = standard_random.Random
Arguments = dict[str, Any]


class Rude:
    """Answers every question an array library might ask with an exception."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("rude")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("rude")

    def __dlpack_device__(self) -> Any:
        raise RuntimeError("rude")

    def __array_namespace__(self) -> Any:
        raise RuntimeError("rude")


class Liar:
    """Says it has DLPack and hands out something else."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return object()

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __array_namespace__(self) -> Any:
        return np


class Subclass(np.ndarray):
    """A harmless one: must be taken for the array it is."""


THINGS: list[Any] = [
    *(None, True, 0, 1, -1, 2**70, 0.5, float("nan"), 1j, "", "lstm", b"bytes", (), [], {}, [1.0, 2.0], [[0.0]], range(3)),
    *(object(), object, len, Ellipsis, slice(None), NotImplemented, np, np.float32, np.float32(1.0), Rude(), Liar()),
    *(memoryview(b"12345678"), bytearray(8), np.array(1.0), np.array("text"), np.array(None), np.array([]), iter([])),
    *(np.ma.masked_array(np.ones((2, 3, 4), np.float32)), np.ones((2, 3, 4), np.float32).view(np.recarray)),
]
DTYPES = [
    "f4",
    "f8",
    "f2",
    "i4",
    "i8",
    "u1",
    "b1",
    "c8",
    "c16",
    "g",
    "O",
    "S4",
    "U4",
    "M8[s]",
    "m8[s]",
    "V8",
    ">f4",
    ">f8",
    ">i8",
]
DESCRIPTORS: list[Any] = [
    *(LSTMDescriptor(), GRUDescriptor(), SingleGateRNNDescriptor(), LSTMDescriptor, GRUDescriptor),
    *(LSTMDescriptor(bidirectional=True), GRUDescriptor(bidirectional=True), SingleGateRNNDescriptor(bidirectional=True)),
    *(GRUDescriptor(reset_after=True), "lstm", 0, {}, None, RNNActivation.TANH),
]


def arrays_of(arguments: Arguments) -> list[str]:
    """The arguments that are arrays and fit in memory."""
    return [name for name, value in arguments.items() if isinstance(value, np.ndarray) and value.size < 10**7]


def put_a_thing(random: Random, arguments: Arguments) -> None:
    arguments[random.choice([*arguments])] = random.choice(THINGS)


def take_away(random: Random, arguments: Arguments) -> None:
    arguments[random.choice(arrays_of(arguments))] = None


def change_dtype(random: Random, arguments: Arguments) -> None:
    name = random.choice(arrays_of(arguments))
    arguments[name] = np.zeros(arguments[name].shape, random.choice(DTYPES))


def change_every_dtype(random: Random, arguments: Arguments) -> None:
    dtype = random.choice(DTYPES)
    for name in arrays_of(arguments):
        arguments[name] = np.zeros(arguments[name].shape, dtype)


def change_shape(random: Random, arguments: Arguments) -> None:
    name = random.choice(arrays_of(arguments))
    array = arguments[name]
    shape = list(array.shape)
    axis = random.randrange(len(shape)) if shape else 0
    way = random.randrange(9)
    if way == 0:
        shape.insert(random.randrange(len(shape) + 1), 1)
    elif way == 1 and shape:
        del shape[axis]
    elif way == 2 and shape:
        shape[axis] += random.choice((-1, 1, shape[axis]))
    elif way == 3 and shape:
        shape[axis] = random.choice((0, 1, 2, 1000))
    elif way == 4:
        shape = [1] * random.randrange(33)
    elif way == 5:
        shape = shape[::-1]
    elif way == 6:
        shape = [array.size]
    elif way == 7:
        random.shuffle(shape)
    else:
        arguments[name] = np.broadcast_to(array.dtype.type(0), [*shape, *shape])
        return
    arguments[name] = np.resize(array, [max(size, 0) for size in shape])


def make_huge(random: Random, arguments: Arguments) -> None:
    """More elements than there is memory, over a stride of zero. The source could be valid at that size; the rest not."""
    name = random.choice([name for name in arrays_of(arguments) if name != "source"])
    array = arguments[name]
    arguments[name] = np.broadcast_to(array.dtype.type(0), [2 ** (48 // max(array.ndim, 1))] * array.ndim)


def swap(random: Random, arguments: Arguments) -> None:
    a, b = random.choice([*arguments]), random.choice([*arguments])
    arguments[a], arguments[b] = arguments[b], arguments[a]


def copy_over(random: Random, arguments: Arguments) -> None:
    arguments[random.choice([*arguments])] = arguments[random.choice(arrays_of(arguments))]


def change_lengths(random: Random, arguments: Arguments) -> None:
    N = arguments["source"].shape[1]
    dtype = random.choice(["i1", "i4", "i8", "u1", "u8", "f4", "b1", ">i4", "O"])
    worst = random.choice([-1, 0, 1, 2, 127, 255, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1])
    values = np.zeros(N, object)
    values[: 1 + N // 2] = worst
    with np.errstate(all="ignore"):
        try:
            arguments["lengths"] = values.astype(dtype)
        except OverflowError:
            arguments["lengths"] = np.full(N, np.iinfo(dtype).max, dtype)


def change_resets(random: Random, arguments: Arguments) -> None:
    T, N, _ = arguments["source"].shape
    arguments["resets"] = np.full(random.choice([(T, N), (N, T), (T,), (T, N, 1), ()]), random.choice([True, 1, 1.0, 255]))


def change_descriptor(random: Random, arguments: Arguments) -> None:
    arguments["descriptor"] = random.choice(DESCRIPTORS)


def spoil_a_value(random: Random, arguments: Arguments) -> None:
    floating = [name for name in arrays_of(arguments) if arguments[name].dtype.kind == "f"]
    if not floating:
        return
    name = random.choice(floating)
    array = arguments[name].copy()
    if array.size:
        array.reshape(-1)[random.randrange(array.size)] = random.choice([np.nan, np.inf, -np.inf])
    arguments[name] = array


def make_subclass(random: Random, arguments: Arguments) -> None:
    name = random.choice(arrays_of(arguments))
    arguments[name] = arguments[name].view(Subclass)


MUTATIONS: list[Callable[[Random, Arguments], None]] = [
    *(put_a_thing, put_a_thing, take_away, change_dtype, change_every_dtype, change_shape, change_shape, change_shape),
    *(make_huge, swap, copy_over, change_lengths, change_resets, change_descriptor, spoil_a_value, make_subclass),
]


def call_of(case: Case, gradient: bool) -> tuple[str, Arguments]:
    """A valid public call."""
    arguments = case.gradient_arguments(*case.expected) if gradient else dict(case.arguments)
    return case.operation + ("_gradients" if gradient else ""), arguments | {"descriptor": case.descriptor}


def same(found: Any, wanted: Any, T: int) -> bool:
    """Within the tolerance where finite, and the same infinities and NaN elsewhere."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    scale = max(np.abs(b[finite]).max(initial=0.0), 1.0)
    return bool((np.abs(a[finite] - b[finite]) <= tolerance(wanted.dtype.name, T) * scale).all())


def judge(engine: str, operation: str, arguments: Arguments) -> tuple[str, str]:
    """How a call ended: refused, right, or with a complaint."""
    function = getattr(gatewise, operation)
    try:
        with gatewise.use_engine(engine):
            found = function(**arguments)
    except GatewiseError as error:
        if not str(error).startswith(f"{operation}: "):
            return "wrong", f"the message does not name the operation: {error}"
        return "refused", str(error)
    except Exception as error:
        return "wrong", f"raised {type(error).__name__}: {error}"
    with gatewise.use_engine("reference"):
        wanted = function(**arguments)
    T = np.shape(arguments["source"])[0]
    if len(found) == len(wanted) and all(same(have, want, T) for have, want in zip(found, wanted, strict=True)):
        return "right", ""
    return "wrong", "differs from the reference"


@pytest.mark.parametrize("part", range(CALLS // PART))
def test_changed_calls(any_engine: str, part: int) -> None:
    random = standard_random.Random(part)
    ends: Counter[str] = Counter()
    for case in sample(PART, seed=1000 + part):
        # float32 and float64: the fuzz is about arguments, and their numbers can be compared closely.
        case.options.update(
            dtype=random.choice(("float32", "float64")), H=min(case.options["H"], 17), T=min(case.options["T"], 8)
        )
        operation, arguments = call_of(case, gradient=random.random() < 0.5)
        applied = random.sample(MUTATIONS, random.choice((1, 1, 2)))
        for mutation in applied:
            if isinstance(arguments["source"], np.ndarray) and arguments["source"].ndim == 3:
                mutation(random, arguments)
        end, text = judge(any_engine, operation, arguments)
        ends[end] += 1
        names = ", ".join(mutation.__name__ for mutation in applied)
        shown = {name: _short(value) for name, value in arguments.items() if value is not None}
        assert end != "wrong", f"{text}\n{operation} after {names}: {shown}\n{case}"
    # Were nearly all of one kind, the changes would not be worth much.
    assert ends["refused"] > PART * 0.5
    assert ends["right"] > PART * 0.05


def test_spoiled_values(any_engine: str) -> None:
    """One NaN or infinity anywhere goes exactly where the formulas take it: padding and tiles take it nowhere else."""
    random = standard_random.Random(5)
    for case in sample(800, seed=2000):
        case.options.update(dtype=random.choice(("float32", "float64")), T=min(case.options["T"], 8))
        operation, arguments = call_of(case, gradient=random.random() < 0.5)
        spoil_a_value(random, arguments)
        assert judge(any_engine, operation, arguments) == ("right", ""), f"{operation} of {case}"


def _short(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)[:200]


def test_call_too_large_for_memory(any_engine: str) -> None:
    """A valid call whose results cannot exist anywhere."""
    source = np.broadcast_to(np.float32(0), (2**50, 1, 1))
    weight = np.zeros((4, 1), np.float32)
    with gatewise.use_engine(any_engine), pytest.raises((GatewiseError, MemoryError)):
        gatewise.lstm(source, weight, weight)


def test_unknown_and_missing_keywords() -> None:
    """Python itself refuses these, before the operation starts."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'biass'"):
        gatewise.lstm(np.zeros((1, 1, 4)), np.zeros((4, 1)), biass=None)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'recurrent_weight'"):
        gatewise.lstm(np.zeros((1, 1, 4)))
    with pytest.raises(TypeError, match="positional arguments"):
        gatewise.single_gate_rnn(*[None] * 7)
