"""Array kinds: what goes in comes out, in every dtype, and what cannot be read is refused."""

from __future__ import annotations

from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import gatewise
from gatewise import DTypeError, LSTMDescriptor, UnsupportedError

T, N, I, H = 3, 2, 4, 5  # noqa: E741
DTYPES = ("float32", "float16", "bfloat16", "float64")


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" else np.dtype(name)


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(array)


def from_any(array: Any) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        return array.double().numpy()
    if type(array).__module__.startswith("array_api_strict"):
        return np.from_dlpack(array).astype(np.float64)
    return np.asarray(array).astype(np.float64)


MAKERS = {"numpy": np.asarray, "torch": to_torch, "jax": jnp.asarray, "array_api_strict": array_api_strict.asarray}
KINDS = {
    "numpy": np.ndarray,
    "torch": torch.Tensor,
    "jax": jax.Array,
    "array_api_strict": array_api_strict.asarray(0).__class__,
}


@pytest.fixture(autouse=True)
def _sixty_four_bits() -> Any:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def arguments(dtype: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    shapes = {"source": (T, N, I), "recurrent_weight": (4 * H, H), "input_weight": (4 * H, I), "bias": (4 * H,), "mask": (H,)}
    return {name: random.uniform(-1, 1, shape).astype(numpy_dtype(dtype)) for name, shape in shapes.items()}


# The array API standard has no 16-bit floats.
PAIRS = [(kind, dtype) for kind in MAKERS for dtype in DTYPES if kind != "array_api_strict" or "16" not in dtype]


@pytest.mark.parametrize(("kind", "dtype"), PAIRS)
def test_results_are_the_callers_kind(kind: str, dtype: str) -> None:
    plain = arguments(dtype)
    given = {name: MAKERS[kind](array) for name, array in plain.items()}
    lengths, resets = MAKERS[kind](np.array([3, 2])), MAKERS[kind](np.array([[False, True]] * T))
    descriptor = LSTMDescriptor(training=True)
    wanted = gatewise.lstm(**plain, descriptor=descriptor, lengths=np.array([3, 2]), resets=np.array([[False, True]] * T))
    found = gatewise.lstm(**given, descriptor=descriptor, lengths=lengths, resets=resets)
    for have, want in zip(found, wanted, strict=True):
        assert isinstance(have, KINDS[kind])
        assert str(have.dtype).split(".")[-1] == dtype
        assert tuple(have.shape) == want.shape
        assert np.array_equal(from_any(have), from_any(want))

    upstream = np.ones((T, N, H), numpy_dtype(dtype))
    saved = {"z_state": wanted[2], "cell_output_fwd": wanted[1], "source_gradient": upstream}
    wanted = gatewise.lstm_gradients(**plain, **saved, descriptor=descriptor)
    saved = {"z_state": found[2], "cell_output_fwd": found[1], "source_gradient": MAKERS[kind](upstream)}
    found = gatewise.lstm_gradients(**given, **saved, descriptor=descriptor)
    for have, want in zip(found, wanted, strict=True):
        assert isinstance(have, KINDS[kind])
        assert str(have.dtype).split(".")[-1] == dtype
        assert np.array_equal(from_any(have), from_any(want))


def test_mixed_kinds_follow_the_source() -> None:
    plain = arguments("float32")
    found = gatewise.lstm(torch.from_numpy(plain["source"]), plain["recurrent_weight"], jnp.asarray(plain["input_weight"]))
    assert isinstance(found[0], torch.Tensor)
    found = gatewise.lstm(plain["source"], torch.from_numpy(plain["recurrent_weight"]), plain["input_weight"])
    assert type(found[0]) is np.ndarray


def test_results_own_their_memory() -> None:
    """Writing to a result changes nothing else; torch may write to it."""
    plain = arguments("float32")
    tensors = {name: torch.from_numpy(array) for name, array in plain.items()}
    first, again = gatewise.lstm(**tensors)[0], gatewise.lstm(**tensors)[0]
    first.zero_()
    assert torch.equal(gatewise.lstm(**tensors)[0], again)


def test_torch_views_are_read_in_place() -> None:
    """Any strides: a transposed weight is the weight it looks like."""
    plain = arguments("float32")
    turned = torch.from_numpy(np.ascontiguousarray(plain["recurrent_weight"].T)).T
    assert not turned.is_contiguous()
    found = gatewise.lstm(torch.from_numpy(plain["source"]), turned, torch.from_numpy(plain["input_weight"]))
    wanted = gatewise.lstm(plain["source"], plain["recurrent_weight"], plain["input_weight"])
    assert np.array_equal(found[0].numpy(), wanted[0])


def test_subclass_is_read_and_masked_array_refused() -> None:
    class Named(np.ndarray):
        pass

    plain = arguments("float32")
    found = gatewise.lstm(plain["source"].view(Named), plain["recurrent_weight"], plain["input_weight"])
    assert type(found[0]) is np.ndarray
    with pytest.raises(DTypeError, match="lstm: source is a masked array, whose mask would be lost"):
        gatewise.lstm(np.ma.masked_array(plain["source"]), plain["recurrent_weight"], plain["input_weight"])


def test_torch_requires_grad_is_refused() -> None:
    tensors = {name: torch.from_numpy(array) for name, array in arguments("float32").items()}
    tensors["bias"].requires_grad_()
    with pytest.raises(UnsupportedError, match="lstm: bias requires grad, which an eager operation would lose"):
        gatewise.lstm(**tensors)
    with torch.no_grad():
        assert isinstance(gatewise.lstm(**tensors)[0], torch.Tensor)


def test_tensors_that_are_not_plain_are_refused() -> None:
    plain = {name: torch.from_numpy(array) for name, array in arguments("float32").items()}
    meta = plain["source"].to("meta")
    sparse = plain["bias"].to_sparse()
    negative = torch.complex(plain["source"], plain["source"]).conj().imag
    with pytest.raises(UnsupportedError, match="lstm: source is on device meta, where no engine is installed"):
        gatewise.lstm(**plain | {"source": meta})
    with pytest.raises(DTypeError, match="lstm: bias cannot be read as a plain array"):
        gatewise.lstm(**plain | {"bias": sparse})
    with pytest.raises(DTypeError, match="lstm: source"):
        gatewise.lstm(**plain | {"source": plain["source"].to(torch.complex64)})
    assert negative.is_neg()  # a lazily negated view: either refused or read right
    try:
        found = gatewise.lstm(**plain | {"source": negative})[0]
    except DTypeError:
        return
    assert torch.equal(found, gatewise.lstm(**plain | {"source": negative.resolve_neg()})[0])


def test_jax_tracers_are_refused() -> None:
    plain = {name: jnp.asarray(array) for name, array in arguments("float32").items()}

    def call(source: Any) -> Any:
        return gatewise.lstm(**plain | {"source": source})[0].sum()

    with pytest.raises(UnsupportedError, match="lstm: source is being traced by JAX"):
        jax.jit(call)(plain["source"])
    with pytest.raises(UnsupportedError, match="lstm: source is being traced by JAX"):
        jax.grad(call)(plain["source"])


@pytest.mark.parametrize("isa", gatewise.engines.cpu._native.instruction_sets())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_read_in_full_and_rounded_once(dtype: str, isa: str) -> None:
    """Every number there is, subnormal, infinite and NaN too, plus one of another size: summed in float32, to the nearest."""
    every = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))
    numbers = every[np.isfinite(every.astype(np.float32))]
    options = gatewise.SingleGateRNNDescriptor(activation=gatewise.RNNActivation.NONE)
    native = gatewise.engines.cpu._native
    before = native.instruction_set()
    assert native.use_instruction_set(isa)
    try:
        for units in (64, 61):  # whole vectors, and a part of one
            source = every.reshape(1, 1024, 64)[..., :units]
            bias = np.random.default_rng(3).permutation(numbers)[:units]
            weight = np.zeros((units, units), bias.dtype)
            (state,) = gatewise.single_gate_rnn(source, weight, bias=bias, descriptor=options)
            with np.errstate(all="ignore"):
                expected = (source.astype(np.float32) + bias.astype(np.float32)).astype(bias.dtype)
            np.testing.assert_array_equal(state.astype(np.float32), expected.astype(np.float32))
    finally:
        native.use_instruction_set(before)
