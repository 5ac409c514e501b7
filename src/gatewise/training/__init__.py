"""Character-level language models, built, differentiated and trained as a graph: the work of `gatewise train`."""

from __future__ import annotations

from .config import Config
from .corpus import Corpus
from .loop import Trainer, train
from .model import LanguageModel

__all__ = ["Config", "Corpus", "LanguageModel", "Trainer", "train"]
