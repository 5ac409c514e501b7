"""gatewise beside PyTorch's cuDNN on a GPU, call after call, each with its input product and all its gradients."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gatewise
from gatewise.cells import cell_of
from gatewise.engines.cuda import driver, planner, warm

from .cuda_floors import MACHINE, floor

# T, N, I, H, directions
SHAPES: tuple[tuple[int, int, int, int, int], ...] = (
    (512, 64, 128, 128, 1),
    (512, 64, 256, 256, 1),
    (512, 16, 512, 512, 1),
    (512, 64, 512, 512, 1),
    (512, 1, 512, 512, 1),
    (1024, 16, 768, 768, 1),
    (512, 16, 1024, 1024, 1),
    (512, 64, 1024, 1024, 1),
    (256, 256, 1024, 1024, 1),
    (256, 64, 2048, 2048, 1),
    (365, 256, 32, 128, 1),
    (16, 4096, 128, 256, 1),
    (512, 64, 512, 512, 2),
    (512, 64, 320, 320, 1),
    (512, 64, 1000, 1000, 1),
)
QUICK = (SHAPES[1], SHAPES[3], SHAPES[7])
CELLS = ("lstm", "gru", "gru_before")
DTYPES = ("bfloat16", "float16", "float32")
Row = dict[str, Any]
Sizes = tuple[int, int, int, int, int]


def descriptor_of(cell: str, directions: int = 1, training: bool = True, **more: Any) -> Any:
    """PyTorch's form of the cell; `gru_before` is the GRU it does not have."""
    common = {"training": training, "bidirectional": directions == 2, **more}
    if cell == "lstm":
        return gatewise.LSTMDescriptor(**common)
    return gatewise.GRUDescriptor(reset_gate_first=True, reset_after=cell == "gru", **common)


def milliseconds(run: Callable[[], Any], repeats: int = 3, calls: int = 3) -> float:
    """The median time of a call, made `calls` times in a row so that the host works while the GPU does."""
    import torch

    run()
    times: list[float] = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / calls)
    return statistics.median(times)


def compile_ahead(cells: tuple[str, ...], dtypes: tuple[str, ...], shapes: tuple[Sizes, ...], steps_alone: bool) -> None:
    """All the kernels a run will need, several at a time."""
    device = driver.device(0)
    parts: list[dict[str, Any]] = [{}, {"gradient": False, "input_weight": False}]
    wanted = [
        job
        for cell in cells
        for dtype in dtypes
        for _, N, _, H, D in shapes
        for part in parts[: 1 + steps_alone]
        for job in warm.jobs(descriptor_of(cell, D), dtype, N, H, device, wanted=planner.current_wish(), **part)
    ]
    _, errors = warm.compile_all(wanted, device.architecture)
    if errors:
        raise RuntimeError(errors[0])


