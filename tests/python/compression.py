#!/usr/bin/env python3
"""Packed requests and answers through the official clients, and through grpcio's own interface."""

import argparse

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from connect import PROTOCOLS, connect, expect

ALGORITHMS = ["gzip", "deflate"]


def arrays():
    return [np.array([7], dtype=np.int32), np.arange(60_000, dtype=np.int32) // 7]


def over_http(connection):
    for request in [None, *ALGORITHMS]:
        for response in [None, *ALGORITHMS]:
            for array in arrays():
                for binary in [True, False]:
                    inputs = [connection.input("INPUT0", array, "INT32", binary=binary)]
                    outputs = [connection.output("OUTPUT0", binary=binary)]
                    result = connection.infer(
                        "plain",
                        inputs,
                        outputs=outputs,
                        request_compression_algorithm=request,
                        response_compression_algorithm=response,
                    )
                    got = result.as_numpy("OUTPUT0")
                    expect(f"{request} {response} {binary}", bool(np.array_equal(got, array)), True)


def over_grpc(connection):
    for algorithm in [None, *ALGORITHMS]:
        for array in arrays():
            inputs = [connection.input("INPUT0", array, "INT32")]
            result = connection.infer("plain", inputs, compression_algorithm=algorithm)
            expect(f"{algorithm}", bool(np.array_equal(result.as_numpy("OUTPUT0"), array)), True)


def through_grpcio(url):
    """Compression of a whole channel, of a call, and of single messages of a stream."""
    for compression in [grpc.Compression.Gzip, grpc.Compression.Deflate]:
        with grpc.insecure_channel(url, compression=compression) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            expect("live", stub.ServerLive(service_pb2.ServerLiveRequest()).live, True)
            config = stub.ModelConfig(service_pb2.ModelConfigRequest(name="plain"), compression=compression)
            expect("name", config.config.name, "plain")
            requests = []
            for number, array in enumerate(arrays() * 5):
                request = service_pb2.ModelInferRequest(model_name="plain", id=str(number))
                tensor = request.inputs.add(name="INPUT0", datatype="INT32")
                tensor.shape.append(len(array))
                request.raw_input_contents.append(array.tobytes())
                requests.append(request)
                answer = stub.ModelInfer(request, compression=compression)
                expect("bytes", answer.raw_output_contents[0] == request.raw_input_contents[0], True)
            answers = list(stub.ModelStreamInfer(iter(requests), compression=compression))
            expect("ids", [answer.infer_response.id for answer in answers], [request.id for request in requests])
            for answer, request in zip(answers, requests):
                got = answer.infer_response.raw_output_contents[0]
                expect("bytes of the stream", got == request.raw_input_contents[0], True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        over_http(connection) if connection.is_http else over_grpc(connection)
    if args.protocol == "grpc":
        through_grpcio(args.url)
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
