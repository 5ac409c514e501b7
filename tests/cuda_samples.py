"""Sampled calls for the CUDA engine: larger than `gatewise.checking` samples, in every dtype and precision, and each with a
wish for a plan, so that every kernel family and many ways to cut it are met; and how far results may be from the reference."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

import gatewise
from gatewise import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from gatewise.engines.cuda import warm
from gatewise.engines.cuda.driver import Device
from gatewise.engines.cuda.planner import Wish

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}
# Largest difference, as a part of the largest value of the result, for sequences of up to a dozen steps.
TOLERANCE = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 4e-3, "highest": 2e-5, "float64": 1e-12}
OPERATIONS = {
    "lstm": (gatewise.lstm, gatewise.lstm_gradients),
    "gru": (gatewise.gru, gatewise.gru_gradients),
    "single_gate_rnn": (gatewise.single_gate_rnn, gatewise.single_gate_rnn_gradients),
}
Array = np.ndarray[Any, Any]


@dataclass
class Sample:
    """One call: what to run, on what, and which plan to ask of the engine."""

    operation: str
    dtype: str  # or "highest": float32 with exact products
    descriptor: Any
    arguments: dict[str, Array]
    gradients: dict[str, Array]  # state_gradient, cell_gradient, source_gradient
    family: str | None
    pick: int | None
    starve: bool
    sizes: tuple[int, int, int, int]
    text: str = field(default="")


def sample(seed: int) -> Sample:
    """The sample with this number: always the same. Two in five ask for a kernel that few calls can have."""
    families = {3: ("relay",), 4: ("wide",)}.get(seed % 5, (None, "block", "cluster", "grid", "steps"))
    chance = random.Random(seed)
    numbers = np.random.default_rng(seed)
    operation = chance.choice(["lstm", "lstm", "gru", "gru", "single_gate_rnn"])
    dtype = chance.choice(["bfloat16", "bfloat16", "float16", "float32", "highest", "float64"])
    T, N, I = chance.choice([1, 2, 5, 9, 12]), chance.choice([1, 3, 8, 17, 40, 130]), chance.choice([1, 5, 16, 40])  # noqa: E741
    H = chance.choice([1, 7, 16, 20, 33, 64, 96, 130, 200, 264])
    descriptor, G = _descriptor(chance, operation)
    D = 2 if descriptor.bidirectional else 1

    def make(*shape: int, scale: float = 1.0) -> Array:
        return (numbers.uniform(-1, 1, shape) * scale).astype(DTYPES.get(dtype, np.float32))

    def sometimes(*shape: int, scale: float = 1.0, often: float = 0.5) -> Array | None:
        return make(*shape, scale=scale) if chance.random() < often else None

    with_weight = chance.random() < 0.75
    given: dict[str, Array | None] = {
        "source": make(T, N, I if with_weight else D * G * H),
        "recurrent_weight": make(*((2, G * H, H) if D == 2 else (G * H, H)), scale=1.5 / H**0.5),
        "input_weight": make(D * G * H, I, scale=1.0 / I**0.5) if with_weight else None,
        "bias": sometimes(D * G * H, scale=0.5, often=0.7),
        "init_state": sometimes(N, D * H),
    }
    if chance.random() < 0.5:
        shape = chance.choice([(T, N, D * H), (T, N, 1), (T, 1, D * H), (N, D * H), (D * H,), (1,), (1, N, 1)])
        given["mask"] = make(*shape) * np.asarray(numbers.random(shape) < 0.7)
    if chance.random() < 0.4:
        given["lengths"] = numbers.integers(0, T + 1, N).astype(chance.choice([np.int32, np.int64]))
    if chance.random() < 0.4:
        given["resets"] = numbers.random((T, N)) < 0.2
    if operation == "lstm":
        given["init_cell"] = sometimes(N, D * H)
        given["peephole"] = sometimes(*((2, 4 * H) if D == 2 else (4 * H,)), scale=0.5)
    if operation == "gru" and descriptor.reset_after:
        given["secondary_bias"] = sometimes(D * H, scale=0.5)
    gradients: dict[str, Array | None] = {
        "source_gradient": make(T, N, D * H),
        "state_gradient": sometimes(N, D * H),
        "cell_gradient": sometimes(N, D * H) if operation == "lstm" else None,
    }
    family = chance.choice(families)
    pick = chance.choice([None, chance.randrange(1000)]) if family is None else chance.randrange(1000)
    starve = chance.random() < 0.25
    made = Sample(
        operation,
        dtype,
        descriptor,
        {name: value for name, value in given.items() if value is not None},
        {name: value for name, value in gradients.items() if value is not None},
        family,
        pick,
        starve,
        (T, N, I, H),
    )
    names = ", ".join(sorted(made.arguments.keys() | made.gradients.keys()))
    made.text = f"#{seed} {operation} {dtype} T{T} N{N} I{I} H{H} {descriptor} with {names}; {family} {pick} {starve}"
    return made


def _descriptor(chance: random.Random, operation: str) -> tuple[Any, int]:
    flags = {"bidirectional": chance.random() < 0.3, "reverse": chance.random() < 0.3, "training": True}

    def activation(default: RNNActivation) -> RNNActivation:
        return default if chance.random() < 0.6 else chance.choice(list(RNNActivation))

    sigmoid, tanh = RNNActivation.SIGMOID, RNNActivation.TANH
    if operation == "single_gate_rnn":
        return SingleGateRNNDescriptor(activation=activation(tanh), **flags), 1
    if operation == "gru":
        return (
            GRUDescriptor(
                reset_gate_first=chance.random() < 0.5,
                reset_after=chance.random() < 0.5,
                flip_z=chance.random() < 0.5,
                update_gate_activation=activation(sigmoid),
                reset_gate_activation=activation(sigmoid),
                output_gate_activation=activation(tanh),
                **flags,
            ),
            3,
        )
    return (
        LSTMDescriptor(
            forget_gate_last=chance.random() < 0.5,
            output_peephole=chance.choice(["previous", "current"]),
            input_gate_activation=activation(sigmoid),
            forget_gate_activation=activation(sigmoid),
            cell_gate_activation=activation(tanh),
            output_gate_activation=activation(sigmoid),
            activation=activation(tanh),
            **flags,
        ),
        4,
    )


def gradient_arguments(operation: str, results: list[Any]) -> dict[str, Any]:
    """What a forward call's results are called in the gradient call."""
    if operation == "lstm":
        return {"cell_output_fwd": results[1], "z_state": results[2]}
    if operation == "gru":
        return {"output_fwd": results[0], "z_state": results[1]}
    return {"z_state": results[1]}


