"""What the numbers were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from gatewise.engines import ENGINES

from .timing import available_cpus

_PACKAGES = ("gatewise", "numpy", "torch", "onnxruntime", "onnx")
_INSTRUCTIONS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "asimd",
    "sve",
)


def describe() -> dict[str, Any]:
    """CPU model, instruction sets, number of CPUs, operating system and versions."""
    rows = _cpuinfo()
    engine = ENGINES["cpu"]
    flags = set((rows.get("flags") or rows.get("Features") or "").split())
    return {
        "cpu": rows.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "instructions": [name for name in _INSTRUCTIONS if name in flags],
        "cpus": available_cpus(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
        "engine": engine.supports() if engine.unavailable() is None else {},
    }


def others_cpu_seconds() -> float | None:
    """CPU time used so far on this machine by anyone but this process and its children, a hypervisor's other guests
    included; None where the system does not say. Only the difference of two readings means something."""
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _idle, _waiting, *interrupts_and_stolen = map(int, path.read_text().split("\n", 1)[0].split()[1:9])
    everyone = (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return everyone - own.user - own.system - own.children_user - own.children_system


def _cpuinfo() -> dict[str, str]:
    """The first value of every row of Linux's description of its CPUs; nothing elsewhere."""
    path = Path("/proc/cpuinfo")
    rows: dict[str, str] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            rows.setdefault(name.strip(), value.strip())
    return rows


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
