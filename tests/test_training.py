"""`gatewise train`: it learns, goes on to the same numbers, always leaves a whole checkpoint, and writes text."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gatewise import ArgumentError, GatewiseError
from gatewise.cli import app
from gatewise.training import Config, Corpus, Trainer, checkpoint, corpus, loop, picture, sampling, train

TEXT = "".join(f"{name} = {number} + {number % 7}\n" for number in range(250) for name in ("alpha", "beta", "gamma"))
SMALL = Config(hidden=16, embedding=8, batch=4, chunk=16, steps=30, every=10, rate=1e-2)
VARIANTS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "peephole, masks, hard sigmoids, two layers": {
        "layers": 2,
        "peephole": True,
        "dropout": 0.1,
        "recurrent_dropout": 0.2,
        "options": {"input_gate_activation": "hard_sigmoid", "forget_gate_last": "true", "output_peephole": "current"},
    },
    "gru, reset before": {"cell": "gru", "options": {"flip_z": "true"}},
    "gru, reset after": {"cell": "gru", "layers": 3, "options": {"reset_after": "true"}},
    "rnn": {"cell": "rnn", "recurrent_dropout": 0.1},
}
runner = CliRunner()


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def new(file: Path, **changes: Any) -> Trainer:
    return Trainer.begin(replace(SMALL, **changes), [file])


def finish(trainer: Trainer, path: Path) -> Trainer:
    assert train(trainer, path, loop.Reporter())
    return trainer


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_learns(text_file: Path, tmp_path: Path, variant: dict[str, Any]) -> None:
    trainer = finish(new(text_file, steps=300, every=150, **variant), tmp_path / "c")
    assert [step for step, _ in trainer.measured] == [0, 150, 300]
    assert trainer.measured[0][1] > 4.0
    assert trainer.measured[-1][1] < 0.75 * trainer.measured[0][1]
    assert np.mean(trainer.losses[-10:]) < 0.75 * trainer.losses[0]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_resumed_equals_unbroken(text_file: Path, tmp_path: Path, variant: dict[str, Any]) -> None:
    """Bit for bit: losses, measurements, every variable. The text is short enough to be passed over more than once."""
    unbroken = finish(new(text_file, steps=200, every=60, **variant), tmp_path / "unbroken")
    assert unbroken.corpus.chunks < 200
    broken = new(text_file, steps=200, every=60, **variant)
    for stop in (1, 60, 137):
        while broken.step < stop:
            if broken.measure_due:
                broken.measure()
            broken.advance()
        if broken.measure_due:
            broken.measure()
        broken.save(tmp_path / "broken")
        broken = Trainer.resume(tmp_path / "broken")
        assert broken.step == stop
    finish(broken, tmp_path / "broken")
    np.testing.assert_array_equal(np.array(broken.losses), np.array(unbroken.losses))
    assert broken.measured == unbroken.measured
    expected = unbroken.model.graph.variable_values()
    for name, value in broken.model.graph.variable_values().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_loss_is_that_of_the_formulas(text_file: Path) -> None:
    """The first loss of an LSTM in plain NumPy, float64."""
    trainer = new(text_file)
    values = {name: array.astype(np.float64) for name, array in trainer.model.graph.variable_values().items()}
    text, _ = trainer.corpus.batch_at(0)
    h = c = np.zeros((SMALL.batch, SMALL.hidden))
    total = 0.0
    for now, following in pairwise(text):
        x = values["embedding"][now]
        sums = x @ values["layer0/input_weight"].T + h @ values["layer0/recurrent_weight"].T + values["layer0/bias"]
        i, f, z, o = np.split(sums, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(z) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        logits = h @ values["output_weight"] + values["output_bias"]
        likely = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        total -= likely[np.arange(len(following)), following].sum()
    assert trainer.advance() == pytest.approx(total / text[1:].size / np.log(2), rel=1e-5)


def test_more_steps_than_before(text_file: Path, tmp_path: Path) -> None:
    finish(new(text_file), tmp_path / "c")
    trainer = finish(Trainer.resume(tmp_path / "c", steps=45), tmp_path / "c")
    assert len(trainer.losses) == 45
    assert [step for step, _ in trainer.measured] == [0, 10, 20, 30, 40, 45]


_WRITERS = """
import os, random, signal, sys, time
from pathlib import Path
from gatewise.training import Trainer, checkpoint

