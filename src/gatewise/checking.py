"""The option space, sampled, and an engine held to the reference on a sample. `gatewise check` and the tests share this.

A case is a value for every option of one operation; its arrays follow from its seed. `sample` prefers pairs of option
values that no earlier case had, so that a few hundred cases of an operation have every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np

from . import arrays, reference
from .cells import Descriptor
from .descriptors import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from .engines import ENGINES, Engine
from .precision import use_precision
from .problem import Problem, make_problem

Array = np.ndarray[Any, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

_DESCRIPTORS: dict[str, type[Any]] = {"lstm": LSTMDescriptor, "gru": GRUDescriptor, "single_gate_rnn": SingleGateRNNDescriptor}
_GATES = {"lstm": 4, "gru": 3, "single_gate_rnn": 1}
_NO_YES = (False, True)
_ACTIVATIONS = tuple(RNNActivation)

# Every shape that broadcasts to [T, N, H]; H stands for both directions' units.
_MASKS = (
    *("absent", "[]", "[1]", "[H]", "[N,1]", "[1,H]", "[N,H]", "[1,1,1]", "[1,1,H]"),
    *("[T,1,1]", "[1,N,1]", "[1,N,H]", "[T,1,H]", "[T,N,1]", "[T,N,H]"),
)

_COMMON: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "float64", "float16", "bfloat16"),
    "T": (0, 1, 2, 3, 8, 21),
    "N": (0, 1, 2, 3, 5, 8, 17, 33),
    "I": (0, 1, 3, 8, 17, 40),
    "H": (1, 2, 3, 5, 8, 16, 17, 33, 70),
    "direction": ("forward", "reverse", "bidirectional", "bidirectional and reverse"),
    "training": _NO_YES,
    "input_weight": _NO_YES,
    "bias": _NO_YES,
    "init_state": _NO_YES,
    "leading_axis": _NO_YES,  # [1, N, H] instead of [N, H] where there is one direction
    "mask": _MASKS,
    "lengths": ("absent", "int64", "int32", "uint8"),
    "resets": _NO_YES,
    "state_gradient": _NO_YES,
    "z_state_gradient": _NO_YES,
    "layout": ("plain", "strided", "backwards", "transposed", "broadcast", "unaligned"),
    "saved_by": ("engine", "reference"),  # who ran the forward call whose results the gradient call is given
}
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "lstm": _COMMON
    | {
        "produce_cell": _NO_YES,
        "forget_gate_last": _NO_YES,
        "init_cell": _NO_YES,
        "peephole": ("absent", "previous", "current"),
        "cell_gradient": _NO_YES,
        "cell_sequence_gradient": _NO_YES,
        "input_gate_activation": _ACTIVATIONS,
        "forget_gate_activation": _ACTIVATIONS,
        "cell_gate_activation": _ACTIVATIONS,
        "output_gate_activation": _ACTIVATIONS,
        "activation": _ACTIVATIONS,
    },
    "gru": _COMMON
    | {
        "reset_gate_first": _NO_YES,
        "reset": ("before", "after", "after, with secondary_bias"),
        "flip_z": _NO_YES,
        "update_gate_activation": _ACTIVATIONS,
        "reset_gate_activation": _ACTIVATIONS,
        "output_gate_activation": _ACTIVATIONS,
    },
    "single_gate_rnn": _COMMON | {"activation": _ACTIVATIONS},
}

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
_LARGEST_VALUE = 8.0  # a case whose gates, states or cells grow beyond this is made smaller


def tolerance(dtype: str, T: int) -> float:
    """The largest difference from the reference, relative to an array's scale, that rounding explains.

    Sums and elementary functions are good for a few units in the last place, and the errors of T steps add up like
    noise. The narrow types do their sums in float32: only what is stored is rounded to them.
    """
    units = 2.0 if dtype in ("float16", "bfloat16") else 32.0
    return float(units * _EPSILON[dtype] * np.sqrt(T + 1.0))


@dataclass(frozen=True)
class Case:
    """One call of the option space: reproduced by `list(sample(number + 1, seed))[number]`."""

    number: int
    seed: int
    operation: str
    options: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={getattr(value, 'name', value)}" for name, value in self.options.items())
        return f"case {self.number} of seed {self.seed}: {self.operation} with {chosen}"

    @property
    def descriptor(self) -> Descriptor:
        chosen: dict[str, Any] = {
            name: value for name, value in self.options.items() if name in _DESCRIPTORS[self.operation].__dataclass_fields__
        }
        direction = self.options["direction"]
        chosen |= {"bidirectional": "bidirectional" in direction, "reverse": "reverse" in direction}
        if self.operation == "gru":
            chosen["reset_after"] = self.options["reset"] != "before"
        if self.options.get("peephole") == "current":
            chosen["output_peephole"] = "current"
        return _DESCRIPTORS[self.operation](**chosen)  # type: ignore[no-any-return]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Every argument of the forward call by name, None where absent."""
        return self._arguments_and_results[0]

    @cached_property
    def expected(self) -> tuple[Array, Array | None, Array]:
        """The reference's state, cell and z_state, in float64."""
        return self._arguments_and_results[1]

    @cached_property
    def _arguments_and_results(self) -> tuple[dict[str, Any], tuple[Array, Array | None, Array]]:
        scale = 1.0
        while True:
            arguments = _make_arguments(self, scale)
            results = reference.forward(self.problem(arguments))
            largest = max((np.abs(result).max() for result in results if result is not None and result.size), default=0.0)
            if largest < _LARGEST_VALUE:
                return arguments, results
            scale /= 2

    def problem(self, arguments: dict[str, Any], gradient: bool = False) -> Problem:
        """The checked call of these arguments."""
        operation = self.operation + ("_gradients" if gradient else "")
        return make_problem(operation, _DESCRIPTORS[self.operation], self.descriptor, arguments, gradient)[0]

    def gradient_problem(self, state: Array, cell: Array | None, z_state: Array) -> Problem:
        """The gradient call after a forward call with these results (rounded to the case's dtype here)."""
        return self.problem(self.gradient_arguments(state, cell, z_state, hidden=True), gradient=True)

    def gradient_arguments(self, state: Array, cell: Array | None, z_state: Array, hidden: bool = False) -> dict[str, Any]:
        """Every argument of the gradient call; `hidden` adds those that only the graph's differentiation uses."""
        make = _Maker(self, 1.0, stream=1)
        rows = self._per_row_shape
        arguments = self.arguments | {
            "source_gradient": make(state.shape),
            "z_state": make.saved(z_state),
            "state_gradient": make(rows, "state_gradient"),
        }
        if self.operation == "lstm":
            arguments |= {"cell_output_fwd": make.saved(cell), "cell_gradient": make(rows, "cell_gradient")}
        if self.operation == "gru":
            arguments["output_fwd"] = make.saved(state)
        if hidden:
            arguments["z_state_gradient"] = make(z_state.shape, "z_state_gradient")
            if self.operation == "lstm":
                arguments["cell_sequence_gradient"] = make(state.shape, "cell_sequence_gradient")
        return arguments

    @property
    def _per_row_shape(self) -> tuple[int, ...]:
        o = self.options
        if "bidirectional" in o["direction"]:
            return (o["N"], 2 * o["H"])
        return (1, o["N"], o["H"]) if o["leading_axis"] else (o["N"], o["H"])


