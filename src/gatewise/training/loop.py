"""Training: steps, measurements on held-out text, checkpoints, and how it stops and goes on."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GatewiseError
from . import checkpoint, corpus
from .config import Config
from .corpus import Corpus
from .model import LanguageModel

_WARM_UP = 50  # steps in which the learning rate rises
_LOWEST = 0.05  # the last learning rate as a part of the highest
_SAVE_SECONDS = 60.0  # at most this long between two checkpoints
_MEASURED_ROWS = 16  # pieces of the held-out text read at once


class Trainer:
    """A model, its text, and how far it has come. All that matters for the next step is in a checkpoint."""

    def __init__(self, config: Config, text: Corpus, files: list[str]) -> None:
        self.config = config
        self.corpus = text
        self.files = files
        self.model = LanguageModel(config, len(text.vocabulary))
        self.step = 0
        self.losses: list[np.float32] = []  # of every step, in bits per character
        self.measured: list[tuple[int, float]] = []  # steps done, bits per character of the held-out text

    @classmethod
    def begin(cls, config: Config, files: list[Path]) -> Trainer:
        """A new run over these files; over Python's standard library if there are none."""
        chosen = files or corpus.library_files()
        text = Corpus(corpus.read(chosen), config.batch, config.chunk)
        return cls(config, text, [str(path.absolute()) for path in chosen])

    @classmethod
    def resume(cls, path: Path, steps: int | None = None) -> Trainer:
        """The run of a checkpoint, where it stopped; `steps` changes how many it makes in all."""
        facts = checkpoint.load(path)
        config = config_of(facts, path)
        if steps is not None:
            config = replace(config, steps=steps)
        files = [str(name) for name in facts.facts["files"]]
        text = Corpus(
            corpus.read([Path(name) for name in files]), config.batch, config.chunk, vocabulary=facts.facts["vocabulary"]
        )
        if text.digest != facts.facts["text"]:
            raise GatewiseError(f"the files that {path} was learning from have changed: it cannot go on to the same numbers")
        self = cls(config, text, files)
        set_weights(self.model, facts, path)
        self.step = int(facts.facts["step"])
        self.losses = list(facts.arrays["losses"])
        self.measured = [(int(step), float(bits)) for step, bits in facts.facts["measured"]]
        return self

    def save(self, path: Path) -> None:
        facts = {
            "config": self.config.to_json(),
            "vocabulary": self.corpus.vocabulary,
            "files": self.files,
            "text": self.corpus.digest,
            "step": self.step,
            "random_state": self.model.graph.random_state,
            "measured": self.measured,
        }
        arrays = {f"variables/{name}": value for name, value in self.model.graph.variable_values().items()}
        arrays["losses"] = np.array(self.losses, np.float32)
        checkpoint.save(path, facts, arrays)

    def rate(self) -> float:
        """The learning rate of the next step: up in a line, down in half a wave."""
        falling = 0.5 + 0.5 * math.cos(math.pi * min(self.step / self.config.steps, 1.0))
        return self.config.rate * min((self.step + 1) / _WARM_UP, 1.0) * (_LOWEST + (1 - _LOWEST) * falling)

    def advance(self) -> float:
        """One step; its loss in bits per character."""
        text, carry = self.corpus.batch_at(self.step)
        loss = self.model.learn(text, self.rate(), carry)
        self.step += 1
        self.losses.append(loss)
        if not math.isfinite(loss):
            raise GatewiseError(f"the loss is {loss} at step {self.step}: try a lower learning rate")
        return float(loss)

    def measure(self) -> float:
        """Bits per character of the held-out text."""
        rows = max(1, min(_MEASURED_ROWS, len(self.corpus.held_out) // 100))
        bits = self.model.measure(self.corpus.held_out, rows)
        self.measured.append((self.step, bits))
        return bits

    @property
    def measure_due(self) -> bool:
        """Whether this many steps are to be followed by a measurement that has not been made."""
        due = self.step % self.config.every == 0 or self.step >= self.config.steps
        return due and (not self.measured or self.measured[-1][0] != self.step)


def config_of(facts: checkpoint.Checkpoint, path: Path) -> Config:
    try:
        return Config(**facts.facts["config"])
    except (KeyError, TypeError, GatewiseError) as error:
        raise GatewiseError(f"{path} holds no model that this version of gatewise knows: {error}") from error


def set_weights(model: LanguageModel, facts: checkpoint.Checkpoint, path: Path) -> None:
    """Give the model's variables the values of a checkpoint, all of them."""
    prefix = "variables/"
    values = {name.removeprefix(prefix): array for name, array in facts.arrays.items() if name.startswith(prefix)}
    missing = {variable.name for variable in model.graph.variables} - set(values)
    if missing:
        raise GatewiseError(f"{path} lacks the variables {', '.join(sorted(missing))}")
    model.graph.set_variable_values(values)
    model.graph.random_state = int(facts.facts["random_state"])


class Reporter:
    """What a training run tells whoever watches it. Does nothing by itself."""

    def stepped(self, trainer: Trainer, loss: float, seconds: float) -> None: ...

    def measured(self, trainer: Trainer, bits: float) -> None: ...

    def saved(self, trainer: Trainer, path: Path) -> None: ...


def train(trainer: Trainer, path: Path, reporter: Reporter) -> bool:
    """Train to the end or until a signal asks to stop; either way the checkpoint holds the last step. True at the end."""
    checkpoint.remove_leftovers(path)
    saved_at = time.monotonic()
    saved_step = -1
    with _stop_requests() as stop:
        while True:
            if trainer.measure_due:
                reporter.measured(trainer, trainer.measure())
            done = trainer.step >= trainer.config.steps
            # Only here, after a measurement that was due: what is saved is always between two rounds of this loop.
            if done or stop.is_set() or trainer.measured[-1][0] == trainer.step or time.monotonic() - saved_at > _SAVE_SECONDS:
                if trainer.step != saved_step:
                    trainer.save(path)
                    saved_step = trainer.step
                    reporter.saved(trainer, path)
                saved_at = time.monotonic()
            if done or stop.is_set():
                return done
            start = time.perf_counter()
            loss = trainer.advance()
            reporter.stepped(trainer, loss, time.perf_counter() - start)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C or SIGTERM; a second one does what it always does."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def request(number: int, frame: Any) -> None:
        event.set()
        signal.signal(number, before[number])

    for number in numbers:
        signal.signal(number, request)
    try:
        yield event
    finally:
        for number in numbers:
            signal.signal(number, before[number])
