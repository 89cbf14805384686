"""The worker: `python3 <this archive> <instance name>`, with a socket to the server as descriptor 3."""

import os
import sys

# The libraries of a model's environment came first for the interpreter's own start; processes that the model starts get
# the server's value.
_LIBRARIES = os.environ.pop("NEREID_ORIGINAL_LD_LIBRARY_PATH", None)
if _LIBRARIES:
    os.environ["LD_LIBRARY_PATH"] = _LIBRARIES
elif _LIBRARIES is not None:
    os.environ.pop("LD_LIBRARY_PATH", None)

# The interpreter puts its program's archive first in sys.path; models must find their own modules as under any
# interpreter.
_ARCHIVE = sys.path.pop(0)
sys.path.insert(0, _ARCHIVE)

# As in the embedded interpreter of Triton's stub; the title stays visible in the list of processes.
sys.argv = [""]

from nereid_python import loop  # noqa: E402

sys.exit(loop.main())
