"""Graphs of operations: build, differentiate, compile, run, save, look at."""

from __future__ import annotations

from .executable import Executable
from .graph import Graph
from .tensor import Operation, ShapedType, Tensor

__all__ = ["Executable", "Graph", "Operation", "ShapedType", "Tensor"]
