"""The families of operations. Each file holds its methods of `Graph` and, beside them, their rules."""

from __future__ import annotations

from .activations import Activations
from .arithmetic import Arithmetic
from .data import Data
from .indexing import Indexing
from .matrix import Matrix
from .optimizers import Optimizers
from .pieces import Pieces
from .random import Random
from .recurrent import Recurrent
from .reductions import Reductions
from .shaping import Shaping
from .softmax import SoftMax
from .unary import Unary

__all__ = [
    "Activations",
    "Arithmetic",
    "Data",
    "Indexing",
    "Matrix",
    "Optimizers",
    "Pieces",
    "Random",
    "Recurrent",
    "Reductions",
    "Shaping",
    "SoftMax",
    "Unary",
]
