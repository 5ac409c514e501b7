"""What is measured: the shapes, the cells, the variants and their flop counts. The only place that lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GATES = {"lstm": 4, "gru": 3, "single": 1}
CELLS = tuple(GATES)
MODES = ("forward", "training")
OURS, CONSTANT = "gatewise", "gatewise constant"  # weights as arrays, and as constants


@dataclass(frozen=True)
class Shape:
    """T steps, N rows, I input features, H hidden units, one or two directions."""

    T: int
    N: int
    I: int  # noqa: E741  the field's own letter
    H: int
    bidirectional: bool = False

    @property
    def D(self) -> int:
        return 2 if self.bidirectional else 1

    def __str__(self) -> str:
        return f"{self.T},{self.N},{self.I},{self.H}" + (",bi" if self.bidirectional else "")


@dataclass(frozen=True)
class Variant:
    """A cell with options that fused libraries leave out."""

    name: str
    cell: str
    peephole: bool = False
    mask: bool = False
    hard_sigmoid: bool = False
    reset_before: bool = False
    lengths: bool = False
    resets: bool = False


STANDARD = (
    Shape(1, 1, 256, 256),
    Shape(1, 8, 512, 128),
    Shape(128, 8, 512, 128),
    Shape(100, 1, 256, 256),
    Shape(200, 32, 32, 40),
    Shape(365, 256, 32, 128),
    Shape(300, 16, 256, 256),
    Shape(100, 32, 256, 256),
    Shape(200, 16, 40, 320),
    Shape(50, 64, 512, 512),
    Shape(50, 1, 512, 512),
    Shape(50, 32, 1024, 1024),
    Shape(100, 32, 256, 256, bidirectional=True),
)
QUICK = (STANDARD[0], STANDARD[3], STANDARD[4], STANDARD[7])

PLAIN = {cell: Variant("plain", cell) for cell in CELLS}
_ALL: dict[str, Any] = {"mask": True, "hard_sigmoid": True, "lengths": True, "resets": True}
VARIANTS = (
    Variant("peephole", "lstm", peephole=True),
    Variant("mask", "lstm", mask=True),
    Variant("hard sigmoid gates", "lstm", hard_sigmoid=True),
    Variant("lengths", "lstm", lengths=True),
    Variant("resets", "lstm", resets=True),
    Variant("all at once", "lstm", peephole=True, **_ALL),
    Variant("reset before", "gru", reset_before=True),
    Variant("all at once", "gru", reset_before=True, **_ALL),
)
VARIANTS_SHAPES = (Shape(100, 32, 256, 256), Shape(200, 32, 32, 40))  # bound by products, and not

LINEARITY = tuple(Shape(T, 8, 256, 256) for T in (100, 300, 1000, 3000, 10_000))
MEMORY = (*STANDARD, Shape(1000, 32, 256, 256), Shape(300, 16, 256, 256, bidirectional=True))


def flops(cell: str, shape: Shape, mode: str) -> int:
    """Floating-point operations of the matrix products; a training step has three products for each forward one."""
    forward = 2 * shape.T * shape.N * shape.D * GATES[cell] * shape.H * (shape.I + shape.H)
    return forward * (3 if mode == "training" else 1)


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """`"T,N,I,H;…"`, with `,bi` after a bidirectional one."""
    shapes = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        fields = [field.strip() for field in part.split(",")]
        numbers = fields[:4]
        if (
            not all(field.isascii() and field.isdigit() and int(field) for field in numbers)
            or len(numbers) != 4
            or fields[4:] not in ([], ["bi"])
        ):
            raise ValueError(f"a shape is T,N,I,H or T,N,I,H,bi with whole numbers from 1, got {part!r}")
        T, N, features, H = map(int, numbers)
        shapes.append(Shape(T, N, features, H, bidirectional=bool(fields[4:])))
    if not shapes:
        raise ValueError("no shape given: write T,N,I,H with ; between shapes")
    return tuple(shapes)


def parse_names(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """A comma-separated choice of the known names, in the known order."""
    chosen = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(chosen - set(known))
    if unknown or not chosen:
        raise ValueError(f"{what} must be some of {', '.join(known)}, got {text!r}")
    return tuple(name for name in known if name in chosen)