class _Maker:
    """Makes a case's arrays: uniform numbers in its dtype and memory layout."""

    def __init__(self, case: Case, scale: float, stream: int) -> None:
        self.options = case.options
        self.random = np.random.default_rng([case.seed, case.number, stream])
        self.scale = scale
        dtype = case.options["dtype"]
        self.dtype = arrays.bfloat16() if dtype == "bfloat16" else np.dtype(dtype)

    def __call__(self, shape: tuple[int, ...], option: str | None = None, scale: float = 1.0) -> Array | None:
        """Numbers from -scale to scale, or None where the option says absent. Draws them in any case."""
        values = self.random.uniform(-1.0, 1.0, shape) * (self.scale * scale)
        return self.laid_out(values) if option is None or self.options[option] not in (False, "absent") else None

    def laid_out(self, values: Any) -> Array:
        return lay_out(np.asarray(values).astype(self.dtype), self.options["layout"])

    def saved(self, values: Any) -> Array:
        """A forward call's result: laid out, but its values stay what they are."""
        layout = self.options["layout"]
        return lay_out(np.asarray(values).astype(self.dtype), "plain" if layout == "broadcast" else layout)


def lay_out(array: Array, layout: str) -> Array:
    """The same values (except for `broadcast`, which repeats its first ones) in another memory layout, read-only."""
    if array.ndim == 0:
        view = array.copy()
    elif layout == "strided":
        view = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
        view[...] = array
    elif layout == "backwards":
        backwards = (slice(None, None, -1),) * array.ndim
        view = array[backwards].copy()[backwards]
    elif layout == "transposed":
        view = array.T.copy().T
    elif layout == "broadcast":
        view = np.broadcast_to(array[:1], array.shape).view() if array.shape[0] else array.copy()
    elif layout == "unaligned":
        memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
        view = memory.view(array.dtype).reshape(array.shape)
        view[...] = array
    else:
        view = array.copy()
    view.flags.writeable = False
    return view


