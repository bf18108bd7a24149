"""Where the tensors of a torch.save file lie, found without running what the file says. No torch.

Such a file is a zip archive: data.pkl describes tensors, data/KEY holds a storage, not compressed.
The pickle may name tensors, storages and ordered dictionaries only, the rule of torch's
weights_only; anything else is refused by name, and nothing it names is ever called.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atb_dist.errors import ConfigError
from atb_dist.weights.stored import ITEM_BYTES, TensorInfo

STORAGE_DTYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
MAX_PICKLE_BYTES = 100 << 20
LOCAL_HEADER_BYTES = 30  # before the name, in a zip archive


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    first: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_torch_file(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a state dictionary that torch.save wrote.

    Raises ConfigError for other files, pickles that name anything but tensors, tensors that are
    not contiguous, and whatever lies outside the file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return _read_archive(file, archive)
    except ConfigError:
        raise
    except zipfile.BadZipFile as error:
        raise ConfigError(
            f"{file} is truncated, or older than torch 1.6 and no zip archive ({error}); fetch it "
            "again, or load and save it with a newer torch"
        ) from error
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror or error}") from error
    except Exception as error:  # pickle raises whatever a broken stream leads to
        raise ConfigError(f"{file} is not a torch checkpoint: {error!r}"[:300]) from error


def _read_archive(file: Path, archive: zipfile.ZipFile) -> dict[str, TensorInfo]:
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(pickles) != 1:
        raise ConfigError(f"{file} holds no data.pkl; it was not written by torch.save")
    if entries[pickles[0]].file_size > MAX_PICKLE_BYTES:
        raise ConfigError(
            f"{file}: data.pkl has {entries[pickles[0]].file_size} bytes; no weights?"
        )
    prefix = pickles[0].removesuffix("data.pkl")
    if entries.get(prefix + "byteorder") and archive.read(prefix + "byteorder") != b"little":
        raise ConfigError(
            f"{file} was written on a big-endian host; save it on a little-endian one"
        )
    value = _TensorsOnly(io.BytesIO(archive.read(pickles[0])), file).load()
    if not isinstance(value, dict):
        raise ConfigError(f"{file} holds a {type(value).__name__}, not a dictionary of tensors")
    found = {}
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, _Tensor):
            raise ConfigError(
                f"{file}: {name!r} is no tensor; only dictionaries of tensors are read"
            )
        found[name] = _info(file, name, tensor, entries.get(f"{prefix}data/{tensor.storage.key}"))
    return found


def _info(file: Path, name: str, tensor: _Tensor, entry: zipfile.ZipInfo | None) -> TensorInfo:
    item = ITEM_BYTES[tensor.storage.dtype]
    if entry is None or entry.compress_type != zipfile.ZIP_STORED:
        raise ConfigError(f"{file}: the data of {name} are missing or compressed; fetch it again")
    stride = 1
    for extent, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if extent != 1 and step != stride:
            raise ConfigError(f"{file}: {name} is stored transposed; save it contiguous")
        stride *= extent
    info = TensorInfo(
        name, tensor.storage.dtype, tensor.shape, file,
        _data_offset(file, entry) + tensor.first * item,
    )  # fmt: skip
    if tensor.first * item + info.num_bytes > entry.file_size:
        raise ConfigError(
            f"{file}: {name} needs {info.num_bytes} bytes from {tensor.first * item} on, its "
            f"storage has {entry.file_size}"
        )
    if info.offset + info.num_bytes > file.stat().st_size:
        raise ConfigError(f"{file} is truncated inside {name}; fetch it again")
    return info


def _data_offset(file: Path, entry: zipfile.ZipInfo) -> int:
    """Return where an entry's bytes begin: its local header repeats the name, with padding."""
    with file.open("rb") as stream:
        stream.seek(entry.header_offset)
        raw = stream.read(LOCAL_HEADER_BYTES)
    if raw[:4] != b"PK\x03\x04" or len(raw) < LOCAL_HEADER_BYTES:
        raise ConfigError(f"{file}: {entry.filename} has no header; the file is broken")
    lengths = int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")
    return entry.header_offset + LOCAL_HEADER_BYTES + lengths


class _TensorsOnly(pickle.Unpickler):
    """An unpickler that knows names of torch as plain records, and no others."""

    def __init__(self, stream: io.BytesIO, file: Path):
        super().__init__(stream)
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        """Return our own stand-in for a name.

        Raises ConfigError for any name that a dictionary of tensors does not need.
        """
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        raise ConfigError(
            f"{self._file} asks to run {module}.{name}; a checkpoint holds tensors only, it was "
            "not loaded"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that a tensor refers to."""
        kind, dtype, key, _place, count = pid
        if kind != "storage" or dtype not in ITEM_BYTES or not isinstance(key, str):
            raise ConfigError(f"{self._file} refers to {str(pid)[:100]}, which is no storage")
        return _Storage(key, dtype, _whole(count))


def _whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 62:
        raise ConfigError(f"a checkpoint's size or offset is {number!r}; the file is broken")
    return number


def _tensor(storage: Any, first: Any, shape: Any, stride: Any, *_rest: Any) -> _Tensor:
    if not isinstance(storage, _Storage) or len(shape) != len(stride):
        raise ConfigError("a tensor without storage, or with more strides than dimensions")
    return _Tensor(storage, _whole(first), tuple(map(_whole, shape)), tuple(map(_whole, stride)))


def _parameter(tensor: Any, *_rest: Any) -> Any:
    return tensor


_STAND_INS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
}
