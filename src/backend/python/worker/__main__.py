"""The worker: `python3 <this archive> <instance name>`, with a socket to the server as descriptor 3."""

import sys

# The interpreter puts its program's archive first; models shall find their own modules as under any interpreter.
_ARCHIVE = sys.path.pop(0)
sys.path.insert(0, _ARCHIVE)

from nereid_python import loop  # noqa: E402

sys.exit(loop.main())
