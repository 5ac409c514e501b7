"""Text as numbers: which files, which characters, which part is learned from and which is held out."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GatewiseError

Array = Any

UNKNOWN = "\ufffd"  # the first of every vocabulary; stands for all characters that are not in it
_RARE = 5  # a character seen fewer times than this in the text is unknown
_HELD_OUT = 0.05, 100_000  # the share of the text that is held out, and the most characters of it
_LIBRARY_CHARACTERS, _FILE_CHARACTERS = 6_000_000, 50_000  # of the standard library; no file is most of what is held out
# Tests, tables of characters, and what is not part of the library.
_LEFT_OUT = {"encodings", "test", "tests", "idle_test", "pydoc_data", "lib2to3", "site-packages", "dist-packages"}


def library_files() -> list[Path]:
    """Source files of Python's standard library, up to a bounded size, in an order that mixes subjects and never changes."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    found.sort(key=lambda path: hashlib.sha256(path.relative_to(root).as_posix().encode()).digest())
    chosen, size = [], 0
    for path in found:
        characters = path.stat().st_size
        if characters > _FILE_CHARACTERS:
            continue
        size += characters
        if size > _LIBRARY_CHARACTERS:
            break
        chosen.append(path)
    if not chosen:
        raise GatewiseError(f"there are no source files of Python's standard library in {root}: name files to learn from")
    return chosen


def read(files: Sequence[Path]) -> str:
    """The files' text, one after the other."""
    parts = []
    for path in files:
        try:
            parts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise GatewiseError(f"cannot read {path}: {error.strerror or error}") from error
    return "\n".join(parts)


class Corpus:
    """A text, its vocabulary and its two parts.

    `rows`: `[batch, ...]` whole numbers, the learned part cut into one long piece per row of the batch.
    `held_out`: whole numbers, the end of the text.
    """

    def __init__(self, text: str, batch: int, chunk: int, vocabulary: str | None = None) -> None:
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        if vocabulary is None:
            counts = Counter(text)
            vocabulary = UNKNOWN + "".join(sorted(c for c, n in counts.items() if n >= _RARE and c != UNKNOWN))
        self.vocabulary = vocabulary
        numbers = encode(text, vocabulary)
        share, most = _HELD_OUT
        held_out = min(int(len(numbers) * share), most)
        learned = numbers[: len(numbers) - held_out]
        length = len(learned) // batch
        if length < chunk + 1 or held_out < 2:
            raise GatewiseError(
                f"the text is too short: {len(text)} characters, and {batch} rows of chunks of {chunk} need "
                f"about {int(batch * (chunk + 1) / (1 - share)) + 40}"
            )
        self.batch, self.chunk = batch, chunk
        self.text = text
        self.rows = learned[: batch * length].reshape(batch, length)
        self.held_out = numbers[len(numbers) - held_out :]
        self.held_out_text = text[len(numbers) - held_out :]
        self.chunks = (length - 1) // chunk  # per pass over the text

    def batch_at(self, step: int) -> tuple[Array, bool]:
        """The characters `[chunk + 1, batch]` of a step, and whether they continue those of the step before."""
        place = step % self.chunks
        start = place * self.chunk
        return np.ascontiguousarray(self.rows[:, start : start + self.chunk + 1].T), place > 0


def encode(text: str, vocabulary: str) -> Array:
    """The characters' places in the vocabulary; 0 for those that are not in it."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    known = np.frombuffer(vocabulary.encode("utf-32-le", "surrogatepass"), np.uint32)
    table = np.zeros(max(int(points.max(initial=0)), int(known.max())) + 1, np.int64)
    table[known] = np.arange(len(known))
    return table[points]