path, moments = Path(sys.argv[1]), random.Random(0)
trainer = Trainer.resume(path)
step = cut = 0
for _ in range(50):
    child = os.fork()
    if child == 0:
        while True:
            trainer.step += 1
            trainer.save(path)
    time.sleep(moments.uniform(0.002, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left = list(path.parent.glob(f".{path.name}.*"))
    cut += bool(left)
    checkpoint.remove_leftovers(path)
    trainer.step = checkpoint.load(path).facts["step"]
    assert trainer.step >= step
    step = trainer.step
assert list(path.parent.iterdir()) == [path]
print(step, cut)
"""


def test_killed_while_writing_it_leaves_a_whole_checkpoint(text_file: Path, tmp_path: Path) -> None:
    """kill -9 of 50 processes that do nothing but write checkpoints: each time the file loads, digest and all."""
    path = tmp_path / "run" / "c"
    path.parent.mkdir()
    new(text_file).save(path)
    written, cut = map(int, python("-c", _WRITERS, str(path)).stdout.split())
    assert written > 50
    assert cut > 5, "hardly a writer was killed in the middle of a file: the test proves little"
    assert Trainer.resume(path).step == written


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, **options)


_COMMAND = "from gatewise.cli import main; main()"
_SIZE = ("--hidden", "16", "--batch", "4", "--chunk", "16", "--steps", "1000", "--recurrent-dropout", "0.2")


def begin(*arguments: str) -> subprocess.Popen[str]:
    """`gatewise train` as a process of its own."""
    return subprocess.Popen([sys.executable, "-c", _COMMAND, "train", *arguments], stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, process: subprocess.Popen[str], before: int | None = None) -> None:
    """Until there is a checkpoint, another than the one with this number."""
    end = time.monotonic() + 60
    while not path.exists() or path.stat().st_ino == before:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)


def test_killed_command_goes_on_to_the_same_numbers(text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = out / checkpoint.NAME
    moments = random.Random(1)
    process = begin(str(text_file), "--out", str(out), *_SIZE)
    before = None
    for _ in range(2):
        wait_for(path, process, before)
        time.sleep(moments.uniform(0.0, 0.2))
        process.kill()
        process.communicate()
        assert checkpoint.load(path).facts["step"] < 1000
        before = path.stat().st_ino
        process = begin("--resume", "--out", str(out))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    config = Config(hidden=16, batch=4, chunk=16, steps=1000, every=100, recurrent_dropout=0.2)
    unbroken = finish(Trainer.begin(config, [text_file]), tmp_path / "unbroken")
    found = checkpoint.load(path)
    np.testing.assert_array_equal(found.arrays["losses"], np.array(unbroken.losses))
    assert [tuple(each) for each in found.facts["measured"]] == unbroken.measured


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_checkpoint(text_file: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "out"
    process = begin(str(text_file), "--out", str(out), *_SIZE, "--steps", "1000000")
    wait_for(out / checkpoint.NAME, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "--resume" in output
    found = checkpoint.load(out / checkpoint.NAME)
    assert f"stopped at step {found.facts['step']:,}" in output
    assert len(found.arrays["losses"]) == found.facts["step"]
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")


def test_handlers_of_signals_are_put_back(text_file: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    finish(new(text_file, steps=1), tmp_path / "c")
    assert signal.getsignal(signal.SIGINT) is before


# Checkpoints that are not


def test_damaged_checkpoints_are_refused(text_file: Path, tmp_path: Path) -> None:
    """Any byte changed, any end cut off, other files: one clear error."""
    path = tmp_path / "c"
    new(text_file).save(path)
    whole = path.read_bytes()
    places = random.Random(0)
    damaged = [b"", b"not a checkpoint", whole[:7], whole[:-1], whole + b"\0"]
    damaged += [whole[: places.randrange(len(whole))] for _ in range(20)]
    for _ in range(100):
        place = places.randrange(len(whole))
        damaged.append(whole[:place] + bytes([whole[place] ^ (1 << places.randrange(8))]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(GatewiseError, match="is not a checkpoint of gatewise train, or is damaged"):
            checkpoint.load(path)
    path.write_bytes(whole)
    assert Trainer.resume(path).step == 0


def test_missing_checkpoint_and_changed_text(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match=r"cannot read the checkpoint .*nowhere: No such file"):
        checkpoint.load(tmp_path / "nowhere")
    new(text_file).save(tmp_path / "c")
    text_file.write_text(TEXT + "one more line\n")
    with pytest.raises(GatewiseError, match="have changed"):
        Trainer.resume(tmp_path / "c")


def test_an_executable_is_not_a_checkpoint(text_file: Path, tmp_path: Path) -> None:
    new(text_file).model._learn.save(tmp_path / "e")
    with pytest.raises(GatewiseError, match="is not a checkpoint"):
        sampling.load(tmp_path / "e")


# Text


def test_writing_depends_on_the_seed_alone(text_file: Path, tmp_path: Path) -> None:
    trainer = finish(new(text_file, steps=60), tmp_path / "c")
    model, vocabulary = sampling.load(tmp_path / "c")
    texts = ["".join(sampling.write(model, vocabulary, "alpha", 80, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 80
    assert texts[0] == "".join(sampling.write(trainer.model, vocabulary, "alpha", 80, seed=1))
    certain = {"".join(sampling.write(model, vocabulary, "alpha", 20, temperature=0, seed=seed)) for seed in (1, 2)}
    assert len(certain) == 1
    with pytest.raises(ArgumentError, match="'ß'"):
        list(sampling.write(model, vocabulary, "ß"))


def test_vocabulary_and_parts_of_a_text() -> None:
    text = Corpus(TEXT + "é" + TEXT, batch=4, chunk=16)
    assert text.vocabulary[0] == corpus.UNKNOWN
    assert "é" not in text.vocabulary  # too rare
    assert set(text.vocabulary[1:]) == set(TEXT)
    assert "".join(text.vocabulary[n] for n in text.held_out) == text.held_out_text
    first, begins = text.batch_at(0)
    second, goes_on = text.batch_at(1)
    assert (begins, goes_on) == (False, True)
    np.testing.assert_array_equal(first[-1], second[0])
    assert "".join(text.vocabulary[n] for n in first[:, 0]) == TEXT[:17]
    with pytest.raises(GatewiseError, match="too short"):
        Corpus("short", batch=4, chunk=16)


def test_standard_library_is_found_in_the_same_order() -> None:
    files = corpus.library_files()
    assert files == corpus.library_files()
    assert len(files) > 100
    assert all(path.suffix == ".py" and "test" not in path.parts for path in files)


def test_options_are_checked() -> None:
    for changes, words in (
        ({"cell": "transformer"}, "cell must be one of lstm, gru, rnn"),
        ({"layers": 4}, "layers must be a whole number from 1 to 3"),
        ({"dropout": 1.0}, "dropout must be from 0 to below 1"),
        ({"cell": "gru", "peephole": True}, "only an lstm has peepholes"),
        ({"options": {"bidirectional": "true"}}, "lstm has no option 'bidirectional'"),
        ({"options": {"activation": "swish"}}, "activation must be one of none, relu, tanh"),
        ({"cell": "gru", "options": {"flip_z": "maybe"}}, "flip_z must be true or false"),
    ):
        with pytest.raises(ArgumentError, match=words):
            Config(**changes)  # type: ignore[arg-type]


def test_every_gate_is_drawn(text_file: Path, tmp_path: Path) -> None:
    for cell, gates in (("lstm", 3), ("gru", 3), ("rnn", 1)):
        trainer = finish(new(text_file, cell=cell, steps=10), tmp_path / "c")
        line, surprise, maps = picture._activity(trainer)
        assert len(line) == len(surprise)
        assert len(maps) == gates
        assert all(values.shape == (16, len(line)) for values in maps.values())
        picture.draw(trainer, tmp_path / f"{cell}.png")
        assert (tmp_path / f"{cell}.png").stat().st_size > 10_000


# The commands


def run(*arguments: str) -> tuple[int, str]:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "120"})
    return result.exit_code, result.output


def test_commands(text_file: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    small = ("--hidden", "16", "--batch", "4", "--chunk", "16")
    code, text = run("train", str(text_file), "--out", out, "--steps", "20", *small, "--cell", "gru", "--gates", "hard_sigmoid",
                     "--option", "reset_after=true")  # fmt: skip
    assert code == 0, text
    for words in ("gru, 1 × 16 units", "reset_after=true", "held out", "bits/char", "checkpoint:", "picture:", "a sample"):
        assert words in text
    code, first = run("sample", out, "--prompt", "beta = ", "--length", "50", "--seed", "3")
    assert code == 0
    assert first.startswith("beta = ")
    assert run("sample", out, "--prompt", "beta = ", "--length", "50", "--seed", "3") == (0, first)

    code, text = run("train", str(text_file), "--out", out, *small)
    assert code == 2
    assert "--resume goes on with it, --overwrite begins anew" in text
    code, text = run("train", "--resume", "--out", out, "--hidden", "32")
    assert code == 2
    assert "hidden" in text
    code, text = run("train", "--resume", "--out", out, "--steps", "25")
    assert code == 0, text
    assert "going on from step 20" in text
    assert run("train", "--overwrite", str(text_file), "--out", out, "--steps", "1", *small)[0] == 0


def test_mistakes_on_the_command_line(text_file: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    for arguments, words in (
        (("train", str(tmp_path / "nowhere.txt"), *out), "nowhere.txt: No such file"),
        (("train", "--resume", *out), "cannot read the checkpoint"),
        (("train", "--option", "x", *out), "NAME=VALUE"),
        (("train", "--cell", "rnn", "--gates", "hard_sigmoid", *out), "rnn has no sigmoid gates"),
        (("sample", str(text_file)), "is not a checkpoint of gatewise train"),
    ):
        code, text = run(*arguments)
        assert code == 2
        assert words in text.replace("\n", "")
        assert "Traceback" not in text
    for command in ("train", "sample"):
        code, text = run(command, "--help")
        assert code == 0
        assert "seed" in text


def test_without_matplotlib_it_says_so(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest))
    code, text = run("train", str(text_file), "--out", str(tmp_path), "--steps", "1", "--hidden", "8", "--batch", "4")
    assert code == 0
    assert "no picture: drawing needs matplotlib (pip install 'gatewise[plot]')" in text
