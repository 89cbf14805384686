"""The front ends without checks of their options (`tritonfrontend_bindings`), all of it under this name as well."""

from tritonfrontend._c import tritonfrontend_bindings as tritonfrontend_bindings
from tritonfrontend._c.tritonfrontend_bindings import *  # noqa: F403
