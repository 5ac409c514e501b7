"""Array kinds: how an argument is read without a copy, and how a result becomes the caller's kind again.

Frameworks are recognised by the arrays they made; gatewise never imports one first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import DTypeError, UnsupportedError


def plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy of it, in contiguous, aligned memory: what the native module reads."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    array = np.ascontiguousarray(array)
    return array if array.flags.aligned else array.copy()


def bfloat16() -> np.dtype[Any]:
    """NumPy's bfloat16, from ml_dtypes, imported when first needed."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]


class Kind:
    """One array framework on one device: reads arguments, wraps results. This class is the kind of NumPy arrays."""

    name = "numpy"
    device = "cpu"

    def read(self, operation: str, name: str, value: Any) -> np.ndarray[Any, Any]:
        """The argument as a NumPy view. Any kind of CPU array is taken, whatever kind `source` is."""
        if type(value) is np.ndarray:
            return value
        return _reader(operation, name, value)(operation, name, value)

    def wrap(self, result: np.ndarray[Any, Any]) -> Any:
        return result


class _Torch(Kind):
    name = "torch"

    def wrap(self, result: np.ndarray[Any, Any]) -> Any:
        torch = sys.modules["torch"]
        if result.dtype.name == "bfloat16":
            return torch.from_numpy(result.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(result)


class _Jax(Kind):
    name = "jax"

    def wrap(self, result: np.ndarray[Any, Any]) -> Any:
        # jnp.asarray would silently narrow float64 to float32 while JAX's 64-bit mode is off.
        jax = sys.modules["jax"]
        if result.dtype == np.float64 and not jax.config.jax_enable_x64:  # pragma: no cover - JAX makes no such input
            raise UnsupportedError("float64 results need JAX's 64-bit mode: set jax_enable_x64")
        return jax.numpy.asarray(result)


class _Standard(Kind):
    """Any other array with DLPack and the array API's namespace."""

    def __init__(self, namespace: Any) -> None:
        self.name = namespace.__name__
        self._namespace = namespace

    def wrap(self, result: np.ndarray[Any, Any]) -> Any:
        return self._namespace.from_dlpack(result)


NUMPY = Kind()
_TORCH = _Torch()
_JAX = _Jax()


def _is(value: Any, module: str, attribute: str) -> bool:
    framework = sys.modules.get(module)
    return framework is not None and isinstance(value, getattr(framework, attribute))


def kind_of(operation: str, name: str, value: Any) -> Kind:
    """The kind of the argument that decides what the results will be."""
    if isinstance(value, np.ndarray):
        return NUMPY
    if _is(value, "torch", "Tensor"):
        if value.device.type == "cuda":
            from .device_arrays import torch_kind

            return torch_kind(value.device.index)
        return _TORCH
    if _is(value, "jax", "Array"):
        device = next(iter(value.devices())) if not isinstance(value, sys.modules["jax"].core.Tracer) else None
        if device is not None and device.platform == "gpu":
            from .device_arrays import jax_kind

            return jax_kind(device)
        return _JAX
    if _is(value, "cupy", "ndarray"):
        from .device_arrays import cupy_kind

        return cupy_kind(value.device.id)
    if hasattr(value, "__dlpack__") and hasattr(value, "__array_namespace__"):
        try:
            return _Standard(value.__array_namespace__())
        except Exception as error:  # every library raises its own
            raise DTypeError(f"{operation}: {name} does not tell its array namespace: {error}") from error
    raise _not_an_array(operation, name, value)


def _not_an_array(operation: str, name: str, value: Any) -> DTypeError:
    return DTypeError(
        f"{operation}: {name} must be an array (NumPy, or any with DLPack), got {type(value).__name__} "
        "(numpy.asarray makes one)"
    )


def _reader(operation: str, name: str, value: Any) -> Callable[[str, str, Any], np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return _read_subclass
    if _is(value, "torch", "Tensor"):
        return _read_torch
    if _is(value, "jax", "Array"):
        return _read_jax
    if hasattr(value, "__dlpack__"):
        return _read_dlpack
    raise _not_an_array(operation, name, value)


def _read_subclass(operation: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeError(f"{operation}: {name} is a masked array, whose mask would be lost (use .filled(...))")
    return np.asarray(value)


def _read_torch(operation: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        raise UnsupportedError(
            f"{operation}: {name} is on device {value.device}, where no engine is installed (.cpu() brings it here)"
        )
    if value.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            f"{operation}: {name} requires grad, which an eager operation would lose "
            "(call it on .detach()ed tensors or under torch.no_grad(), and use the _gradients operation)"
        )
    try:
        value = value.detach()
        if value.dtype == torch.bfloat16:
            return value.view(torch.uint16).numpy().view(bfloat16())  # type: ignore[no-any-return]
        return value.numpy()  # type: ignore[no-any-return]
    except (RuntimeError, TypeError) as error:
        raise DTypeError(f"{operation}: {name} cannot be read as a plain array: {error}") from error


def _read_jax(operation: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    jax = sys.modules["jax"]
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedError(
            f"{operation}: {name} is being traced by JAX; the eager operations need arrays with values "
            "(call them outside jit, grad and vmap)"
        )
    platform = next(iter(value.devices())).platform
    if platform != "cpu":
        raise UnsupportedError(f"{operation}: {name} is on JAX platform {platform}, where no engine is installed")
    return np.asarray(value)


def _read_dlpack(operation: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.from_dlpack(value)
    except Exception as error:  # every library raises its own
        raise DTypeError(f"{operation}: {name} could not be read through DLPack: {error}") from error
