from typing import Any

def forward(
    cell: int,
    activations: tuple[int, ...],
    order: tuple[int, ...],
    dtype: int,
    sizes: tuple[int, int, int, int],
    backwards: tuple[bool, ...],
    mask_stride: tuple[int, int, int],
    arrays: dict[str, Any],
) -> None: ...
def gradients(
    cell: int,
    activations: tuple[int, ...],
    order: tuple[int, ...],
    dtype: int,
    sizes: tuple[int, int, int, int],
    backwards: tuple[bool, ...],
    mask_stride: tuple[int, int, int],
    arrays: dict[str, Any],
) -> None: ...
def maths(function: str, source: Any, result: Any) -> None: ...
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> bool: ...
