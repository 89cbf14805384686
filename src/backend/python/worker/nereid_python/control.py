"""Loading and unloading of other models, and the directory of the model itself."""

import re

from . import kinds
from .errors import TritonModelException, flag, text, wrong
from .wire import Refused, link

_directory = None
# From the beginning of initialize to that of finalize.
_allowed = False

_VERSION = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)
_VERSION_MOST = (1 << 63) - 1


def set_model_dir(directory):
    """Sets the directory of the model's version; the loop calls it before initialize."""
    global _directory, _allowed
    _directory = directory
    _allowed = True


def close():
    """Disables the control of models: this one is about to end."""
    global _allowed
    _allowed = False


def get_model_dir():
    """The directory of the version that is served."""
    return _directory


def load_model(model_name, config="", files=None):
    """Loads a model, by `config` (JSON) and `files` ("file:<path>" to bytes) where they are given; blocks."""
    model_name = text(model_name, "model_name")
    config = text(config, "config")
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            "failed to load model '%s', files should be a dictionary of file paths and file contents" % model_name
        )
    placed = []
    for path, content in (files or {}).items():
        if not isinstance(path, str):
            raise wrong("a path of files", "a str", path)
        if not isinstance(content, bytes):
            raise wrong("the content of '%s'" % path, "a bytes", content)
        placed.append((path, content))
    _check("Failed to load model: ")
    placed = tuple([(path, link.place(content)) for path, content in placed])
    _query("Failed to load model: ", kinds.MODEL_LOAD, model_name, config, placed)


def unload_model(model_name, unload_dependents=False):
    """Requests the unload of a model, and optionally of those that it is composed of."""
    model_name = text(model_name, "model_name")
    unload_dependents = flag(unload_dependents, "unload_dependents")
    _query("Failed to unload model: ", kinds.MODEL_UNLOAD, model_name, unload_dependents)


def is_model_ready(model_name, model_version=""):
    """Whether a model, or that version of it, takes requests."""
    model_name = text(model_name, "model_name")
    model_version = text(model_version, "model_version")
    failed = "Failed to check model readiness: "
    _check(failed)
    return _query(failed, kinds.MODEL_READY, model_name, _version_of(model_version, failed))


def _version_of(specified, failed):
    """The number of a version text, as C's conversion reads it: text after the digits is ignored."""
    if not specified:
        return -1
    complaint = failed + "failed to get model version from specified version string '%s'%s, version should be an "
    complaint += "integral value > 0"
    digits = _VERSION.match(specified)
    if digits is None:
        raise TritonModelException(complaint % (specified, " (details: stoll)"))
    version = int(digits.group())
    if abs(version) > _VERSION_MOST:
        raise TritonModelException(complaint % (specified, " (details: stoll)"))
    if version < 0:
        raise TritonModelException(complaint % (specified, ""))
    return version


def _check(failed):
    if not _allowed:
        raise TritonModelException(failed + "models are not controlled from auto_complete_config and finalize.")


def _query(failed, kind, *payload):
    _check(failed)
    try:
        return link.query(kind, *payload)
    except Refused as refused:
        raise TritonModelException(failed + refused.text) from None
