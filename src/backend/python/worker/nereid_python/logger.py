"""The server's log, with the file and line of the model's call."""

import sys
import threading

from . import kinds
from .errors import Choice, text, wrong
from .wire import link


class LogLevel(Choice):
    """TRITONSERVER_LogLevel."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Writes to the server's log, subject to its settings; without a connection, to stderr."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self):
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message, level=LogLevel.INFO):
        if type(level) is not LogLevel:
            raise wrong("level", "a LogLevel", level)
        _log(message, level.value)

    @staticmethod
    def log_info(message):
        _log(message, 0)

    @staticmethod
    def log_warn(message):
        _log(message, 1)

    @staticmethod
    def log_error(message):
        _log(message, 2)

    @staticmethod
    def log_verbose(message):
        _log(message, 3)


Logger.__module__ = "c_python_backend_utils"

_LETTERS = "IWEI"

# The thread that executes one request, and the request's id; None while there is no request with an id, or several.
executing = None


def _log(message, level):
    if type(message) is not str:
        message = text(message, "message")
    caller = sys._getframe(2)
    file, line = caller.f_code.co_filename, caller.f_lineno
    if link.is_connected and not link.is_lost:
        now = executing
        request = now[1] if now is not None and now[0] == threading.get_ident() else ""
        link.notify(kinds.LOG, level, file, line, message, request)
    else:
        sys.stderr.write("%s %s:%d] %s\n" % (_LETTERS[level], file, line, message))
