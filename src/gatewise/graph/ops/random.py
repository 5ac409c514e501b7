"""Random numbers: NumPy's Philox, keyed by seed and run, so that every kind of array gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ArgumentError, DTypeError
from ..builder import Builder
from ..place import RUN_NUMBER, Place
from ..rules import Attributes, Results, no_gradient, rule
from ..shapes import known, need_equal, need_floating
from ..tensor import Tensor, TensorLike, as_shape

_DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")
_FLOAT32 = np.dtype(np.float32)


class Random(Builder):
    """Random tensors. The numbers follow from the seed and from how many runs the graph has finished."""

    def random_tensor(
        self, shape: Sequence[int], distribution: str = "uniform", seed: int = 0, name: str | None = None
    ) -> Tensor:
        """float32: "uniform" from 0 up to 1, "normal", or "truncated_normal", a normal drawn again beyond ±2.

        Each run draws new numbers; the same seed gives the same sequence in every graph and on every device.
        """
        with self._checking("random_tensor", name):
            if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**64:
                raise ArgumentError(f"seed must be a whole number from 0 to 2**64 - 1, got {seed!r}")
            attributes = {"shape": as_shape(shape), "distribution": distribution, "seed": int(seed)}
        return self._one("random_tensor", [], attributes, name)

    def dropout(self, tensor: Tensor, rate: TensorLike, name: str | None = None) -> Tensor:
        """Each element is 0 with probability `rate`, else divided by `1 - rate`. A tensor as rate can be fed: 0 for none."""
        kind = "dropout"
        if isinstance(rate, (int, float)) and not 0 <= rate < 1:
            raise self._refuse(kind, ArgumentError(f"rate must be from 0 to below 1, got {rate}"), name)
        inputs = self._tensors(kind, tensor, rate)
        seed = sum(1 for operation in self._operations if operation.kind == "dropout_mask")
        mask = self._one("dropout_mask", inputs, {"seed": seed}, None if name is None else f"{name}/mask")
        return self._one("multiplication", [inputs[0], mask], None, name or kind)


def _generator(seed: int, stream: int) -> np.random.Generator:
    """A generator of its own for every seed, stream and run of the graph."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, RUN_NUMBER.get(), 0]))


def _random_shape(attributes: Attributes) -> Results:
    shape = as_shape(attributes["shape"])
    if not known(shape):
        raise ArgumentError("shape must be known")
    if attributes["distribution"] not in _DISTRIBUTIONS:
        raise ArgumentError(f"distribution must be one of {', '.join(_DISTRIBUTIONS)}, got {attributes['distribution']!r}")
    return [(shape, _FLOAT32)]


def _random(place: Place, attributes: Attributes) -> Any:
    generator = _generator(attributes["seed"], 0)
    shape = attributes["shape"]
    if attributes["distribution"] == "uniform":
        return place.move(generator.random(shape, np.float32))
    numbers = np.asarray(generator.standard_normal(shape, np.float32))
    if attributes["distribution"] == "truncated_normal":
        while (beyond := np.abs(numbers) > 2).any():
            numbers[beyond] = generator.standard_normal(int(beyond.sum()), np.float32)
    return place.move(numbers)


rule(
    "random_tensor",
    _random_shape,
    _random,
    no_gradient,
    fields={"shape": tuple, "distribution": str, "seed": int},
    pure=False,
)


def _mask_shape(attributes: Attributes, source: Any, rate: Any) -> Results:
    need_floating(source.dtype)
    need_equal(source.dtype, rate.dtype)
    if rate.shape != ():
        raise DTypeError(f"rate must be a number, got a tensor of rank {len(rate.shape)}")
    return [(source.shape, source.dtype)]


def _mask(place: Place, attributes: Attributes, source: Any, rate: Any) -> Any:
    value = float(rate)
    if not 0 <= value < 1:
        raise ArgumentError(f"rate must be from 0 to below 1, got {value}")
    drawn = _generator(attributes["seed"], 1).random(tuple(source.shape), np.float32)
    kept = place.move(drawn >= np.float32(value))
    return place.xp.where(kept, place.full((), 1.0 / (1.0 - value), source), place.full((), 0.0, source))


rule("dropout_mask", _mask_shape, _mask, no_gradient, fields={"seed": int}, pure=False)
