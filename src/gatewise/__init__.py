"""gatewise: every recurrent network, on any machine, at the speed of the hardware."""

from .descriptors import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from .engines import use_engine
from .engines.cpu import get_threads, set_threads
from .errors import ArgumentError, DTypeError, GatewiseError, ShapeError, UnsupportedError
from .operations import gru, gru_gradients, lstm, lstm_gradients, single_gate_rnn, single_gate_rnn_gradients
from .precision import use_precision

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "DTypeError",
    "GRUDescriptor",
    "GatewiseError",
    "LSTMDescriptor",
    "RNNActivation",
    "ShapeError",
    "SingleGateRNNDescriptor",
    "UnsupportedError",
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
