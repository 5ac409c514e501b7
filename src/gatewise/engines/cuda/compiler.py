"""NVRTC by ctypes, and the cache of compiled kernels on disk.

A kernel is one source file with macros. Its cubin is kept under a name that hashes everything it depends on: all the
sources, the macros, the architecture and the compiler's version; so a stale file is never read, only left over.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import GatewiseError, UnsupportedError

CACHE_LIMIT = 2048  # cubins; the ones not used for longest go first


class CompileError(GatewiseError, RuntimeError):
    """NVRTC refused a kernel: a defect of gatewise or of the installation."""


def sources() -> Path:
    """The folder with native/cuda and native/cells: in the package when installed, in the repository otherwise."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "native", package.parents[1] / "native"):
        if (folder / "cuda" / "problem.cuh").exists():
            return folder
    raise UnsupportedError("the sources of the CUDA kernels are not installed with gatewise")


@lru_cache(maxsize=1)
def _source_texts() -> dict[str, str]:
    folder = sources()
    files = sorted([*(folder / "cuda").glob("*.cu*"), *(folder / "cells").glob("*.h")])
    return {file.name: file.read_text() for file in files}


def cache_folder() -> Path:
    """Where cubins are kept: GATEWISE_CACHE, else the user's cache folder."""
    given = os.environ.get("GATEWISE_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gatewise"


def find_library(*names: str) -> ctypes.CDLL | None:
    """The first of these libraries that is already in the process, in an nvidia-* wheel, or on the system."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    for name in names:
        for folder in sys.path:
            for path in sorted(Path(folder).glob(f"nvidia/*/lib/{name}")):
                with contextlib.suppress(OSError):
                    return ctypes.CDLL(str(path))
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL:
    library = find_library("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
    if library is None:
        raise UnsupportedError("NVRTC is not installed (pip install gatewise[cuda13])")
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@lru_cache(maxsize=1)
def compiler_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _check(code: int, program: Any = None) -> None:
    if code == 0:
        return
    library = _nvrtc()
    log = ""
    if program is not None:
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, text)
        log = text.value.decode(errors="replace")
    raise CompileError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}\n{log}")


def _options(macros: dict[str, str], architecture: str) -> list[str]:
    if "GATEWISE_HOPPER" in macros:  # the warp group instructions are in no architecture but their own
        architecture += "a"
    common = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    return common + [f"-D{name}={value}" for name, value in macros.items()]


def compile_now(file: str, macros: dict[str, str], architecture: str) -> bytes:
    """Compile one source file to a cubin, past the cache."""
    library, texts = _nvrtc(), _source_texts()
    headers = {name: text for name, text in texts.items() if not name.endswith(".cu")}
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    bodies = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), texts[file].encode(), file.encode(), len(headers), bodies, names))
    try:
        options = [option.encode() for option in _options(macros, architecture)]
        _check(library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)), program)
        size = ctypes.c_size_t()
        _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        cubin = ctypes.create_string_buffer(size.value)
        _check(library.nvrtcGetCUBIN(program, cubin))
        return cubin.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _key(file: str, macros: dict[str, str], architecture: str) -> str:
    digest = hashlib.sha256()
    for part in (compiler_version(), architecture, file, repr(sorted(macros.items())), repr(sorted(_source_texts().items()))):
        digest.update(part.encode())
        digest.update(b"\0")
    return f"{Path(file).stem}-{architecture}-{digest.hexdigest()[:32]}.cubin"


def cubin(file: str, macros: dict[str, str], architecture: str) -> bytes:
    """The cubin of a source file with these macros, from the cache or compiled now.

    Several processes may do this at once: a file appears whole, by a rename, and equal names mean equal contents.
    """
    path = cache_folder() / _key(file, macros, architecture)
    try:
        data = path.read_bytes()
        with contextlib.suppress(OSError):
            os.utime(path)
        return data
    except OSError:
        pass
    started = time.perf_counter()
    data = compile_now(file, macros, architecture)
    seconds = time.perf_counter() - started
    if os.environ.get("GATEWISE_QUIET") is None:
        cell = macros.get("GATEWISE_CELL_NAME", "")
        print(f"gatewise: compiled {Path(file).stem} {cell} for {architecture} in {seconds:.1f} s", file=sys.stderr)
    with contextlib.suppress(OSError):  # a cache that cannot be written is no cache
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".new")
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        os.replace(temporary, path)
        _trim(path.parent)
    return data


def _trim(folder: Path) -> None:
    files = sorted(folder.glob("*.cubin"), key=lambda file: file.stat().st_mtime)
    for file in files[:-CACHE_LIMIT]:
        file.unlink(missing_ok=True)


def cached() -> list[tuple[str, int]]:
    """Name and size of every cubin in the cache."""
    folder = cache_folder()
    return sorted((file.name, file.stat().st_size) for file in folder.glob("*.cubin")) if folder.exists() else []
