"""A training run in one file, from which it goes on to the same numbers, or a model is read to write text.

The file is a safetensors container: every variable of the graph (weights, Adam's moments, the state carried from chunk
to chunk) and the losses so far as arrays; configuration, vocabulary, step and the rest as JSON in its metadata. A digest
over both is kept with them, so that a damaged file is noticed before anything is learned from it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GatewiseError
from ..graph.storage import write_atomically

Array = Any

FORMAT = 1
NAME = "checkpoint.safetensors"
_KEY, _DIGEST = "gatewise-training", "digest"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds."""

    facts: dict[str, Any]  # plain JSON
    arrays: dict[str, Array]


def save(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a checkpoint. At any moment the path holds the old file or the new one, whole."""
    import safetensors.numpy

    text = json.dumps({"format": FORMAT, **facts}, ensure_ascii=True, separators=(",", ":"))
    plain = {name: np.array(array, order="C") for name, array in arrays.items()}
    content = safetensors.numpy.save(plain, {_KEY: text, _DIGEST: _digest(text, plain)})
    write_atomically(path, content)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint; any other file, whole or damaged, raises GatewiseError."""
    from safetensors import safe_open

    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise GatewiseError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if metadata[_DIGEST] != _digest(metadata[_KEY], arrays):
            raise ValueError("its digest is not that of its content")
        facts = json.loads(metadata[_KEY])
        found = facts["format"]
    except Exception as error:  # whatever a damaged file provokes, its reader learns one thing
        raise GatewiseError(f"{path} is not a checkpoint of gatewise train, or is damaged: {error}") from error
    if found != FORMAT:
        raise GatewiseError(f"{path} has format {found}, this version of gatewise reads format {FORMAT}")
    return Checkpoint(facts, arrays)


def remove_leftovers(path: Path) -> None:
    """Delete the halves of checkpoints that a killed run left beside this one."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
