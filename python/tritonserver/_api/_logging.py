"""Messages of a program for the server's log."""

import os
import traceback

from tritonserver._c.triton_bindings import TRITONSERVER_LogLevel, TRITONSERVER_LogMessage


def LogMessage(level: TRITONSERVER_LogLevel, message: str) -> None:
    """Logs a message with file and line of the outermost frame of the stack."""
    filename, line = "unknown", -1
    frames = traceback.extract_stack(limit=None)
    if frames:
        filename, line = os.path.basename(frames[0].filename), frames[0].lineno or -1
    TRITONSERVER_LogMessage(level, filename, line, message)
