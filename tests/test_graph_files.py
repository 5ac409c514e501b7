"""Executables in files: identical bits in a fresh process, atomic writing, and nothing but clear errors from bad files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gatewise
from gatewise import Executable, Graph, GRUDescriptor, LSTMDescriptor, RNNActivation, ShapedType
from gatewise.arrays import bfloat16


def make_model() -> tuple[Executable, list[np.ndarray]]:
    """A training step with a bit of everything: recurrences, options, constants, randomness, order, bfloat16."""
    rng = np.random.default_rng(0)
    graph = Graph()
    words = graph.placeholder([None, 2], np.int64, name="words")
    lengths = graph.placeholder([2], np.int32, name="lengths")

    def weight(*shape: int):
        return graph.variable((rng.standard_normal(shape) * 0.3).astype(np.float32))

    x = graph.gather(embedding := weight(7, 4), words)
    (h,) = graph.lstm(
        x,
        r := weight(2, 12, 3),
        w := weight(24, 4),
        lengths=lengths,
        peephole=weight(2, 12),
        descriptor=LSTMDescriptor(bidirectional=True),
    )
    h = graph.dropout(h, 0.25)
    descriptor = GRUDescriptor(reset_after=True, update_gate_activation=RNNActivation.HARD_SIGMOID)
    (h,) = graph.gru(h, weight(15, 5), weight(15, 6), secondary_bias=weight(5), descriptor=descriptor)
    scores = graph.reshape(h, [-1, 5])[::-1] @ weight(5, 7)
    loss = graph.soft_max_cross_entropy(scores, graph.reshape(words, [-1]), reduction="mean")
    loss = loss + graph.cast(graph.reduction_sum(graph.constant(np.ones(3), bfloat16())), np.float32) * 0.0
    loss = graph.clamp(loss, -np.inf, 100.0) + graph.random_tensor([], "normal", 5) * 1e-3
    gradients = graph.gradients(loss, [embedding, r, w])
    counter = graph.variable(np.int64(0), name="counter")
    updates = [graph.assign(each, graph.stochastic_gradient_descent(0.1, each, gradients[each])) for each in gradients]
    with graph.control_dependency(updates):
        updates.append(graph.assign(counter, counter + 1))
    executable = graph.compile(
        {lengths: ShapedType((2,), np.int32), words: ShapedType((None, 2), np.int64)}, [loss, h, counter], updates
    )
    return executable, [np.array([5, 3], np.int32), rng.integers(0, 7, (5, 2))]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "model.gatewise"
    executable, feeds = make_model()
    executable.run(feeds)
    executable.save(path)
    return path.read_bytes()


_RUN = """
import sys
import numpy as np
import gatewise
executable = gatewise.Executable.load(sys.argv[1])
feeds = np.load(sys.argv[2])
results = [executable.run([feeds["a"], feeds["b"]]) for _ in range(3)]
np.savez(sys.argv[3], *[each for run in results for each in run])
"""


def test_a_fresh_process_computes_identical_bits(tmp_path):
    executable, feeds = make_model()
    executable.run(feeds)
    executable.save(tmp_path / "model.gatewise")
    np.savez(tmp_path / "feeds.npz", a=feeds[0], b=feeds[1])
    arguments = [str(tmp_path / name) for name in ("model.gatewise", "feeds.npz", "results.npz")]
    subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    wanted = [each for _ in range(3) for each in executable.run(feeds)]
    with np.load(tmp_path / "results.npz") as found:
        assert len(found.files) == len(wanted) == 9
        for name, theirs in zip(found.files, wanted, strict=True):
            assert found[name].tobytes() == theirs.tobytes()
            assert found[name].dtype == theirs.dtype


def test_saving_again_gives_the_same_file(tmp_path, saved):
    path = tmp_path / "a"
    path.write_bytes(saved)
    loaded = Executable.load(path)
    loaded.save(tmp_path / "b")
    again = Executable.load(tmp_path / "b")
    feeds = make_model()[1]
    for mine, theirs in zip(loaded.run(feeds), again.run(feeds), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert [tensor.name for tensor in loaded.feeds] == ["lengths", "words"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"], "no temporary file is left"


def test_an_unused_feed_survives(tmp_path):
    graph = Graph()
    x, y = graph.placeholder([2]), graph.placeholder([3])
    executable = graph.compile({y: ShapedType((3,)), x: ShapedType((2,))}, [x * 2.0])
    executable.save(tmp_path / "a")
    feeds = [np.zeros(3, np.float32), np.ones(2, np.float32)]
    assert Executable.load(tmp_path / "a").run(feeds)[0].tolist() == [2, 2]


def test_the_file_is_safetensors(tmp_path, saved):
    import safetensors

    (tmp_path / "a").write_bytes(saved)
    with safetensors.safe_open(tmp_path / "a", "numpy") as file:
        structure = json.loads(file.metadata()["gatewise"])
    assert structure["format"] == 1
    assert b"pickle" not in saved


def _refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(gatewise.GatewiseError) as caught:
        Executable.load(path)
    assert type(caught.value) is gatewise.GatewiseError
    return str(caught.value)


def test_missing_empty_and_foreign_files(tmp_path):
    with pytest.raises(gatewise.GatewiseError, match="cannot read"):
        Executable.load(tmp_path / "nowhere")
    with pytest.raises(gatewise.GatewiseError, match="cannot read"):
        Executable.load(tmp_path)
    for content in (b"", b"\x00" * 8, b"\xff" * 64, b"PK\x03\x04", b"\x80\x04\x95", b"{}", os.urandom(4096)):
        assert "not a gatewise executable or is damaged" in _refused(tmp_path / "a", content)


def test_every_truncation_is_refused(tmp_path, saved):
    for length in sorted({*range(0, len(saved), 97), 7, 8, 9, len(saved) - 1}):
        _refused(tmp_path / "a", saved[:length])


def _structure(content: bytes) -> tuple[dict, dict, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return json.loads(header["__metadata__"]["gatewise"]), header, content[8 + length :]


def _rebuilt(structure: object, header: dict, data: bytes) -> bytes:
    header = {**header, "__metadata__": {"gatewise": json.dumps(structure)}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_hostile_structures(tmp_path, saved):
    structure, header, data = _structure(saved)

    def hostile(change) -> str:
        copy = json.loads(json.dumps(structure))
        change(copy)
        return _refused(tmp_path / "a", _rebuilt(copy, header, data))

    first = next(number for number, row in enumerate(structure["operations"]) if row.get("inputs"))
    assert "format 99" in hostile(lambda s: s.update(format=99))
    assert "os.system" in hostile(lambda s: s["operations"][first].update(kind="os.system"))
    assert "which is not there" in hostile(lambda s: s["operations"][first].update(inputs=[[first, 0]]))
    assert "which is not there" in hostile(lambda s: s["operations"][first].update(inputs=[[-1, 0]]))
    assert "which is not there" in hostile(lambda s: s["targets"].append([0, 10**30]))
    hostile(lambda s: s["operations"][first].update(attributes={"__class__": 1}))
    hostile(lambda s: s["operations"][first].update(name=["x"]))
    hostile(lambda s: s.update(operations={}))
    hostile(lambda s: s.update(feeds=[[first, [2], "float32"]]))
    hostile(lambda s: s.update(random_state=-1))
    hostile(lambda s: s.pop("targets"))
    for row in structure["operations"]:
        for key in row.get("attributes", {}):
            number = structure["operations"].index(row)
            for value in (None, "x", [1, [2]], {"a": 1}, -(10**40), 1.5, {"descriptor": "Graph", "fields": {}}):
                copy = json.loads(json.dumps(structure))
                copy["operations"][number]["attributes"][key] = value
                (tmp_path / "a").write_bytes(_rebuilt(copy, header, data))
                with contextlib.suppress(gatewise.GatewiseError):
                    Executable.load(tmp_path / "a")
    assert "damaged" in _refused(tmp_path / "a", _rebuilt("[" * 100000, header, data))


def _load_and_run(path: Path, content: bytes, feeds: list[np.ndarray]) -> None:
    """A changed file either loads, and then runs or is refused like any other graph, or is refused at once."""
    path.write_bytes(content)
    try:
        executable = Executable.load(path)
        if len(executable.feeds) == len(feeds):
            executable.run(feeds)
    except (gatewise.GatewiseError, MemoryError):
        pass


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8), only_header=st.booleans())
def test_changed_bytes(tmp_path, saved, changes, only_header):
    end = 8 + struct.unpack("<Q", saved[:8])[0] if only_header else len(saved)
    content = bytearray(saved)
    for place, value in changes:
        content[min(int(place * end), end - 1)] = value
    _load_and_run(tmp_path / "a", bytes(content), make_feeds())


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.floats()
    | st.sampled_from(["float32", "lstm", "0.value", "constant", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["array", "dtype", "descriptor", "fields"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_structure(tmp_path, saved, data):
    """A valid container with any leaf or branch of its structure replaced."""
    structure, header, rest = _structure(saved)
    place: object = structure
    for _ in range(data.draw(st.integers(1, 5))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type]
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        parent = place
        place = place[key]  # type: ignore[index]
        if not isinstance(place, (dict, list)):
            break
    parent[key] = data.draw(_JSON)  # type: ignore[index]
    _load_and_run(tmp_path / "a", _rebuilt(structure, header, rest), make_feeds())


def make_feeds() -> list[np.ndarray]:
    return [np.array([5, 3], np.int32), np.random.default_rng(0).integers(0, 7, (5, 2))]


_SAVE_FOREVER = """
import sys
import numpy as np
from gatewise import Graph
graph = Graph()
number = graph.variable(np.float64(0))
graph.variable(np.zeros(1, np.float32))
filler = graph.variable(np.zeros(200_000, np.float64))
step = graph.assign(number, number + 1.0)
fill = graph.assign(filler, filler + 1.0)
executable = graph.compile({}, [number, filler], [step, fill])
executable.save(sys.argv[1])
print("ready", flush=True)
while True:
    executable.run([])
    executable.save(sys.argv[1])
"""


def test_killed_while_saving_always_leaves_a_whole_file(tmp_path):
    path = tmp_path / "model.gatewise"
    rng = np.random.default_rng(1)
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOREVER, str(path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        number, filler = Executable.load(path).run([])
        assert (filler == number).all()


def test_an_unwritable_place_leaves_nothing_behind(tmp_path):
    executable, _ = make_model()
    with pytest.raises(OSError, match="No such file"):
        executable.save(tmp_path / "missing" / "a")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        executable.save(tmp_path / "taken")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
