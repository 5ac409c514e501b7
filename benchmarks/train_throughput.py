"""Training throughput of `gatewise train`'s model, in gatewise's graph and in PyTorch, on the CPU.

    python benchmarks/train_throughput.py [--hidden 128] [--batch 8] [--chunk 128] [--rounds 15]

Embedding, one recurrent layer, softmax, cross entropy, clipped gradient, Adam; equal weights, equal text, in one process
by turns. The losses of the first steps are compared, so that both are known to do the same work. The LSTM with peepholes
and a recurrent mask has no PyTorch module: there it is the loop over steps that one writes. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import gatewise
from gatewise.benchmark.timing import Effort, same_threads, take_turns
from gatewise.training import Config, Corpus, LanguageModel
from gatewise.training.corpus import library_files, read

CASES = {
    "LSTM": ({}, 1.25),
    "GRU": ({"cell": "gru", "options": {"reset_after": "true", "reset_gate_first": "true"}}, 1.5),
    "LSTM, peephole and mask": ({"peephole": True, "recurrent_dropout": 0.25}, 5.0),
}
RATE = 1e-3


class PeepholeLSTM(torch.nn.Module):
    """The loop a PyTorch user writes; arguments and results as those of torch.nn.LSTM."""

    def __init__(self, inputs: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.weight_ih_l0 = torch.nn.Parameter(torch.empty(4 * hidden, inputs))
        self.weight_hh_l0 = torch.nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih_l0 = torch.nn.Parameter(torch.empty(4 * hidden))
        self.peephole = torch.nn.Parameter(torch.empty(4 * hidden))

    def forward(self, source: Any, carried: Any) -> Any:
        h, c = carried[0][0], carried[1][0]
        mask = torch.nn.functional.dropout(torch.ones_like(h), self.drop)
        projected = torch.nn.functional.linear(source, self.weight_ih_l0, self.bias_ih_l0)
        weight = self.weight_hh_l0.t()
        states = []
        for x in projected.unbind(0):
            gates = torch.addmm(x, h * mask, weight) + self.peephole * c.repeat(1, 4)
            i, f, z, o = gates.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states), (h[None], c[None])


class TorchModel:
    """The same model and the same step in PyTorch, from the graph's weights."""

    def __init__(self, config: Config, model: LanguageModel) -> None:
        values = {name: torch.from_numpy(value) for name, value in model.graph.variable_values().items()}
        self.config = config
        self.embedding = torch.nn.Embedding(model.characters, config.embedding)
        self.embedding.weight.data = values["embedding"]
        if config.peephole:
            self.layer: Any = PeepholeLSTM(config.embedding, config.hidden, config.recurrent_dropout)
            self.layer.peephole.data = values["layer0/peephole"]
        else:
            kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[config.cell]
            self.layer = kind(config.embedding, config.hidden)
            self.layer.bias_hh_l0.data.zero_()
            # The second bias counts only where it is not simply added to the first: with a GRU's output gate.
            learned = torch.zeros_like(self.layer.bias_hh_l0)
            if config.cell == "gru":
                self.layer.bias_hh_l0.data[2 * config.hidden :] = values["layer0/secondary_bias"]
                learned[2 * config.hidden :] = 1
            self.layer.bias_hh_l0.register_hook(lambda gradient: gradient * learned)
        self.layer.weight_ih_l0.data = values["layer0/input_weight"]
        self.layer.weight_hh_l0.data = values["layer0/recurrent_weight"]
        self.layer.bias_ih_l0.data = values["layer0/bias"]
        self.output = torch.nn.Linear(config.hidden, model.characters)
        self.output.weight.data = values["output_weight"].T.contiguous()
        self.output.bias.data = values["output_bias"]
        self.parameters = [*self.embedding.parameters(), *self.layer.parameters(), *self.output.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=RATE, betas=(0.9, 0.99), fused=True)
        zeros = torch.zeros(1, config.batch, config.hidden)
        self.carried: Any = (zeros, zeros) if config.cell == "lstm" else zeros

    def learn(self, text: Any) -> float:
        text = torch.from_numpy(text)
        states, carried = self.layer(self.embedding(text[:-1]), self.carried)
        self.carried = tuple(each.detach() for each in carried) if isinstance(carried, tuple) else carried.detach()
        logits = self.output(states)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[1:].flatten())
        self.adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.adam.step()
        return float(loss.detach()) / float(np.log(2))


def steps_of(config: Config, corpus: Corpus) -> tuple[Callable[[], float], Callable[[], float]]:
    """A step of gatewise and one of PyTorch, from equal weights over the same text."""
    ours = LanguageModel(config, len(corpus.vocabulary))
    theirs = TorchModel(config, ours)
    places = {"ours": 0, "theirs": 0}

    def batch(who: str) -> Any:
        places[who] = (places[who] + 1) % (corpus.chunks - 1)
        return corpus.batch_at(places[who])[0]

    def step() -> float:
        return float(ours.learn(batch("ours"), RATE, True))

    def torch_step() -> float:
        return theirs.learn(batch("theirs"))

    return step, torch_step


def difference(config: Config, corpus: Corpus) -> float:
    """The largest relative difference of the losses of five steps, without random masks."""
    step, torch_step = steps_of(replace(config, recurrent_dropout=0.0), corpus)
    pairs = [(step(), torch_step()) for _ in range(5)]
    return max(abs(a - b) / b for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.manual_seed(0)
    text = read(library_files()[:80])
    print(
        f"hidden {options.hidden}, {options.batch} rows of {options.chunk} characters, {options.threads} threads, float32; ",
        end="",
    )
    print(f"gatewise {gatewise.__version__}, PyTorch {torch.__version__}")
    print(f"{'model':<26}{'gatewise':>14}{'PyTorch':>14}{'ratio':>8}{'target':>8}   first losses differ by")
    missed = 0
    with same_threads(options.threads):
        for name, (changes, target) in CASES.items():
            config = Config(hidden=options.hidden, batch=options.batch, chunk=options.chunk, **changes)
            corpus = Corpus(text, config.batch, config.chunk)
            apart = difference(config, corpus)
            step, torch_step = steps_of(config, corpus)
            found = take_turns({"ours": step, "theirs": torch_step}, Effort(options.rounds, 1.0, 60.0))
            speeds = [config.batch * config.chunk / found[who].median for who in ("ours", "theirs")]
            ratio = speeds[0] / speeds[1]
            missed += ratio < target
            print(
                f"{name:<26}{speeds[0]:>7,.0f} char/s{speeds[1]:>7,.0f} char/s{ratio:>7.2f}×{target:>7.2f}×   {apart:.0e}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
