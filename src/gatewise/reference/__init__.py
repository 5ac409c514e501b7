"""The executable specification: every operation as a plain loop in NumPy float64."""

from .sequence import forward, gradients

__all__ = ["forward", "gradients"]