def _make_arguments(case: Case, scale: float) -> dict[str, Any]:
    o = case.options
    T, N, H, G = o["T"], o["N"], o["H"], _GATES[case.operation]
    D = 2 if "bidirectional" in o["direction"] else 1
    I = o["I"] if o["input_weight"] else D * G * H  # noqa: E741
    make = _Maker(case, scale, stream=0)
    per_unit = 1.0 / np.sqrt(H)
    arguments: dict[str, Any] = {
        "source": make((T, N, I)),
        "recurrent_weight": make((2, G * H, H) if D == 2 else (G * H, H), scale=per_unit),
        "input_weight": make((D * G * H, I), "input_weight", scale=1.0 / np.sqrt(max(I, 1))),
        "bias": make((D * G * H,), "bias", scale=0.5),
        "init_state": make(case._per_row_shape, "init_state"),
        "mask": None,
        "lengths": None,
        "resets": None,
    }
    if o["mask"] != "absent":
        sizes = {"T": T, "N": N, "H": D * H, "1": 1}
        shape = tuple(sizes[letter] for letter in o["mask"].strip("[]").split(",") if letter)
        dropped = make.random.random(shape) < 0.25
        arguments["mask"] = make.laid_out(np.where(dropped, 0.0, make.random.uniform(-0.5, 1.5, shape)))
    if o["lengths"] != "absent":
        lengths = make.random.integers(0, T + 1, N).astype(o["lengths"])
        arguments["lengths"] = lay_out(lengths, o["layout"])
    if o["resets"]:
        arguments["resets"] = lay_out(make.random.random((T, N)) < 0.25, o["layout"])
    if case.operation == "lstm":
        arguments["init_cell"] = make(case._per_row_shape, "init_cell")
        arguments["peephole"] = make((2, 4 * H) if D == 2 else (4 * H,), "peephole")
    if case.operation == "gru":
        given = o["reset"] == "after, with secondary_bias"
        secondary_bias = make((D * H,), scale=0.5)
        arguments["secondary_bias"] = secondary_bias if given else None
    return arguments


def every_pair(operation: str) -> set[Pair]:
    """Every pair of option values of an operation."""
    options = OPTIONS[operation]
    return {((a, x), (b, y)) for a, b in combinations(options, 2) for x, y in product(options[a], options[b])}


def pairs_of(options: dict[str, Any]) -> set[Pair]:
    """The pairs of option values a case shows. Two options that are not sizes need two steps and a row to show."""
    pairs = combinations(options.items(), 2)
    if options["T"] >= 2 and options["N"] >= 1:
        return set(pairs)
    return {pair for pair in pairs if {pair[0][0], pair[1][0]} & {"T", "N"}}


