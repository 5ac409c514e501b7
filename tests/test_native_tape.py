"""The native tape against functions that note how they were called: what it asks of CUDA, to the bit, and what it refuses."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gatewise import _native

POINTER, NUMBER, SIZE, WORD = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint
CONTEXT, HANDLE = 5, 10_000
_kept: list[Any] = []  # functions outlive the tapes that call them
WIDE = range(2, 100, 2)  # descriptions of products in float64


class Driver:
    """CUDA's functions, in the order of a tape's addresses. `calls` has what each thread asked for; rows of parameters are
    read as 8-byte integers, as many for each launch as `widths` says by kernel."""

    def __init__(self) -> None:
        self.calls: dict[int, list[tuple[Any, ...]]] = {}
        self.widths: dict[int, list[int]] = {}
        self.codes: dict[str, int] = {}
        self.contexts: dict[int, int | None] = {}
        self.capturing = 0  # what the caller's streams say
        self.graphs: dict[int, list[tuple[Any, ...]]] = {}  # streams while captured, graphs, executables: what they hold
        self.made: set[int] = set()  # ... that were not destroyed
        self.launched = 0  # graphs
        self._numbers = itertools.count(1 << 50)
        self._capture = threading.local()
        functions: list[tuple[str, Callable[..., Any], list[Any]]] = [
            ("get context", self._get_context, [ctypes.POINTER(POINTER)]),
            ("set context", self._set_context, [POINTER]),
            ("launch", self._launch, [POINTER, POINTER, ctypes.POINTER(POINTER), POINTER]),
            ("bytes", self._note("bytes"), [ctypes.c_uint64, ctypes.c_ubyte, SIZE, POINTER]),
            ("words", self._note("words"), [ctypes.c_uint64, WORD, SIZE, POINTER]),
            ("product", self._product, [*[POINTER] * 14, SIZE, POINTER]),
            ("is capturing", self._is_capturing, [POINTER, ctypes.POINTER(NUMBER)]),
            ("create stream", self._create, [ctypes.POINTER(POINTER), WORD]),
            ("destroy stream", self._destroy, [POINTER]),
            ("begin capture", self._begin, [POINTER, NUMBER]),
            ("end capture", self._end, [POINTER, ctypes.POINTER(POINTER)]),
            ("instantiate", self._instantiate, [ctypes.POINTER(POINTER), POINTER, ctypes.c_ulonglong]),
            ("launch graph", self._launch_graph, [POINTER, POINTER]),
            ("destroy graph", self._destroy, [POINTER]),
            ("destroy executable", self._destroy, [POINTER]),
        ]
        self._kept = [self._callback(*each) for each in functions]
        _kept.append(self._kept)
        self.addresses = [ctypes.cast(each, POINTER).value or 0 for each in self._kept]

    def _callback(self, name: str, act: Callable[..., Any], arguments: list[Any]) -> Any:
        def call(*given: Any) -> int:
            if self.codes.get(name):
                if name == "end capture":  # it is over all the same
                    self._capture.stream = None
                return self.codes[name]
            act(*given)
            return 0

        return ctypes.CFUNCTYPE(NUMBER, *arguments)(call)

    def mine(self) -> list[tuple[Any, ...]]:
        """What was asked for, whether it was done or noted in a capture of this thread."""
        stream = getattr(self._capture, "stream", None)
        return self.calls.setdefault(threading.get_ident(), []) if stream is None else self.graphs[stream]

    def _is_capturing(self, stream: int, found: Any) -> None:
        found[0] = self.capturing

    def _create(self, made: Any, *_: Any) -> None:
        made[0] = number = next(self._numbers)
        self.made.add(number)

    def _destroy(self, thing: int) -> None:
        self.made.remove(thing)

    def _begin(self, stream: int, mode: int) -> None:
        assert mode == 1
        self._capture.stream = stream
        self.graphs[stream] = []

    def _end(self, stream: int, graph: Any) -> None:
        assert self._capture.stream == stream
        self._capture.stream = None
        self._create(graph)
        self.graphs[graph[0]] = [(call, stream) for call in self.graphs.pop(stream)]

    def _instantiate(self, executable: Any, graph: int, flags: int) -> None:
        self._create(executable)
        self.graphs[executable[0]] = self.graphs[graph]

    def _launch_graph(self, executable: int, stream: int) -> None:
        self.launched += 1
        assert executable in self.made
        for call, captured in self.graphs[executable]:
            assert captured in call
            self.mine().append(tuple(stream if value == captured else value for value in call))

    def _note(self, name: str) -> Callable[..., None]:
        return lambda *given: self.mine().append((name, *given))

    def _get_context(self, context: Any) -> None:
        context[0] = self.contexts.get(threading.get_ident(), CONTEXT)

    def _set_context(self, context: int) -> None:
        self.contexts[threading.get_ident()] = context
        self.mine().append(("context", context))

    def _launch(self, config: int, function: int, parameters: Any, extra: Any) -> None:
        assert extra is None
        grid_and_block = tuple((WORD * 7).from_address(config))
        stream, attributes = (ctypes.c_uint64 * 2).from_address(config + 32)
        count = WORD.from_address(config + 48).value
        found = [tuple((WORD * 18).from_address(attributes + 72 * k)) for k in range(count)]
        rows = [tuple((ctypes.c_int64 * n).from_address(parameters[k])) for k, n in enumerate(self.widths[function])]
        self.mine().append(("launch", function, grid_and_block, stream, found, rows))

    def _product(self, *given: Any) -> None:
        kind = ctypes.c_double if given[1] in WIDE else ctypes.c_float
        alpha, beta = (kind.from_address(given[k]).value for k in (2, 7))
        algorithm = list((ctypes.c_uint64 * 8).from_address(given[12]))
        rest = [value for k, value in enumerate(given) if k not in (2, 7, 12)]
        self.mine().append(("product", alpha, beta, algorithm, *rest))


class Model:
    """The same tape in Python: the calls it should make."""

    def __init__(self, driver: Driver) -> None:
        self.native = _native.Tape(driver.addresses, CONTEXT)
        self._driver = driver
        self._rows: list[tuple[list[int], list[tuple[int, int, int]]]] = []
        self._entries: list[Callable[[list[int], int, int], tuple[Any, ...]]] = []
        self._workspace = (0, 0, 0)

    def row(self, values: list[int], moving: list[tuple[int, int, int]]) -> int:
        self._rows.append((values, moving))
        number = self.native.row(values, moving)
        assert number == len(self._rows) - 1
        return number

    def launch(
        self, function: int, grid: Any, threads: int, shared: int, cooperative: bool, cluster: int, rows: list[int]
    ) -> None:
        self.native.launch(function, grid, threads, shared, cooperative, cluster, rows)
        self._driver.widths[function] = [len(self._rows[number][0]) for number in rows]
        attributes = [(2, 0, 1, *[0] * 15)] if cooperative else []
        attributes += [(4, 0, cluster, 1, 1, *[0] * 13)] if cluster > 1 else []

        def packed(number: int, bases: list[int]) -> tuple[int, ...]:
            values, moving = self._rows[number]
            values = values[:]
            for index, region, offset in moving:
                values[index] = bases[region] + offset
            return tuple(values)

        self._entries.append(
            lambda bases, stream, handle: (
                "launch", function, (*grid, threads, 1, 1, shared), stream, attributes, [packed(row, bases) for row in rows],
            )
        )  # fmt: skip

    def set(self, words: bool, value: int, where: tuple[int, int], count: int) -> None:
        self.native.set(words, value, where, count)
        name = "words" if words else "bytes"
        self._entries.append(lambda bases, stream, handle: (name, bases[where[0]] + where[1], value, count, stream))

    def product(self, objects: Any, algorithm: Any, sizes: Any, places: Any) -> None:
        self.native.product(objects, algorithm, sizes, objects[0] in WIDE, places)

        def call(bases: list[int], stream: int, handle: int) -> tuple[Any, ...]:
            a, b, c = (bases[region] + offset for region, offset in places)
            description, a_layout, b_layout, c_layout = objects
            region, offset, size = self._workspace
            return (
                "product", 1.0, 0.0, algorithm, handle, description, a, a_layout, b, b_layout, c, c_layout, c, c_layout,
                bases[region] + offset, size, stream,
            )  # fmt: skip

        self._entries.append(call)

    def workspace(self, where: tuple[int, int], size: int) -> None:
        self.native.workspace(where, size)
        self._workspace = (*where, size)

    def expected(self, bases: list[int], stream: int, handle: int) -> list[tuple[Any, ...]]:
        return [entry(bases, stream, handle) for entry in self._entries]


REGIONS = 6


def sampled(driver: Driver, seed: int) -> Model:
    pick = random.Random(seed)
    model = Model(driver)

    def place() -> tuple[int, int]:
        return pick.randrange(REGIONS), pick.choice([0, 256, 1 << 40])

    numbers = []
    for _ in range(pick.randint(1, 6)):
        values = [pick.randint(-(1 << 63), (1 << 63) - 1) for _ in range(pick.choice([1, 1, 3, 38]))]
        moving = [(k, *place()) for k in range(len(values)) if pick.random() < 0.5]
        numbers.append(model.row(values, moving))
    model.workspace(place(), 32 << 20)
    for function in range(1, pick.randint(2, 30)):
        kind = pick.choice(["launch", "set", "product"])
        if kind == "launch":
            grid = tuple(pick.randint(1, 65535) for _ in range(3))
            rows = [pick.choice(numbers) for _ in range(pick.randint(0, 13))]
            model.launch(function, grid, pick.choice([32, 256]), pick.choice([0, 232448]), pick.random() < 0.5,
                         pick.choice([1, 4, 16]), rows)  # fmt: skip
        elif kind == "set":
            words = pick.random() < 0.5
            model.set(words, pick.randrange(1 << 32) if words else pick.randrange(256), place(), pick.randint(1, 1 << 40))
        else:
            objects = tuple(pick.randint(1, 99) for _ in range(4))
            algorithm = [pick.randrange(1 << 64) for _ in range(8)]
            model.product(objects, algorithm, (1, 2, 3), tuple(place() for _ in range(3)))
    return model


def bases(pick: random.Random) -> list[int]:
    return [pick.randrange(1 << 20, 1 << 47) for _ in range(REGIONS)]


@pytest.mark.parametrize("seed", range(25))
def test_a_run_is_what_was_noted_on_these_arrays(seed: int) -> None:
    driver = Driver()
    model, pick = sampled(driver, seed), random.Random(seed)
    for _ in range(3):
        at, stream, handle = bases(pick), pick.randrange(1 << 47), HANDLE
        assert model.native.run(at, stream, handle) is None
        assert driver.mine() == model.expected(at, stream, handle)
        driver.calls.clear()


def test_threads_run_one_tape_at_once() -> None:
    driver = Driver()
    model = sampled(driver, 3)
    wrong: list[int] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        pick = random.Random(seed)
        start.wait()
        for _ in range(40):
            at, stream, handle = bases(pick), pick.randrange(1 << 47), HANDLE
            failure = model.native.run(at, stream, handle)
            if failure is not None or driver.mine() != model.expected(at, stream, handle):
                wrong.append(seed)
            driver.mine().clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("seed", range(8))
def test_runs_on_the_same_arrays_become_a_graph(seed: int) -> None:
    driver = Driver()
    model, pick = sampled(driver, seed), random.Random(seed)
    entries = len(model.expected([0] * REGIONS, 0, 0))
    places = [bases(pick) for _ in range(3)]
    for turn in range(5):
        for at in places:
            stream = pick.randrange(1 << 47)
            assert model.native.run(at, stream, HANDLE) is None
            assert driver.mine() == model.expected(at, stream, HANDLE)
            driver.calls.clear()
        # The first time as it is, the second by a graph made of it, then by that.
        assert driver.launched == (3 * turn if entries > 1 else 0)
    assert len(driver.made) == (3 if entries > 1 else 0)  # streams and graphs are given back, executables kept
    for _ in range(2):  # others take their places
        for at in [bases(pick) for _ in range(4)]:
            for _ in range(2):
                assert model.native.run(at, 7, HANDLE) is None
    assert len(driver.made) == (4 if entries > 1 else 0)
    del model.native
    assert not driver.made


def test_a_stream_that_is_captured_gets_the_launches() -> None:
    driver = Driver()
    driver.capturing = 1
    model = sampled(driver, 3)
    at = bases(random.Random(1))
    for _ in range(4):
        assert model.native.run(at, 7, HANDLE) is None
        assert driver.mine() == model.expected(at, 7, HANDLE)
        driver.calls.clear()
    assert not driver.launched


@pytest.mark.parametrize("function", ["is capturing", "create stream", "begin capture", "end capture", "instantiate"])
def test_without_a_graph_the_launches_are_made(function: str) -> None:
    driver = Driver()
    model = sampled(driver, 3)
    at = bases(random.Random(1))
    driver.codes = {function: 900}
    for _ in range(4):
        assert model.native.run(at, 7, HANDLE) is None
        assert driver.mine() == model.expected(at, 7, HANDLE)
        driver.calls.clear()
    assert not driver.launched
    driver.codes = {}
    assert model.native.run(at, 7, HANDLE) is None


def test_a_graph_that_cannot_be_launched_is_told() -> None:
    driver = Driver()
    model = sampled(driver, 3)
    at = bases(random.Random(1))
    assert model.native.run(at, 7, HANDLE) is None
    driver.codes = {"launch graph": 700}
    assert model.native.run(at, 7, HANDLE) == (False, 700, "launching a graph")


def small(driver: Driver) -> Any:
    """Every kind of entry once."""
    tape = _native.Tape(driver.addresses, CONTEXT)
    tape.workspace((0, 0), 64)
    tape.launch(1, (1, 1, 1), 32, 0, False, 1, [tape.row([1], [])])
    driver.widths[1] = [1]
    tape.set(False, 0, (0, 0), 8)
    tape.set(True, 0, (0, 0), 8)
    tape.product((1, 2, 3, 4), [0] * 8, (4, 3, 2), False, ((0, 0), (0, 0), (0, 0)))
    return tape


@pytest.mark.parametrize(
    ("function", "of_cublas", "what", "before"),
    [
        ("get context", False, "context", []),
        ("launch", False, "launching a kernel", []),
        ("bytes", False, "setting memory", ["launch"]),
        ("words", False, "setting memory", ["launch", "bytes"]),
        ("product", True, "product of 3x2 and 2x4", ["launch", "bytes", "words"]),
    ],
)
def test_a_failure_ends_the_run_and_is_told(function: str, of_cublas: bool, what: str, before: list[str]) -> None:
    driver = Driver()
    tape, handle = small(driver), HANDLE
    driver.codes = {function: 700}
    assert tape.run([4096], 7, handle) == (of_cublas, 700, what)
    assert [call[0] for call in driver.mine()] == before
    driver.calls.clear()
    driver.codes = {}
    assert tape.run([4096], 7, handle) is None
    assert [call[0] for call in driver.mine()][-4:] == ["launch", "bytes", "words", "product"]


def test_the_threads_gpu_is_left_as_it_was() -> None:
    driver = Driver()
    tape, me = small(driver), threading.get_ident()
    for before, told in ((CONTEXT, []), (9, [CONTEXT, 9]), (None, [CONTEXT])):
        driver.contexts[me] = before
        for code, failure in ((0, None), (3, (False, 3, "launching a kernel"))):
            driver.contexts[me] = before
            driver.codes = {"launch": code}
            assert tape.run([4096], 7, HANDLE) == failure
            assert [call[1] for call in driver.mine() if call[0] == "context"] == told
            driver.calls.clear()


def test_what_cannot_be_right_is_refused() -> None:
    driver = Driver()
    without_cublas = [*driver.addresses[:5], 0, *driver.addresses[6:]]
    tape = _native.Tape(without_cublas, CONTEXT)
    product = ((1, 2, 3, 4), [0] * 8, (1, 1, 1), False, ((0, 0), (0, 0), (0, 0)))
    row = tape.row([1, 2], [(1, 0, 0)])
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("of the driver", lambda: _native.Tape([0] * 15, CONTEXT)),
        ("empty row", lambda: tape.row([], [])),
        ("no such value", lambda: tape.row([1], [(1, 0, 0)])),
        ("no such place", lambda: tape.row([1], [(0, 1 << 30, 0)])),
        ("no such place", lambda: tape.set(True, 0, (0, -1), 8)),
        ("no kernel", lambda: tape.launch(0, (1, 1, 1), 32, 0, False, 1, [row])),
        ("empty grid", lambda: tape.launch(1, (1, 0, 1), 32, 0, False, 1, [row])),
        ("empty block", lambda: tape.launch(1, (1, 1, 1), 0, 0, False, 1, [row])),
        ("no such row", lambda: tape.launch(1, (1, 1, 1), 32, 0, False, 1, [row + 1])),
        ("cublasLtMatmul is missing", lambda: tape.product(*product)),
        ("not worked out", lambda: small(driver).product((1, 0, 3, 4), *product[1:])),
        ("unknown region", lambda: tape.run([], 7, 0)),
        ("no cuBLAS handle", lambda: small(driver).run([4096], 7, 0)),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
    for wrong in (lambda: _native.Tape([1], CONTEXT), lambda: tape.run(["x"], 7, 0), lambda: tape.row([1 << 64], [])):
        with pytest.raises(TypeError):
            wrong()
    assert tape.run([4096], 7, 0) is None
    assert not driver.mine()
