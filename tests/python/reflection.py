#!/usr/bin/env python3
"""Calls the server with nothing but what its reflection tells."""

import argparse

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from connect import expect

SERVICE = "inference.GRPCInferenceService"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with grpc.insecure_channel(args.url) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = sorted(database.get_services())
        expect(
            "services",
            services,
            [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
                SERVICE,
                "xds.service.orca.v3.OpenRcaService",
            ],
        )
        pool = DescriptorPool(database)
        request = pool.FindMessageTypeByName("inference.ModelInferRequest")
        expect("a field", request.fields_by_name["model_name"].number, 1)
        expect("a nested type", "InferInputTensor" in request.nested_types_by_name, True)
        service = pool.FindServiceByName(SERVICE)
        expect("methods", len(service.methods), 20)
        method = service.FindMethodByName("ServerLive")
        ask, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_unary(
            f"/{SERVICE}/ServerLive", request_serializer=ask.SerializeToString, response_deserializer=answer.FromString
        )
        expect("live", call(ask()).live, True)
        for name in ["inference.Nothing", "nothing"]:
            try:
                pool.FindMessageTypeByName(name)
            except KeyError:
                continue
            raise SystemExit(f"{name}: found")
    print("ok")


if __name__ == "__main__":
    main()
