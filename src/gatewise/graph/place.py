"""Where a run computes: one array namespace on one device, decided by the arrays it is fed."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any

import numpy as np

from .. import arrays
from ..errors import ArgumentError, DTypeError, UnsupportedError
from .tensor import FLOATING, DType, as_dtype

# How many runs the graph has finished: what random operations draw from, besides their seed.
RUN_NUMBER: ContextVar[int] = ContextVar("gatewise_run_number", default=0)


class Place:
    """One array namespace on one device. `xp` follows the array API standard."""

    def __init__(self, xp: Any, device: Any) -> None:
        self.xp = xp
        self.device = device
        self.is_numpy = xp.__name__.endswith("numpy") and not xp.__name__.startswith(("jax", "cupy"))
        self.is_torch = xp.__name__.endswith("torch")
        self.on_cpu = self.is_numpy or "cpu" in str(device).lower()
        self._dtypes: dict[DType, Any] = {}

    def __repr__(self) -> str:
        return f"<Place {self.xp.__name__} on {self.device}>"

    def dtype(self, dtype: DType) -> Any:
        """The namespace's own name of a dtype."""
        found = self._dtypes.get(dtype)
        if found is None:
            found = dtype if self.is_numpy else getattr(self.xp, dtype.name, None)
            if found is None:
                raise UnsupportedError(f"{self.xp.__name__} has no {dtype.name}")
            self._dtypes[dtype] = found
        return found

    def move(self, array: Any) -> Any:
        """An array of any kind, here. A NumPy array that is here already is not copied."""
        if self.is_numpy:
            return to_numpy(array)
        if place_of(array) is self:
            return array
        array = to_numpy(array)
        if self.is_torch:
            return _to_torch(array).to(self.device)
        return self.xp.asarray(array, device=self.device)

    def copy(self, array: Any) -> Any:
        if self.is_numpy:
            return np.array(array)
        return self.xp.asarray(array, copy=True)

    def cast(self, array: Any, dtype: DType) -> Any:
        return self.xp.astype(array, self.dtype(dtype), copy=False)

    def widen(self, array: Any) -> Any:
        """float16 and bfloat16 as float32, in which sums and functions are computed; everything else as it is."""
        if is_narrow(array):
            return self.xp.astype(array, self.dtype(np.dtype(np.float32)))
        return array

    def like(self, array: Any, original: Any) -> Any:
        """Back to the dtype of the array that was widened."""
        return array if array.dtype == original.dtype else self.xp.astype(array, original.dtype)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return self.xp.zeros(shape, dtype=like.dtype, device=self.device)

    def full(self, shape: tuple[int, ...], value: float, like: Any) -> Any:
        kind = dtype_of(like).name
        if kind not in FLOATING:
            value = bool(value) if kind == "bool" else int(value)
        return self.xp.full(shape, value, dtype=like.dtype, device=self.device)

    def arange(self, end: int) -> Any:
        return self.xp.arange(end, dtype=self.xp.int64, device=self.device)

    def put(self, target: Any, key: Any, value: Any) -> Any:
        """`target[key] = value` on an array nobody else has seen."""
        if hasattr(target, "at"):  # JAX arrays never change
            return target.at[key].set(value)
        target[key] = value
        return target


_places: dict[tuple[Any, str], Place] = {}
_dtype_names: dict[Any, DType] = {}
_numpy_place: Place | None = None


def numpy_place() -> Place:
    global _numpy_place
    if _numpy_place is None:
        import array_api_compat.numpy

        _numpy_place = Place(array_api_compat.numpy, "cpu")
    return _numpy_place


def place_of(array: Any) -> Place:
    """The place of an array of any framework that has an array API namespace."""
    if isinstance(array, (np.ndarray, np.generic)):
        return numpy_place()
    import array_api_compat

    xp = array_api_compat.array_namespace(array)
    device = array_api_compat.device(array)
    key = xp, str(device)  # CuPy's devices have no hash
    found = _places.get(key)
    if found is None:
        found = _places.setdefault(key, Place(xp, device))
    return found


def is_array(value: Any) -> bool:
    """Whether a value is an array of some framework (not a Python number or list)."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    import array_api_compat

    return bool(array_api_compat.is_array_api_obj(value))


def dtype_of(array: Any) -> DType:
    """The NumPy dtype of any framework's array."""
    dtype = array.dtype
    if isinstance(dtype, np.dtype):
        return dtype
    found = _dtype_names.get(dtype)
    if found is None:
        found = _dtype_names[dtype] = as_dtype(str(dtype).rsplit(".", 1)[-1])
    return found


def is_narrow(array: Any) -> bool:
    """Whether it is float16 or bfloat16."""
    dtype = dtype_of(array)
    return dtype.itemsize == 2 and dtype.kind in "fV"  # NumPy sees bfloat16 as a void


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The array in main memory, copied only when it is elsewhere."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, np.generic):
        return np.asarray(array)
    if hasattr(array, "get") and type(array).__module__.startswith("cupy"):
        return np.asarray(array.get())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().cpu()
    return arrays.NUMPY.read("move", "array", array)


def _to_torch(array: np.ndarray[Any, Any]) -> Any:
    """A copy in main memory: torch has no arrays that may not be written to."""
    torch = sys.modules["torch"]
    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def decide(feeds: list[Any], variables: list[Any]) -> Place:
    """Where a run computes: with its feeds; without any, where its variables are. NumPy arrays follow the others."""
    chosen: Place | None = None
    for array in [*feeds, *(() if feeds else variables)]:
        place = place_of(array)
        if chosen is None or chosen.is_numpy:
            chosen = place
        elif place is not chosen and not place.is_numpy:
            raise ArgumentError(f"the feeds are in different places: {chosen} and {place}")
    return chosen or numpy_place()


def check_feed(array: Any) -> None:
    """Refuse arrays that carry something a run would lose."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and array.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "requires grad, which a graph would lose (feed .detach()ed tensors; graph.gradients differentiates)"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise DTypeError("is a masked array, whose mask would be lost (use .filled(...))")
