"""One command for a machine with a GPU: compile, check against the reference, time against cuDNN.

    PYTHONPATH=src python benchmarks/gpu_run.py --check 200 --time
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cuda"))
os.environ.setdefault("GATEWISE_QUIET", "1")

import gatewise
from gatewise.cells import activations_of, cell_of, order_of
from gatewise.engines.cuda import compiler, driver, kernels, planner
from sampling import OPERATIONS, TOLERANCE, difference, gradient_arguments, reference, sample

ARCH = driver.H200


def wanted_kernels(descriptor, peephole, dtype, has_weight, N, H, wished, exact, device, given):
    """(file, macros) of every kernel a training step needs."""
    cell = cell_of(descriptor, peephole)
    D = 2 if descriptor.bidirectional else 1
    found = []
    for backward in (False, True):
        plan = planner.choose(cell, backward, N, H, D, dtype, exact, device, wished)
        HP = H if plan.tiling is None else plan.tiling.padded
        inputs = "float32" if not backward and has_weight and dtype in ("float16", "bfloat16") else dtype
        macros = kernels.macros(cell, activations_of(descriptor), order_of(descriptor), dtype, inputs, H, HP)
        file = "persistent_gradient.cu" if backward else "persistent_forward.cu"
        options = given & (0b1110 if backward else 0b1111)
        if plan.tiling is None:
            found.append(("steps.cu", macros))
        else:
            found.append((file, macros | kernels.tiling_macros(plan.tiling, options)))
        if backward:
            found.append(("around.cu", macros))
    found.append(("arrays.cu", {"GATEWISE_ELEMENT": kernels.ELEMENTS[dtype]}))
    return found


def compile_one(job):
    file, macros, architecture = job
    try:
        compiler.cubin(file, macros, architecture)
        return None
    except Exception as error:
        return f"{file} {macros}: {error}"


def compile_all(jobs, architecture):
    unique = {repr(job): (*job, architecture) for job in jobs}
    started = time.time()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        errors = [error for error in pool.map(compile_one, unique.values()) if error]
    print(f"compiled {len(unique)} kernels in {time.time() - started:.1f} s, {len(errors)} errors")
    for error in errors[:3]:
        print(error[:2000])


def sample_kernels(made, device):
    exact = made.dtype == "highest"
    dtype = "float32" if exact else made.dtype
    _, N, _, H = made.sizes
    wished = planner.Wish(made.family, made.pick, made.starve)
    has_weight = "input_weight" in made.arguments
    given = sum(1 << i for i, name in enumerate(("bias", "mask", "lengths", "resets")) if name in made.arguments)
    return wanted_kernels(made.descriptor, "peephole" in made.arguments, dtype, has_weight, N, H, wished, exact, device, given)


def reference_of(seed):
    return reference(sample(seed))


def check(count, first):
    import torch

    torch.use_deterministic_algorithms(True)  # fills fresh memory with NaN: unwritten results show
    samples = [sample(seed) for seed in range(first, first + count)]
    device = driver.device(0)
    compile_all([job for made in samples for job in sample_kernels(made, device)], device.architecture)
    started = time.time()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        references = list(pool.map(reference_of, range(first, first + count), chunksize=4))
    print(f"references in {time.time() - started:.1f} s")

    def to_gpu(value):
        if value.dtype.name == "bfloat16":
            return torch.from_numpy(value.view(np.uint16).copy()).cuda().view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(value)).cuda()

    def to_numpy(tensor):
        return tensor.double().cpu().numpy()

    failures, worst, families = [], {}, {}
    for made, (expected, expected_gradients, saved) in zip(samples, references, strict=True):
        forward, gradients = OPERATIONS[made.operation]
        try:
            arguments = {name: to_gpu(value) for name, value in made.arguments.items()}
            extra = {name: to_gpu(value) for name, value in (made.gradients | saved).items()}
            precision = "highest" if made.dtype == "highest" else "default"
            with planner.wish(made.family, made.pick, made.starve), gatewise.use_precision(precision):
                got = forward(**arguments, descriptor=made.descriptor)
                again = forward(**arguments, descriptor=made.descriptor)
                got_gradients = gradients(**arguments, **extra, descriptor=made.descriptor)
                torch.cuda.synchronize()
            apart = [difference(to_numpy(a), b) for a, b in zip(got, expected, strict=True)]
            apart_gradients = [difference(to_numpy(a), b) for a, b in zip(got_gradients, expected_gradients, strict=True)]
            same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
            largest = max(apart + apart_gradients)
            worst[made.dtype] = max(worst.get(made.dtype, 0.0), largest)
            if not largest <= TOLERANCE[made.dtype] or not same:
                failures.append(f"{made.text}\n    forward {apart} gradients {apart_gradients} repeatable {same}")
            key = (made.family, made.dtype)
            families[key] = families.get(key, 0) + 1
        except Exception as error:
            failures.append(f"{made.text}\n    {type(error).__name__}: {error}")
            if "launch" in str(error) or "illegal" in str(error) or "unspecified" in str(error):
                traceback.print_exc()
                break
    torch.use_deterministic_algorithms(False)
    print(f"checked {count} samples: {len(failures)} failures; worst {({k: f'{v:.1e}' for k, v in worst.items()})}")
    for failure in failures[:12]:
        print(failure.replace("RNNActivation.", "")[:900])
    return failures


SHAPES = [
    (512, 64, 128, 128), (512, 64, 256, 256), (512, 16, 512, 512), (512, 64, 512, 512), (512, 1, 512, 512),
    (1024, 16, 768, 768), (512, 16, 1024, 1024), (512, 64, 1024, 1024), (256, 256, 1024, 1024), (256, 64, 2048, 2048),
    (365, 256, 32, 128), (16, 4096, 128, 256), (512, 64, 320, 320), (512, 64, 1000, 1000),
]  # fmt: skip


def median_ms(run, repeats=3, calls=3):
    """Of calls made one after the other, so that the host works while the GPU does."""
    import torch

    run()
    times = []
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


def time_cells(cells, dtypes, families, shapes, with_peer=True, bidirectional=False):
    import torch

    rows, jobs = [], []
    device = driver.device(0)
    for operation in cells:
        descriptor = make_descriptor(operation, bidirectional)
        for dtype in dtypes:
            for _, N, _, H in shapes:
                for family in families:
                    wished = planner.Wish(family)
                    jobs += wanted_kernels(descriptor, False, dtype, True, N, H, wished, False, device, 1)
    compile_all(jobs, device.architecture)
    for operation in cells:
        descriptor = make_descriptor(operation, bidirectional)
        for dtype in dtypes:
            for T, N, I, H in shapes:
                rows += time_one(torch, operation, descriptor, dtype, (T, N, I, H), families, with_peer)
    return rows


def make_descriptor(operation, bidirectional=False):
    if operation == "lstm":
        return gatewise.LSTMDescriptor(training=True, bidirectional=bidirectional)
    return gatewise.GRUDescriptor(
        training=True, bidirectional=bidirectional, reset_gate_first=True, reset_after=operation == "gru"
    )


def time_one(torch, operation, descriptor, dtype, sizes, families, with_peer):
    T, N, I, H = sizes
    D = 2 if descriptor.bidirectional else 1
    G = 4 if operation == "lstm" else 3
    kind = getattr(torch, dtype)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def make(*shape, scale=1.0):
        return (torch.rand(shape, device="cuda", dtype=torch.float32) * 2 - 1).mul_(scale).to(kind)

    source = make(T, N, I)
    R = make(*((2, G * H, H) if D == 2 else (G * H, H)), scale=H**-0.5)
    arguments = {"source": source, "recurrent_weight": R, "input_weight": make(D * G * H, I, scale=H**-0.5)}
    arguments["bias"] = make(D * G * H, scale=H**-0.5)
    if operation == "gru":
        arguments["secondary_bias"] = make(D * H, scale=H**-0.5)
    incoming = make(T, N, D * H)
    forward, gradients = OPERATIONS["lstm" if operation == "lstm" else "gru"]
    inference = type(descriptor)(**{**descriptor.__dict__, "training": False})
    peer_f = peer_b = float("nan")
    if with_peer and operation != "gru_before":
        layer = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[operation](I, H, bidirectional=D == 2).cuda().to(kind)
        layer.flatten_parameters()
        x = source.clone().requires_grad_()

        def peer_forward():
            with torch.no_grad():
                layer(source)

        def peer_step():
            layer.zero_grad()
            x.grad = None
            layer(x)[0].backward(incoming)

        peer_f, peer_b = median_ms(peer_forward), median_ms(peer_step)
        del layer, x
    rows = []
    made = type("S", (), {"operation": "lstm" if operation == "lstm" else "gru"})
    for family in families:
        try:
            with planner.wish(family):
                results = forward(**arguments, descriptor=descriptor)
                saved = gradient_arguments(made, results)
                gradients(**arguments, **saved, source_gradient=incoming, descriptor=descriptor)
                torch.cuda.synchronize()
                f = median_ms(lambda: forward(**arguments, descriptor=inference))
                step_f = median_ms(lambda: forward(**arguments, descriptor=descriptor))
                b = median_ms(lambda: gradients(**arguments, **saved, source_gradient=incoming, descriptor=descriptor))
            cell = cell_of(descriptor)
            device = driver.device(0)
            plans = [planner.choose(cell, back, N, H, D, dtype, False, device, planner.Wish(family)) for back in (False, True)]
        except Exception as error:
            print(f"{operation} {dtype} {sizes} {family}: {type(error).__name__}: {str(error)[:300]}")
            if "illegal" in str(error) or "unspecified" in str(error):
                raise
            continue
        us = 1000 / T
        row = {
            "cell": operation, "dtype": dtype, "T": T, "N": N, "I": I, "H": H, "D": D, "family": family or "auto",
            "plan": "/".join(plan.family for plan in plans), "f": f * us, "step_f": step_f * us, "b": b * us,
            "predicted_f": plans[0].microseconds, "predicted_b": plans[1].microseconds,
            "peer_f": peer_f * us, "peer_fb": peer_b * us,
        }  # fmt: skip
        rows.append(row)
        print(
            f"{operation:10s} {dtype:8s} T{T:<4d} N{N:<4d} I{I:<4d} H{H:<4d} D{D} {row['plan']:15s} f {row['f']:6.2f} us/step "
            f"(plan {row['predicted_f']:5.2f}) train f {row['step_f']:6.2f} b {row['b']:6.2f} (plan {row['predicted_b']:5.2f}) | "
            f"cuDNN f {row['peer_f']:6.2f} f+b {row['peer_fb']:6.2f} | x{row['peer_f'] / row['f']:5.2f} "
            f"x{row['peer_fb'] / (row['step_f'] + row['b']):5.2f}",
            flush=True,
        )
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--cells", default="lstm,gru")
    parser.add_argument("--dtypes", default="bfloat16,float16,float32")
    parser.add_argument("--families", default="auto")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    if given.check and check(given.check, given.first) and not given.time:
        sys.exit(1)
    if given.time:
        shapes = [SHAPES[int(i)] for i in given.shapes.split(",")] if given.shapes else SHAPES
        families = [None if name == "auto" else name for name in given.families.split(",")]
        rows = time_cells(given.cells.split(","), given.dtypes.split(","), families, shapes, True, given.bidirectional)
        if given.json:
            Path(given.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
