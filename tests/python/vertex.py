#!/usr/bin/env python3
"""The official HTTP client at a Vertex AI port whose predict route is the path that the client asks for."""

import argparse

import numpy as np
import tritonclient.http as http

from connect import expect

REDIRECT = "X-Vertex-Ai-Triton-Redirect"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    array = np.array([1, -2, 3], dtype=np.int32)
    tensor = http.InferInput("INPUT0", [3], "INT32")
    # What the client says of its binary data, it says in a header that this port takes no notice of.
    tensor.set_data_from_numpy(array, binary_data=False)
    with http.InferenceServerClient(args.url) as client:
        expect("health", client.is_server_ready(), True)
        for headers in [{}, {REDIRECT: "v2/models/plain/infer"}, {REDIRECT: "v2/models/plain/versions/1/infer"}]:
            for binary in [False, True]:
                output = http.InferRequestedOutput("OUTPUT0", binary_data=binary)
                result = client.infer("plain", [tensor], outputs=[output], headers=headers)
                expect(f"tensor {headers} {binary}", result.as_numpy("OUTPUT0").tolist(), array.tolist())
    print("ok")


if __name__ == "__main__":
    main()