class _Case:
    """One cell, dtype and shape: its tensors, and the calls that are timed."""

    def __init__(self, cell: str, dtype: str, sizes: Sizes) -> None:
        import torch

        self.cell, self.dtype, self.sizes = cell, dtype, sizes
        T, N, I, H, D = sizes  # noqa: E741
        self.kind = getattr(torch, dtype)
        G = 4 if cell == "lstm" else 3
        torch.manual_seed(0)
        self.arguments = {
            "source": self.make(T, N, I),
            "recurrent_weight": self.make(*((2, G * H, H) if D == 2 else (G * H, H)), scale=H**-0.5),
            "input_weight": self.make(D * G * H, I, scale=H**-0.5),
            "bias": self.make(D * G * H, scale=H**-0.5),
        }
        if cell == "gru":
            self.arguments["secondary_bias"] = self.make(D * H, scale=H**-0.5)
        self.incoming = self.make(T, N, D * H)

    def make(self, *shape: int, scale: float = 1.0) -> Any:
        import torch

        return ((torch.rand(shape, device="cuda") * 2 - 1) * scale).to(self.kind)

    def gatewise_calls(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        D = self.sizes[4]
        inference, training = descriptor_of(self.cell, D, training=False), descriptor_of(self.cell, D)
        is_lstm = self.cell == "lstm"
        run: Any = gatewise.lstm if is_lstm else gatewise.gru
        back: Any = gatewise.lstm_gradients if is_lstm else gatewise.gru_gradients

        def step() -> None:
            results = run(**self.arguments, descriptor=training)
            saved = {"cell_output_fwd": results[1]} if is_lstm else {"output_fwd": results[0]}
            back(**self.arguments, **saved, z_state=results[-1], source_gradient=self.incoming, descriptor=training)

        return lambda: run(**self.arguments, descriptor=inference), step

    def steps_call(self) -> Callable[[], Any]:
        """The forward call on an input that has been multiplied: the steps alone."""
        T, N, _, _, D = self.sizes
        given = {**self.arguments, "input_weight": None, "source": self.make(T, N, self.arguments["bias"].shape[0])}
        run: Any = gatewise.lstm if self.cell == "lstm" else gatewise.gru
        descriptor = descriptor_of(self.cell, D, training=False)
        return lambda: run(**given, descriptor=descriptor)

    def cudnn_calls(self) -> tuple[Callable[[], Any], Callable[[], Any]] | None:
        import torch

        if self.cell == "gru_before":
            return None
        _, _, I, H, D = self.sizes  # noqa: E741
        module = torch.nn.LSTM if self.cell == "lstm" else torch.nn.GRU
        layer = module(I, H, bidirectional=D == 2).cuda().to(self.kind)
        layer.flatten_parameters()
        source = self.arguments["source"].clone().requires_grad_()

        def forward() -> None:
            with torch.inference_mode():
                layer(self.arguments["source"])

        def step() -> None:
            wanted = [source, *layer.parameters()]
            torch.autograd.grad(layer(source)[0], wanted, self.incoming)

        return forward, step


def measure(cells: tuple[str, ...], dtypes: tuple[str, ...], shapes: tuple[Sizes, ...]) -> Iterator[Row]:
    """A row for each cell, dtype and shape, as it is measured."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device, gpu = driver.device(0), torch.cuda.get_device_name(0)
    compile_ahead(cells, dtypes, shapes, steps_alone=MACHINE in gpu)
    for cell in cells:
        for dtype in dtypes:
            for sizes in shapes:
                T, N, I, H, D = sizes  # noqa: E741
                case = _Case(cell, dtype, sizes)
                ours = [milliseconds(call) for call in case.gatewise_calls()]
                rival = case.cudnn_calls()
                theirs = [None, None] if rival is None else [milliseconds(call) for call in rival]
                plans = [
                    planner.choose(cell_of(descriptor_of(cell)), back, N, H, D, dtype, False, device, planner.current_wish())
                    for back in (False, True)
                ]
                row: Row = {"cell": cell, "dtype": dtype, "T": T, "N": N, "I": I, "H": H, "directions": D}
                row["families"] = [plan.family for plan in plans]
                row["floor_us_per_step"] = floor(plans[0], N, gpu)
                row["steps_us_per_step"] = 1000 * milliseconds(case.steps_call()) / T if row["floor_us_per_step"] else None
                for name, mine, other in zip(("forward", "training"), ours, theirs, strict=True):
                    row[name] = {
                        "ms": mine,
                        "us_per_step": 1000 * mine / T,
                        "cudnn_ms": other,
                        "cudnn_us_per_step": None if other is None else 1000 * other / T,
                        "ratio": None if other is None else other / mine,
                    }
                yield row
                del case


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def host_microseconds(calls: int = 500) -> float:
    """What one small forward call costs the host, which does not wait for the GPU."""
    import torch

    case = _Case("lstm", "bfloat16", (4, 16, 256, 256, 1))
    forward, _ = case.gatewise_calls()
    for _ in range(20):
        forward()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        forward()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * spent / calls


def machine() -> dict[str, str]:
    """What the figures hold for."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": str(torch.__version__),
        "cudnn": str(torch.backends.cudnn.version()),
        "gatewise": gatewise.__version__,
    }


def number(value: float | None) -> str:
    """For a table: three figures, a dash for none."""
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sizes_of(row: Row) -> str:
    return f"{row['T']}, {row['N']}, {row['I']}, {row['H']}" + (", both directions" if row["directions"] == 2 else "")


def markdown(rows: list[Row]) -> str:
    """The rows as one table, and their means."""
    parts = ("ms", "us/step", "cuDNN us/step", "ratio")
    titles = ["cell", "dtype", "T, N, I, H", "kernels", "floor us/step", "steps alone us/step"]
    titles += [f"{name} {part}" for name in ("forward", "training") for part in parts]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        cells = [row["cell"], row["dtype"], sizes_of(row), " / ".join(row["families"])]
        cells += [number(row.get(key)) for key in ("floor_us_per_step", "steps_us_per_step")]
        for name in ("forward", "training"):
            cells += [number(row[name][key]) for key in ("ms", "us_per_step", "cudnn_us_per_step", "ratio")]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for cell in dict.fromkeys(row["cell"] for row in rows):
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            mine = [row for row in rows if (row["cell"], row["dtype"]) == (cell, dtype)]
            text = []
            for name in ("forward", "training"):
                ratios = [row[name]["ratio"] for row in mine if row[name]["ratio"] is not None]
                if ratios:
                    text.append(f"{name} {geometric_mean(ratios):.2f} (least {min(ratios):.2f})")
            floored = [row for row in mine if row.get("floor_us_per_step")]
            alone = [row["steps_us_per_step"] / row["floor_us_per_step"] for row in floored]
            whole = [row["forward"]["us_per_step"] / row["floor_us_per_step"] for row in floored]
            for name, over in (("steps alone", alone), ("forward", whole)):
                if over:
                    text.append(f"{name} over the floor {geometric_mean(over):.2f} (most {max(over):.2f})")
            if text:
                lines.append(f"- {cell} {dtype}, geometric mean over cuDNN: " + ", ".join(text))
    return "\n".join(lines) + "\n"
