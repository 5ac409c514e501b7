"""An executable in one file: a safetensors container whose metadata holds the structure as JSON.

The structure lists operations by the kinds of the table in `rules.py`, with plain numbers, texts and names of arrays as
attributes. Reading rebuilds the graph through the same checks as building it; nothing in a file is ever executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ..cells import Descriptor
from ..descriptors import GRUDescriptor, LSTMDescriptor, RNNActivation, SingleGateRNNDescriptor
from ..errors import GatewiseError
from .executable import Executable
from .graph import Graph
from .place import to_numpy
from .rules import RULES
from .tensor import Operation, ShapedType, Tensor, as_dtype

FORMAT = 1
_KEY = "gatewise"
_DESCRIPTORS: dict[str, type[Any]] = {kind.__name__: kind for kind in (LSTMDescriptor, GRUDescriptor, SingleGateRNNDescriptor)}
# safetensors' names of dtypes and ours
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


def save(executable: Executable, path: str | os.PathLike[str]) -> None:
    """Write the executable; a file that was there before is replaced in one step."""
    import safetensors.numpy

    text, arrays = _encode(executable)
    plain = {name: np.array(array, order="C") for name, array in arrays.items()}
    write_atomically(path, safetensors.numpy.save(plain, {_KEY: text}))


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file beside its place, then move it there: at any moment the place holds the old file or the new one."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def load(path: str | os.PathLike[str]) -> Executable:
    """Read an executable; any other file, whole or damaged, raises GatewiseError."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise GatewiseError(f"load: cannot read {path}: {error.strerror or error}") from error
    try:
        text, arrays = _read(content)
        return _decode(json.loads(text), arrays)
    except (MemoryError, RecursionError) as error:
        raise GatewiseError(f"load: {path} asks for more than this machine has") from error
    except Exception as error:  # whatever a damaged file provokes, its reader learns one thing
        raise GatewiseError(f"load: {path} is not a gatewise executable or is damaged: {error}") from error


def _read(content: bytes) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    """The structure's text and the arrays. The library checks the container: sizes, offsets, dtypes."""
    import safetensors

    arrays = {}
    deserialize: Any = safetensors.deserialize
    for name, tensor in deserialize(content):
        dtype = as_dtype(_DTYPES[tensor["dtype"]])
        array = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
        array.flags.writeable = False
        arrays[name] = array
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    return metadata[_KEY], arrays


# The structure


def _encode(executable: Executable) -> tuple[str, dict[str, np.ndarray[Any, Any]]]:
    from .plan import needed

    graph = executable.graph
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    feeding = [tensor.operation for tensor in executable.feeds]
    operations = needed(executable.targets, [*executable.operations, *feeding])
    numbers = {operation: number for number, operation in enumerate(operations)}
    with graph._values_lock:
        values = dict(graph._values)
        random_state = graph._run_number

    def reference(tensor: Tensor) -> list[int]:
        return [numbers[tensor.operation], tensor.index]

    rows = []
    for operation in operations:
        row: dict[str, Any] = {"kind": operation.kind, "name": operation.name}
        if operation.inputs:
            row["inputs"] = [reference(tensor) for tensor in operation.inputs]
        if operation.control:
            row["control"] = [numbers[each] for each in operation.control]
        if operation.attributes:
            row["attributes"] = {
                key: _encode_value(value, f"{numbers[operation]}.{key}", arrays) for key, value in operation.attributes.items()
            }
        if operation in values:
            arrays[f"{numbers[operation]}.value"] = to_numpy(values[operation])
        rows.append(row)
    structure = {
        "format": FORMAT,
        "random_state": random_state,
        "operations": rows,
        "feeds": [[numbers[tensor.operation], list(kind.shape), kind.dtype.name] for tensor, kind in executable.feeds.items()],
        "targets": [reference(tensor) for tensor in executable.targets],
        "runs": [numbers[operation] for operation in executable.operations],
    }
    return json.dumps(structure, separators=(",", ":")), arrays


