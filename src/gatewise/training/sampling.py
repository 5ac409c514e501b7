"""Writing text with a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError
from . import checkpoint
from .corpus import encode
from .loop import config_of, set_weights
from .model import LanguageModel


def load(path: Path) -> tuple[LanguageModel, str]:
    """The model of a checkpoint and its vocabulary."""
    facts = checkpoint.load(path)
    vocabulary = facts.facts["vocabulary"]
    model = LanguageModel(config_of(facts, path), len(vocabulary))
    set_weights(model, facts, path)
    return model, vocabulary


def write(
    model: LanguageModel, vocabulary: str, prompt: str = "\n", length: int = 400, temperature: float = 0.7, seed: int = 0
) -> Iterator[str]:
    """Characters that go on from the prompt, one by one; the same for the same seed.

    `temperature` divides the logits: below 1 likely characters become likelier; at 0 only the likeliest is taken.
    """
    strange = sorted(set(prompt) - set(vocabulary[1:]))
    if strange:
        raise ArgumentError(f"prompt: the model was not trained on the characters {', '.join(map(repr, strange))}")
    if not 0 <= temperature < float("inf"):
        raise ArgumentError(f"temperature must be at least 0, got {temperature}")
    random = np.random.default_rng(seed)
    logits, states, _ = model.read(encode(prompt or "\n", vocabulary))
    for _ in range(length):
        chosen = _choose(logits[-1], temperature, random)
        yield vocabulary[chosen]
        logits, states, _ = model.read(np.array([chosen]), states)


def _choose(logits: Any, temperature: float, random: np.random.Generator) -> int:
    wide = logits.astype(np.float64)
    wide[0] = -np.inf  # the vocabulary's first character stands for unknown ones: never written
    if temperature == 0:
        return int(wide.argmax())
    weights = np.exp((wide - wide.max()) / temperature)
    total = np.cumsum(weights)
    return int(np.searchsorted(total, random.random() * total[-1], side="right"))
