"""The C interface of the server (`triton_bindings`), all of it under this name as well."""

import sysconfig

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("tritonserver needs an interpreter with the global lock; this one is free-threaded")

from tritonserver._c import triton_bindings as triton_bindings
from tritonserver._c.triton_bindings import *  # noqa: F403
