"""The package as a whole: what importing it loads, and which way its imports point."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gatewise

PACKAGE = Path(gatewise.__file__).parent
HEAVY = ("torch", "jax", "keras", "tensorflow", "onnx", "onnxruntime", "cupy", "scipy", "matplotlib")
LAZY = ("array_api_compat", "typer", "rich", "click", "ml_dtypes", "safetensors", "cuda", "hypothesis", "pytest")

# From the lowest room to the highest: a room may import itself and those below it.
ROOMS = (
    ("errors", "descriptors"),
    ("cells",),
    ("precision",),
    ("arrays", "device_arrays"),
    ("problem",),
    ("_native",),
    ("reference",),
    ("engines",),
    ("operations",),
    ("checking",),
    ("graph",),
    ("interop",),
    ("training",),
    ("benchmark",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(ROOMS) for name in names}


def test_import_loads_no_framework() -> None:
    code = "import gatewise, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gatewise" in loaded
    roots = {name.partition(".")[0] for name in loaded}
    assert roots & {*HEAVY, *LAZY} == set()


def test_a_call_loads_no_framework() -> None:
    code = """if True:
        import sys
        import numpy as np
        import gatewise
        gatewise.lstm(np.zeros((2, 1, 4), np.float32), np.zeros((4, 1), np.float32))
        print('\\n'.join(sys.modules))"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} & {*HEAVY, *LAZY} == set()


def imports_of(path: Path) -> set[str]:
    """The rooms of this package that a file imports, wherever in the file."""
    package = ["gatewise", *path.relative_to(PACKAGE).parent.parts]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("gatewise.") and name.split(".")[1] in LEVEL}
    return rooms


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert room in LEVEL, f"{room} is in no room: add it to ROOMS and to docs/architecture.md"
    for other in imports_of(path):
        assert LEVEL[other] <= LEVEL[room], f"{room} imports {other}, which is above it"


def test_imports_of_sees_imports() -> None:
    """The test above would pass for ever if it could not read imports."""
    assert imports_of(PACKAGE / "operations.py") >= {"descriptors", "engines", "problem"}
    assert imports_of(PACKAGE / "cells" / "__init__.py") >= {"descriptors"}


@pytest.mark.parametrize("name", HEAVY)
def test_no_framework_is_imported_outside_interop(name: str) -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] in ("interop", "benchmark"):
            continue
        if path == PACKAGE / "training" / "picture.py" and name == "matplotlib":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert all(module.partition(".")[0] != name for module in modules), path


def test_the_example_of_the_readme_runs() -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    for argument, gradient in (("x", "dx"), ("R", "dR"), ("W", "dW"), ("b", "db"), ("p", "dp")):
        assert names[argument].shape == names[gradient].shape  # type: ignore[attr-defined]


def test_public_names_exist_and_version_is_one() -> None:
    for name in gatewise.__all__:
        assert hasattr(gatewise, name)
    written = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert f'\nversion = "{gatewise.__version__}"\n' in written
