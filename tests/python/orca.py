#!/usr/bin/env python3
"""Load reports, read as balancers read them.

    orca.py dialects --http URL          the three formats, by the parsers of three stages of Envoy
    orca.py bands --grpc URL             out of band with gRPC's own client, and calls with a report at their end
    orca.py balance --grpc URL URL       calls through gRPC's weighted_round_robin between two servers
"""

import argparse
import base64
import json
import math
import time
import urllib.request

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, json_format, message_factory
from tritonclient.grpc import service_pb2

MODEL = "plain"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
OUT_OF_BAND = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
FIELD = "endpoint-load-metrics"


def messages():
    """OrcaLoadReport and OrcaLoadReportRequest, made from the numbers and types of their fields."""
    field = descriptor_pb2.FieldDescriptorProto
    report = descriptor_pb2.FileDescriptorProto(name="report.proto", package="xds.data.orca.v3", syntax="proto3")
    message = report.message_type.add(name="OrcaLoadReport")
    doubles = {"cpu_utilization": 1, "mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
    for name, number in doubles.items():
        message.field.add(name=name, number=number, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    message.field.add(name="rps", number=3, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    for name, number in {"request_cost": 4, "utilization": 5, "named_metrics": 8}.items():
        camel = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=camel)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
        type_name = f".xds.data.orca.v3.OrcaLoadReport.{camel}"
        message.field.add(
            name=name, number=number, type=field.TYPE_MESSAGE, type_name=type_name, label=field.LABEL_REPEATED
        )
    service = descriptor_pb2.FileDescriptorProto(
        name="service.proto", package="xds.service.orca.v3", syntax="proto3", dependency=[duration_pb2.DESCRIPTOR.name]
    )
    message = service.message_type.add(name="OrcaLoadReportRequest")
    message.field.add(
        name="report_interval", number=1, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Duration",
        label=field.LABEL_OPTIONAL,
    )
    message.field.add(name="request_cost_names", number=2, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    for file in (duration_pb2.DESCRIPTOR.serialized_pb, report.SerializeToString(), service.SerializeToString()):
        pool.AddSerializedFile(file)
    named = ("xds.data.orca.v3.OrcaLoadReport", "xds.service.orca.v3.OrcaLoadReportRequest")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in named]


OrcaLoadReport, OrcaLoadReportRequest = messages()


def decoded(text):
    report = OrcaLoadReport()
    report.ParseFromString(base64.b64decode(text, validate=True))
    return report


def read_text(text, separators, has_utilization):
    """Envoy's list of names and values: any mistake drops the whole report."""
    report, seen = OrcaLoadReport(), set()
    for entry in text.split(","):
        entry = entry.strip(" \t")
        at = min((entry.index(one) for one in separators if one in entry), default=-1)
        if at <= 0:
            raise ValueError(f"no pair: {entry!r}")
        name, value = entry[:at].strip(), entry[at + 1 :].strip()
        if not value:
            raise ValueError(f"no value: {entry!r}")
        if name in seen:
            raise ValueError(f"twice: {name}")
        seen.add(name)
        number = float(value)
        if math.isnan(number) or math.isinf(number):
            raise ValueError(f"no number: {entry!r}")
        if name.startswith("named_metrics."):
            report.named_metrics[name.removeprefix("named_metrics.")] = number
        elif name.startswith("utilization.") and has_utilization:
            report.utilization[name.removeprefix("utilization.")] = number
        elif name in ("cpu_utilization", "mem_utilization", "application_utilization", "rps_fractional", "eps"):
            setattr(report, name, number)
        else:
            raise ValueError(f"unknown: {name!r}")
    return report


def oldest(headers):
    """Three fields without prefixes; more than one of them is an error."""
    fields = {name: headers[name] for name in (FIELD, f"{FIELD}-json", f"{FIELD}-bin") if name in headers}
    if len(fields) != 1:
        raise ValueError(f"{len(fields)} fields")
    ((name, value),) = fields.items()
    if name.endswith("-bin"):
        return decoded(value)
    if name.endswith("-json"):
        return json_format.Parse(value, OrcaLoadReport(), ignore_unknown_fields=True)
    return read_text(value, ":", False)


def prefixed(headers, separators, has_utilization):
    if f"{FIELD}-bin" in headers:
        return decoded(headers[f"{FIELD}-bin"])
    value = headers[FIELD]
    if value.startswith("BIN "):
        return decoded(value[4:])
    if value.startswith("JSON "):
        return json_format.Parse(value[5:], OrcaLoadReport(), ignore_unknown_fields=True)
    if value.startswith("TEXT "):
        return read_text(value[5:], separators, has_utilization)
    raise ValueError(f"no prefix: {value!r}")


def middle(headers):
    return prefixed(headers, ":", False)


def newest(headers):
    return prefixed(headers, ":=", True)


def check(report, what):
    assert 0 < report.mem_utilization <= 1, (what, report)
    for name in ("application_utilization", "cpu_utilization", "rps_fractional", "eps"):
        assert math.isfinite(getattr(report, name)) and getattr(report, name) >= 0, (what, name, report)
    assert "queue_depth" in report.named_metrics, (what, report)
    assert not report.rps and not report.request_cost and not report.utilization, (what, report)


def http_headers(url, format_):
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}
    request = urllib.request.Request(
        f"{url}/v2/models/{MODEL}/infer", json.dumps(body).encode(), {f"{FIELD}-format": format_}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return {name.lower(): value for name, value in answer.headers.items()}


def dialects(args):
    # Which stage reads what: documented, so that a change of either side is seen.
    readable = {"json": (middle, newest), "text": (newest,), "bin": (middle, newest)}
    for format_, readers in readable.items():
        headers = http_headers(args.http, format_)
        for reader in (oldest, middle, newest):
            try:
                report = reader(headers)
            except (ValueError, json_format.ParseError):
                assert reader not in readers, (format_, reader.__name__, headers)
                continue
            assert reader in readers, f"{reader.__name__} reads {format_}"
            check(report, f"{format_} {reader.__name__}")
    # The readers themselves are strict.
    for bad in ("", "a", "cpu_utilization=", "=1", "cpu=1", "eps=nan", "eps=inf", "eps=1,eps=2", "eps=1,", "rps=1"):
        try:
            read_text(bad, ":=", True)
        except ValueError:
            continue
        raise AssertionError(f"{bad!r} is read")


def infer_request():
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    request.raw_input_contents.append((7).to_bytes(4, "little"))
    return request


def infer_call(channel):
    return channel.unary_unary(
        INFER,
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelInferResponse.FromString,
    )


def bands(args):
    asks = [(f"{FIELD}-format", "bin")]
    with grpc.insecure_channel(args.grpc[0]) as channel:
        # The client keeps the report to itself, for its balancer; it must not stumble over it.
        for metadata in (asks, []):
            answer = infer_call(channel)(infer_request(), metadata=metadata, timeout=300)
            assert answer.model_name == MODEL, answer
            stream = channel.stream_stream(
                STREAM,
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
            )
            assert len(list(stream(iter([infer_request()] * 3), metadata=metadata, timeout=300))) == 3
            missing = infer_request()
            missing.model_name = "none"
            try:
                infer_call(channel)(missing, metadata=metadata, timeout=300)
                raise AssertionError("a model that is not there answers")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND, error
        reports = channel.unary_stream(
            OUT_OF_BAND,
            request_serializer=OrcaLoadReportRequest.SerializeToString,
            response_deserializer=OrcaLoadReport.FromString,
        )
        interval = duration_pb2.Duration(nanos=200_000_000).SerializeToString()
        request = OrcaLoadReportRequest()
        request.report_interval.ParseFromString(interval)
        call, count = reports(request, timeout=300), 0
        for report in call:
            check(report, "out of band")
            count += 1
            if count == 3:
                call.cancel()
                break
        # A deadline ends a stream as any other call.
        try:
            list(reports(request, timeout=0.5))
            raise AssertionError("the stream ends without its deadline")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error


def balance(args):
    """Calls go to both servers by their weights, which gRPC takes from reports in band or out of band."""
    policy = {
        "weightedRoundRobin": {
            "enableOobLoadReport": args.out_of_band,
            "oobReportingPeriod": "0.2s",
            "blackoutPeriod": "0s",
            "weightExpirationPeriod": "60s",
            "weightUpdatePeriod": "0.2s",
        }
    }
    config = {"loadBalancingConfig": [{"weighted_round_robin": policy["weightedRoundRobin"]}]}
    addresses = ",".join(args.grpc)
    options = [("grpc.service_config", json.dumps(config)), ("grpc.enable_retries", 0)]
    over = time.monotonic() + args.seconds
    with grpc.insecure_channel(f"ipv4:{addresses}", options=options) as channel:
        infer = infer_call(channel)
        asks = [] if args.out_of_band else [(f"{FIELD}-format", "bin")]
        while time.monotonic() < over:
            infer(infer_request(), metadata=asks, timeout=300, wait_for_ready=True)
            time.sleep(0.002)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["dialects", "bands", "balance"])
    parser.add_argument("--http")
    parser.add_argument("--grpc", nargs="+")
    parser.add_argument("--out-of-band", action="store_true")
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    {"dialects": dialects, "bands": bands, "balance": balance}[args.action](args)
    print("ok")


if __name__ == "__main__":
    main()