def reference(made: Sample) -> tuple[list[Array], list[Array], dict[str, Array]]:
    """Forward results and gradients in float64, and the saved results, rounded, that both gradients start from."""
    forward, gradients = OPERATIONS[made.operation]

    def wide(values: dict[str, Array]) -> dict[str, Array]:
        return {name: value if value.dtype.kind in "bi" else value.astype(np.float64) for name, value in values.items()}

    with gatewise.use_engine("reference"):
        results = forward(**wide(made.arguments), descriptor=made.descriptor)
        dtype = made.arguments["source"].dtype
        saved = {name: value.astype(dtype) for name, value in gradient_arguments(made.operation, results).items()}
        found = gradients(**wide(made.arguments), **wide(made.gradients), **wide(saved), descriptor=made.descriptor)
    return results, found, saved


def difference(got: Array, expected: Array) -> float:
    """Largest difference as a part of the largest expected value; infinite where one is NaN and the other is not."""
    if got.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    distance = np.abs(got.astype(np.float64) - expected)
    if np.isnan(distance).any():
        return float("inf")
    return float(distance.max() / max(float(np.abs(expected).max()), 1e-3))


_ROUNDING = {"bfloat16": 2**-9, "float16": 2**-12, "float32": 2**-12, "highest": 2**-25, "float64": 2**-54}


def sensitivity(made: Sample, expected: list[Array]) -> list[float]:
    """How far each result of the reference moves when every argument changes by at most its own rounding: the largest of
    eight random changes. Some sampled networks (a gate without a limit, a state that grows) are chaotic, and no arithmetic in
    their dtype has a result to agree on."""
    moved = [0.0] * len(expected)
    for seed in range(8):
        numbers = np.random.default_rng(seed)

        def changed(value: Array, numbers: np.random.Generator = numbers) -> Array:
            if value.dtype.kind in "bi":
                return value
            return value.astype(np.float64) * (1 + _ROUNDING[made.dtype] * numbers.uniform(-1, 1, value.shape))

        other = replace(made, arguments={name: changed(value) for name, value in made.arguments.items()})
        forward, gradients, _ = reference(other)
        moved = [max(most, difference(a, b)) for most, a, b in zip(moved, [*forward, *gradients], expected, strict=True)]
    return moved


def kernel_jobs(made: Sample, device: Device) -> list[warm.Job]:
    """The kernels a sample needs."""
    exact = made.dtype == "highest"
    present = {name: name in made.arguments for name in ("bias", "mask", "lengths", "resets")}
    return warm.jobs(
        made.descriptor,
        "float32" if exact else made.dtype,
        made.sizes[1],
        made.sizes[3],
        device,
        peephole="peephole" in made.arguments,
        input_weight="input_weight" in made.arguments,
        options=sum(1 << place for place, given in enumerate(present.values()) if given),
        exact=exact,
        wanted=Wish(made.family, made.pick, made.starve),
    )
