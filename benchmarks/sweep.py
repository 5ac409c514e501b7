"""Times many ways to cut the persistent kernels, to calibrate the planner: prints and saves one row per candidate."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("GATEWISE_QUIET", "1")
import gpu_run
import torch

import gatewise
from gatewise.cells import activations_of, cell_of, order_of
from gatewise.engines.cuda import driver, kernels, planner

SHAPES = [(64, 128), (64, 256), (16, 512), (64, 512), (16, 1024), (64, 1024), (256, 1024), (64, 2048), (4096, 256)]


def main():
    out, keep = sys.argv[1], int(sys.argv[2])
    dtype = "bfloat16"
    device = driver.device(0)
    descriptor = gatewise.LSTMDescriptor(training=True)
    cell = cell_of(descriptor)
    work, jobs = [], []
    for N, H in SHAPES:
        for backward in (False, True):
            found = planner._candidates(cell, backward, N, H, 1, 2, device)
            ranked = sorted(range(len(found)), key=lambda i: planner.predict(found[i], 1, device))
            for i in ranked[:keep]:
                t = found[i]
                macros = kernels.macros(
                    cell, activations_of(descriptor), order_of(descriptor), dtype, dtype if backward else "float32", H, t.padded
                )
                file = "persistent_gradient.cu" if backward else "persistent_forward.cu"
                jobs.append((file, macros | kernels.tiling_macros(t, 0 if backward else 1)))
                if backward:
                    jobs.append(("around.cu", macros))
                work.append((N, H, backward, i, t))
    jobs.append(("arrays.cu", {"GATEWISE_ELEMENT": "Bfloat16"}))
    gpu_run.compile_all(jobs, device.architecture)
    rows = []
    last = None
    for N, H, backward, pick, t in work:
        if (N, H) != last:
            last = (N, H)
            T = 512 if N * H < 70000 else 16 if N > 1000 else 128

            def make(*shape, scale=1.0):
                return (torch.rand(shape, device="cuda") * 2 - 1).mul_(scale).bfloat16()

            x, R, W, b = make(T, N, H), make(4 * H, H, scale=H**-0.5), make(4 * H, H, scale=H**-0.5), make(4 * H)
            g = make(T, N, H)
            state, c, z = gatewise.lstm(x, R, W, b, descriptor=descriptor)

            def forward():
                gatewise.lstm(x, R, W, b, descriptor=descriptor)

            def gradient():
                gatewise.lstm_gradients(x, R, g, z, c, input_weight=W, bias=b, descriptor=descriptor)

        run = gradient if backward else forward
        try:
            with planner.wish(None, pick):
                ms = gpu_run.median_ms(run, 3, 4)
        except Exception as error:
            print("failed", N, H, backward, t, str(error)[:200])
            continue
        rows.append({
            "N": N, "H": H, "b": backward, "us": ms * 1000 / T, "predicted": planner.predict(t, 1, device), "units": t.units,
            "wm": t.warps_m, "nt": t.column_tiles, "chip": t.on_chip, "passes": t.passes, "groups": t.groups, "blocks": t.blocks,
            "held": t.held, "shared": t.shared, "streamed": [t.streamed(k) for k in t.phases], "pairs": t.pairs,
        })  # fmt: skip
    json.dump(rows, open(out, "w"))
    for N, H in SHAPES:
        for backward in (False, True):
            mine = sorted((r for r in rows if (r["N"], r["H"], r["b"]) == (N, H, backward)), key=lambda r: r["us"])
            for r in mine[:4]:
                print(N, H, "B" if backward else "F", f"{r['us']:.2f} (pred {r['predicted']:.2f})", {k: r[k] for k in ("units", "wm", "nt", "chip", "passes", "groups", "blocks", "held", "shared", "streamed")})


if __name__ == "__main__":
    main()
