"""gatewise: every recurrent network, on any machine, at the speed of the hardware."""

from typing import TYPE_CHECKING, Any

from .descriptors import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from .engines import use_engine
from .engines.cpu import constant, get_threads, set_threads
from .errors import ArgumentError, DTypeError, GatewiseError, ShapeError, UnsupportedError
from .operations import gru, gru_gradients, lstm, lstm_gradients, single_gate_rnn, single_gate_rnn_gradients
from .precision import use_precision

if TYPE_CHECKING:
    from .graph import Executable, Graph, Operation, ShapedType, Tensor

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "DTypeError",
    "Executable",
    "GRUDescriptor",
    "GatewiseError",
    "Graph",
    "LSTMDescriptor",
    "Operation",
    "RNNActivation",
    "ShapeError",
    "ShapedType",
    "SingleGateRNNDescriptor",
    "Tensor",
    "UnsupportedError",
    "constant",
    "get_threads",
    "gru",
    "gru_gradients",
    "lstm",
    "lstm_gradients",
    "set_threads",
    "single_gate_rnn",
    "single_gate_rnn_gradients",
    "use_engine",
    "use_precision",
]


def __getattr__(name: str) -> Any:
    """The graph's names, imported when first asked for: who calls only the eager operations does not wait for them."""
    if name in ("Executable", "Graph", "Operation", "ShapedType", "Tensor"):
        from . import graph

        return getattr(graph, name)
    raise AttributeError(f"module 'gatewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
