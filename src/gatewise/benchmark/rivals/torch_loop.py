"""The variants as a PyTorch user writes them: the input product for all steps at once, then a loop over a step function.

The step runs eagerly or through torch.compile. Compiling the whole loop would unroll it, for minutes; the step alone is
what people compile.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ..shapes import MODES
from ..work import Array, Work
from . import Prepared, UnableError, missing

_COMPILE_SECONDS = 120
_DIFFERENTIATED = (
    "source",
    "recurrent_weight",
    "input_weight",
    "bias",
    "peephole",
    "init_state",
    "init_cell",
    "secondary_bias",
)

Tensor = Any
Step = Callable[..., Any]


def _sigmoid(work: Work) -> Callable[[Tensor], Tensor]:
    import torch

    if work.variant.hard_sigmoid:
        return lambda x: torch.clamp(0.2 * x + 0.5, 0.0, 1.0)
    return torch.sigmoid  # type: ignore[no-any-return]


def _lstm_step(work: Work) -> Step:
    import torch

    sigmoid = _sigmoid(work)

    def step(x: Tensor, h: Tensor, c: Tensor, given: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor]:
        operand = h if mask is None else h * mask
        gates = torch.addmm(x, operand, given["recurrent_weight"].t())
        if "peephole" in given:
            gates = gates + given["peephole"] * torch.cat([c, c, c, c], -1)
        i, f, z, o = gates.chunk(4, -1)
        c = sigmoid(f) * c + sigmoid(i) * torch.tanh(z)
        return sigmoid(o) * torch.tanh(c), c

    return step


def _gru_step(work: Work) -> Step:
    import torch

    sigmoid = _sigmoid(work)
    H = work.shape.H

    def step(x: Tensor, h: Tensor, c: None, given: dict[str, Tensor], mask: Tensor | None) -> tuple[Tensor, None]:
        weight = given["recurrent_weight"]
        operand = h if mask is None else h * mask
        if work.variant.reset_before:
            r, z = sigmoid(torch.addmm(x[:, : 2 * H], operand, weight[: 2 * H].t())).chunk(2, -1)
            o = torch.tanh(torch.addmm(x[:, 2 * H :], r * operand, weight[2 * H :].t()))
        else:
            product = operand @ weight.t()
            r, z = sigmoid(x[:, : 2 * H] + product[:, : 2 * H]).chunk(2, -1)
            o = torch.tanh(x[:, 2 * H :] + r * (product[:, 2 * H :] + given["secondary_bias"]))
        return z * h + (1 - z) * o, None

    return step


def _with_rows(work: Work, plain: Step) -> Step:
    """The step with resets before it and with rows that have ended left as they are."""
    import torch

    def step(x: Tensor, h: Tensor, c: Any, given: Any, mask: Any, keep: Any, active: Any) -> tuple[Tensor, Tensor, Any]:
        if keep is not None:
            h = h * keep
            c = None if c is None else c * keep
        new, new_c = plain(x, h, c, given, mask)
        if active is None:
            return new, new, new_c
        carried_c = None if c is None else torch.where(active, new_c, c)
        return torch.where(active, new, 0.0), torch.where(active, new, h), carried_c

    return step


class TorchLoop:
    modes: tuple[str, ...] = MODES

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.name = "torch loop, compiled" if compiled else "torch loop"
        self._broken: str | None = None  # why compiling failed once; not tried again

    def unavailable(self) -> str | None:
        if self._broken is None and self.compiled and not (shutil.which("g++") or shutil.which("clang++")):
            self._broken = "torch.compile needs a C++ compiler (g++ or clang++)"
        return missing("torch") or self._broken

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        import torch

        if work.cell == "single" or work.shape.bidirectional:
            raise UnableError("the loops are written for one direction of LSTM and GRU")
        step = _with_rows(work, {"lstm": _lstm_step, "gru": _gru_step}[work.cell](work))
        if self.compiled:
            step = torch.compile(step, dynamic=False)
        training = mode == "training"
        given = {name: torch.from_numpy(work.arguments[name].copy()) for name in _DIFFERENTIATED if name in work.arguments}
        if training:
            for tensor in given.values():
                tensor.requires_grad_()
        per_step = {name: work.arguments[name] for name in ("mask", "lengths", "resets") if name in work.arguments}
        loop = _loop(work, step, given, {name: torch.from_numpy(array) for name, array in per_step.items()})
        gradient = torch.from_numpy(work.output_gradient)

        def call() -> Any:
            with torch.set_grad_enabled(training):
                state = loop()
                return state, torch.autograd.grad(state, list(given.values()), gradient) if training else ()

        def results(raw: Any) -> dict[str, Array]:
            found = zip(given, raw[1], strict=False)
            return {"state": raw[0].detach().numpy(), **{f"gradient of {name}": array.numpy() for name, array in found}}

        if self.compiled:
            self._compile(call)
        return Prepared(call, results)

    def _compile(self, call: Callable[[], Any]) -> None:
        """The first call, which compiles. torch.compile raises many kinds of errors; each means there is no such rival."""
        import torch

        torch._dynamo.reset()
        try:
            with _within(_COMPILE_SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
        except TimeoutError:
            self._broken = f"torch.compile took longer than {_COMPILE_SECONDS} s"
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._broken = f"torch.compile failed: {first[:200]}"
        if self._broken:
            raise UnableError(self._broken)


def _loop(work: Work, step: Step, given: dict[str, Tensor], per_step: dict[str, Tensor]) -> Callable[[], Tensor]:
    import torch

    T = work.shape.T
    nothing: list[Any] = [None] * T
    masks = per_step.get("mask", nothing)
    keeps: Any = nothing
    actives: Any = nothing
    if "resets" in per_step:
        keeps = (~per_step["resets"]).to(torch.float32).unsqueeze(-1)
    if "lengths" in per_step:
        actives = (torch.arange(T).unsqueeze(1) < per_step["lengths"]).unsqueeze(-1)
    inside = {name: given[name] for name in ("recurrent_weight", "peephole", "secondary_bias") if name in given}

    def loop() -> Tensor:
        projected = torch.nn.functional.linear(given["source"], given["input_weight"], given["bias"])
        h, c = given["init_state"], given.get("init_cell")
        states = []
        for x, mask, keep, active in zip(projected.unbind(0), masks, keeps, actives, strict=True):
            state, h, c = step(x, h, c, inside, mask, keep, active)
            states.append(state)
        return torch.stack(states)

    return loop


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds, where the system can (the main thread, not Windows)."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expire(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    running = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *running)
