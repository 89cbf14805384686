"""The C interface of the server (`triton_bindings`), all of it under this name as well."""

from tritonserver._c import triton_bindings as triton_bindings
from tritonserver._c.triton_bindings import *  # noqa: F403
