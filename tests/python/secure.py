#!/usr/bin/env python3
"""The official clients over TLS: inference both ways, long tensors, streams; and who is turned away."""

import argparse
import ssl

import grpc
import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from connect import expect


def infer(module, client, count):
    array = np.arange(count, dtype=np.int32)
    tensor = module.InferInput("INPUT0", [count], "INT32")
    tensor.set_data_from_numpy(array)
    result = client.infer("plain", [tensor])
    expect(f"{count} numbers", (result.as_numpy("OUTPUT0") == array).all(), True)


def over_grpc(args):
    options = {"ssl": True, "root_certificates": args.roots}
    if args.certificate:
        options |= {"certificate_chain": args.certificate, "private_key": args.key}
    with grpc_client.InferenceServerClient(args.url, **options) as client:
        expect("ready", client.is_server_ready(client_timeout=300), True)
        for count in [1, 1000, 1_000_000]:
            infer(grpc_client, client, count)
        answers = []
        client.start_stream(lambda result, error: answers.append((result, error)))
        for number in range(20):
            tensor = grpc_client.InferInput("INPUT0", [1], "INT32")
            tensor.set_data_from_numpy(np.array([number], dtype=np.int32))
            client.async_stream_infer("plain", [tensor])
        client.stop_stream()
        expect("errors of the stream", [error for _, error in answers if error], [])
        got = [int(result.as_numpy("OUTPUT0")[0]) for result, _ in answers]
        expect("answers of the stream", got, list(range(20)))


def refused_over_grpc(args):
    """No call passes: plain text, an authority that is not known, no certificate of one's own."""
    options = {"root_certificates": args.roots, "ssl": not args.plain}
    if args.certificate:
        options |= {"certificate_chain": args.certificate, "private_key": args.key}
    with grpc_client.InferenceServerClient(args.url, **options) as client:
        try:
            client.is_server_live(client_timeout=300)
        except InferenceServerException as error:
            expect("status", error.status(), "StatusCode.UNAVAILABLE")
            return
    raise SystemExit("the call was answered")


def over_http(args):
    context = ssl.create_default_context(cafile=args.roots)
    if args.certificate:
        context.load_cert_chain(args.certificate, args.key)
    client = http_client.InferenceServerClient(args.url, ssl=True, ssl_context_factory=lambda: context)
    with client:
        expect("ready", client.is_server_ready(), True)
        for count in [1, 1000, 1_000_000]:
            infer(http_client, client, count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["grpc", "grpc-refused", "http"])
    parser.add_argument("--url", required=True)
    parser.add_argument("--roots")
    parser.add_argument("--certificate")
    parser.add_argument("--key")
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    {"grpc": over_grpc, "grpc-refused": refused_over_grpc, "http": over_http}[args.what](args)
    print(f"{args.what} over TLS with grpcio {grpc.__version__}: as expected")


if __name__ == "__main__":
    main()
