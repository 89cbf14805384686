#!/usr/bin/env python3
"""A gRPC channel of the official client with options of its own: a target such as unix:/path, keepalive of the client,
connections that the server ends because of their age.
"""

import argparse
import time

import numpy as np
import tritonclient.grpc as grpc_client

from connect import expect


def infer(client, count):
    array = np.arange(count, dtype=np.int32)
    tensor = grpc_client.InferInput("INPUT0", [count], "INT32")
    tensor.set_data_from_numpy(array)
    result = client.infer("plain", [tensor], client_timeout=300)
    expect(f"{count} numbers", (result.as_numpy("OUTPUT0") == array).all(), True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--option", action="append", default=[], help="<name>=<integer>")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--apart-ms", type=int, default=0, help="time between two calls")
    args = parser.parse_args()
    pairs = [option.split("=") for option in args.option]
    options = [(name, int(value)) for name, value in pairs]
    with grpc_client.InferenceServerClient(args.target, channel_args=options or None) as client:
        expect("live", client.is_server_live(client_timeout=300), True)
        for number in range(args.calls):
            if number > 0:
                time.sleep(args.apart_ms / 1000)
            infer(client, 1 + number * 1000)
    print(f"{args.calls} calls over {args.target}: as expected")


if __name__ == "__main__":
    main()
