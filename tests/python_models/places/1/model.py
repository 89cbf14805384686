"""Says where it runs: the interpreter's environment, variables that activation and the server set, where its files are."""

import os
import subprocess
import sys

import numpy as np
import triton_python_backend_utils as pb_utils

# A sibling, as scripts are imported by their package.
from . import sibling


class TritonPythonModel:
    def execute(self, requests):
        seen = subprocess.run(["sh", "-c", "echo ${LD_LIBRARY_PATH-none}"], stdout=subprocess.PIPE, check=True)
        places = [
            sys.prefix,
            os.environ.get("NEREID_TEST_ACTIVATED", "none"),
            seen.stdout.decode().strip(),
            pb_utils.get_model_dir(),
            __name__,
            sibling.NAME,
            ":".join(sys.path[-3:]),
            "%d.%d" % sys.version_info[:2],
            os.environ.get("VIRTUAL_ENV", "none"),
            os.environ.get("VIRTUAL_ENV_PROMPT", "none"),
            os.environ["PATH"].split(":")[0],
            os.environ.get("PYTHONHOME", "none"),
        ]
        output = pb_utils.Tensor("PLACES", np.array([place.encode() for place in places], dtype=np.object_))
        return [pb_utils.InferenceResponse(output_tensors=[output]) for _ in requests]