def sample(count: int, seed: int) -> Iterator[Case]:
    """`count` cases, the operations in turn, always the same ones for a seed."""
    missing = {operation: sorted(every_pair(operation), key=repr) for operation in OPTIONS}
    for operation, pairs in missing.items():
        np.random.default_rng([seed, len(operation)]).shuffle(pairs)
    shown: dict[str, set[Pair]] = {operation: set() for operation in OPTIONS}
    # The LSTM has the most options and gets half of the cases.
    turns = ("lstm", "gru", "lstm", "single_gate_rnn")
    for number in range(count):
        operation = turns[number % len(turns)]
        random = np.random.default_rng([seed, number])
        options = {name: values[random.integers(len(values))] for name, values in OPTIONS[operation].items()}
        pairs = missing[operation]
        while pairs and pairs[-1] in shown[operation]:
            pairs.pop()
        if pairs:
            wanted = dict(pairs[-1])
            options |= wanted
            if not {"T", "N"} & wanted.keys():
                options |= {"T": max(options["T"], 2), "N": max(options["N"], 1)}
        shown[operation] |= pairs_of(options)
        yield Case(number, seed, operation, options)


def check_case(case: Case, engine: str) -> list[str]:
    """What an engine does differently from the reference on one case, forward and every gradient; nothing if right."""
    wrong: list[str] = []
    try:
        with use_precision("highest"):  # tf32 products would need another tolerance than float32's
            _check_case(case, ENGINES[engine], wrong)
    except Exception as error:  # the case is valid, so this is the engine's mistake whatever it is
        wrong.append(f"raised {type(error).__name__}: {error}")
    return wrong


def _check_case(case: Case, runner: Engine, wrong: list[str]) -> None:
    state, cell, z_state = case.expected

    problem = case.problem(case.arguments)
    found = _unchanged(runner.forward, problem, wrong)
    training = case.options["training"]
    needed = {"state": True, "cell": cell is not None and (training or case.options["produce_cell"]), "z_state": training}
    forward = {
        name: (result, wanted)
        for name, result, wanted in zip(("state", "cell", "z_state"), found, (state, cell, z_state), strict=True)
        if wanted is not None and (result is not None or needed[name])
    }
    wrong += compare(forward, case)

    saved = (state, cell, z_state)
    if case.options["saved_by"] == "engine" and training:
        saved = found
    problem = case.gradient_problem(*saved)
    # Both engines are given the same saved values, so both see a value on the same side of an activation's kink.
    gradients = _unchanged(runner.gradients, problem, wrong)
    wanted_gradients = reference.gradients(problem)
    if gradients.keys() != wanted_gradients.keys():
        wrong.append(f"gives gradients of {sorted(gradients)} instead of {sorted(wanted_gradients)}")
        return
    wrong += compare({f"gradient of {name}": (gradients[name], wanted_gradients[name]) for name in gradients}, case)


def compare(results: dict[str, tuple[Any, Array]], case: Case) -> list[str]:
    """What differs among the results of one call, each given as (found, wanted)."""
    wrong = []
    dtype, T = case.options["dtype"], case.options["T"]
    # A sum may cancel to less than its terms; the call's other results say how large terms were.
    largest = max((float(np.abs(wanted).max()) for _, wanted in results.values() if wanted.size), default=0.0)
    for name, (found, wanted) in results.items():
        if found is None or found.shape != wanted.shape or found.dtype.name != dtype:
            got = "nothing" if found is None else f"{found.dtype} {list(found.shape)}"
            wrong.append(f"{name} is {got} instead of {dtype} {list(wanted.shape)}")
            continue
        if not wanted.size:
            continue
        own = float(np.abs(wanted).max())
        allowed = tolerance(dtype, T) * max(own, largest / 32) + _SMALLEST[dtype]
        difference = np.abs(found.astype(np.float64) - wanted)
        worst = float(difference.max())
        if not worst <= allowed:
            place = np.unravel_index(int(difference.argmax()), difference.shape)
            wrong.append(
                f"{name} differs by {worst:.3g} at {[int(index) for index in place]} (scale {own:.3g}, allowed {allowed:.3g})"
            )
    return wrong


def _unchanged(call: Callable[[Problem], Any], problem: Problem, wrong: list[str]) -> Any:
    """Make the call, and note which of its arguments it wrote to."""
    given = {name: getattr(problem, name) for name in problem.__slots__}
    before = {name: array.tobytes() for name, array in given.items() if isinstance(array, np.ndarray)}
    result = call(problem)
    wrong += [f"{call.__name__} wrote to {name}" for name, held in before.items() if given[name].tobytes() != held]
    return result