def _encode_value(value: Any, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if type(value).__name__ in _DESCRIPTORS:
        return {"descriptor": type(value).__name__, "fields": dataclasses.asdict(value)}
    if isinstance(value, tuple):
        return list(value)
    return value


def _decode(structure: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Executable:
    if structure["format"] != FORMAT:
        raise GatewiseError(f"it has format {structure['format']}, this version reads format {FORMAT}")
    graph = Graph()
    made: list[Operation] = []
    for row in structure["operations"]:
        made.append(_decode_operation(graph, row, made, arrays, len(made)))
    feeds = {}
    for number, shape, dtype in structure["feeds"]:
        feeds[_item(made, number).results[0]] = ShapedType(tuple(shape), as_dtype(dtype))
    targets = [_tensor(made, reference) for reference in structure["targets"]]
    operations = [_item(made, number) for number in structure["runs"]]
    graph.random_state = structure["random_state"]
    return graph.compile(feeds, targets, operations)


def _decode_operation(graph: Graph, row: Any, made: list[Operation], arrays: dict[str, Any], number: int) -> Operation:
    rule = RULES[row["kind"]]
    given = row.get("attributes", {})
    if set(given) != set(rule.fields):
        raise GatewiseError(f"operation {number} ({rule.kind}) has the attributes {sorted(given)}")
    attributes = {key: _decode_value(rule.kind, key, given[key], kind, arrays) for key, kind in rule.fields.items()}
    inputs = [_tensor(made, reference) for reference in row.get("inputs", [])]
    if not isinstance(row["name"], str):
        raise GatewiseError(f"operation {number} ({rule.kind}) has the name {row['name']!r}")
    graph._control = tuple(_item(made, each) for each in row.get("control", []))
    operation = graph._add(rule.kind, inputs, attributes, row["name"])
    graph._control = ()
    if rule.kind == "variable":
        value = arrays[f"{number}.value"]
        if value.shape != operation.results[0].shape or value.dtype != operation.results[0].dtype:
            raise GatewiseError(f"the value of variable '{operation.name}' does not fit it")
        graph._values[operation] = value
    if rule.kind in ("read_variable", "assign"):
        graph._need_variable(rule.kind, inputs[0])
    return operation


def _decode_value(kind: str, key: str, value: Any, wanted: Any, arrays: dict[str, Any]) -> Any:
    """An attribute of exactly the type the table names."""
    if wanted is np.ndarray:
        return arrays[value["array"]]
    if wanted is np.dtype:
        return as_dtype(value["dtype"])
    if wanted in _DESCRIPTORS.values():
        return _decode_descriptor(wanted, value)
    if wanted is tuple and isinstance(value, list):
        if not all(each is None or type(each) in (int, str) for each in value):
            raise GatewiseError(f"{kind}: {key} is {value!r}")
        return tuple(value)
    if type(value) is not wanted:
        raise GatewiseError(f"{kind}: {key} is {value!r}")
    return value


def _decode_descriptor(wanted: type[Any], value: Any) -> Descriptor:
    if value["descriptor"] != wanted.__name__:
        raise GatewiseError(f"a {value['descriptor']} where a {wanted.__name__} belongs")
    defaults = {field.name: field.default for field in dataclasses.fields(wanted)}
    fields = {
        name: RNNActivation(each) if isinstance(defaults[name], RNNActivation) else each
        for name, each in value["fields"].items()
    }
    return wanted(**fields)  # type: ignore[no-any-return]


def _item(made: list[Operation], number: Any) -> Operation:
    if type(number) is not int or not 0 <= number < len(made):
        raise GatewiseError(f"it refers to operation {number!r}, which is not there")
    return made[number]


def _tensor(made: list[Operation], reference: Any) -> Tensor:
    number, index = reference
    results = _item(made, number).results
    if type(index) is not int or not 0 <= index < len(results):
        raise GatewiseError(f"it refers to result {index!r} of operation {number}, which is not there")
    return results[index]
