"""PyTorch's nn.LSTM, nn.GRU and nn.RNN, which use oneDNN and MKL on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shapes import MODES
from ..work import Array, Work
from . import Prepared, UnableError, missing


def _module(work: Work) -> Any:
    """The module holding the work's weights. Biases are summed in gatewise; the module has them all in `bias_ih` but
    for the GRU's `secondary_bias`, which is the last third of `bias_hh`."""
    import torch

    shape = work.shape
    kinds: dict[str, Any] = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "single": torch.nn.RNN}
    options: dict[str, Any] = {"bidirectional": shape.bidirectional}
    if work.cell == "single":
        options["nonlinearity"] = "relu"
    module = kinds[work.cell](shape.I, shape.H, **options)
    with torch.no_grad():
        for direction, suffix in enumerate(("", "_reverse")[: shape.D]):
            values = {
                "weight_ih_l0": work.per_direction("input_weight")[direction],
                "weight_hh_l0": work.per_direction("recurrent_weight")[direction],
                "bias_ih_l0": work.per_direction("bias")[direction],
                "bias_hh_l0": np.zeros_like(work.per_direction("bias")[direction]),
            }
            if work.cell == "gru":
                values["bias_hh_l0"][2 * shape.H :] = work.per_direction("secondary_bias")[direction]
            for name, value in values.items():
                getattr(module, name + suffix).copy_(torch.from_numpy(value))
    return module


class TorchModules:
    name = "torch"
    modes: tuple[str, ...] = MODES

    def unavailable(self) -> str | None:
        return missing("torch")

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def prepare(self, work: Work, mode: str, threads: int) -> Prepared:
        import torch

        if work.variant.name != "plain":
            raise UnableError("no such option in PyTorch's modules")
        module = _module(work)
        source = torch.from_numpy(work.arguments["source"].copy())
        starts: list[str] = [name for name in ("init_state", "init_cell") if name in work.arguments]
        initial = [torch.from_numpy(work.initial(name)) for name in starts]

        def forward() -> Any:
            return module(source, tuple(initial) if len(initial) > 1 else initial[0])[0]

        if mode == "forward":
            module.eval()

            def infer() -> Any:
                with torch.inference_mode():
                    return forward()

            return Prepared(infer, lambda raw: {"state": raw.numpy()})

        names, parameters = zip(*module.named_parameters(), strict=True)
        wanted = [source.requires_grad_(), *parameters, *(state.requires_grad_() for state in initial)]
        gradient = torch.from_numpy(work.output_gradient)

        def step() -> Any:
            state = forward()
            return state, torch.autograd.grad(state, wanted, gradient)

        def results(raw: Any) -> dict[str, Array]:
            found = dict(zip(("source", *names, *starts), (array.numpy() for array in raw[1]), strict=True))
            return {"state": raw[0].detach().numpy(), **_in_our_layout(work, found, starts)}

        return Prepared(step, results)


def _in_our_layout(work: Work, found: dict[str, Array], starts: list[str]) -> dict[str, Array]:
    shape = work.shape
    suffixes = ("", "_reverse")[: shape.D]

    def joined(name: str) -> list[Array]:
        return [found[f"{name}_l0{suffix}"] for suffix in suffixes]

    recurrent = joined("weight_hh")
    gradients = {
        "source": found["source"],
        "recurrent_weight": np.stack(recurrent) if shape.bidirectional else recurrent[0],
        "input_weight": np.concatenate(joined("weight_ih")),
        "bias": np.concatenate(joined("bias_ih")),
    }
    if work.cell == "gru":
        gradients["secondary_bias"] = np.concatenate([bias[2 * shape.H :] for bias in joined("bias_hh")])
    for name in starts:
        gradients[name] = found[name].swapaxes(0, 1).reshape(shape.N, shape.D * shape.H)
    return {f"gradient of {name}": array for name, array in gradients.items()}
