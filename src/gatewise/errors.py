"""What gatewise raises. Every message names the operation and the argument, what was expected and what came."""

from __future__ import annotations


class GatewiseError(Exception):
    """Base of every error raised by gatewise."""


class ShapeError(GatewiseError, ValueError):
    """An argument has the wrong shape or rank."""


class DTypeError(GatewiseError, TypeError):
    """An argument has the wrong dtype or the wrong Python type."""


class ArgumentError(GatewiseError, ValueError):
    """An argument is missing, is given where it has no meaning, or has a value out of range."""


class UnsupportedError(GatewiseError, NotImplementedError):
    """The call is valid but no installed engine can run it where its arrays are."""
