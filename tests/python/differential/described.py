"""What servers say about themselves and about their models."""

from tritonclient.grpc import service_pb2 as pb

MODELS = [
    "add_sub",
    "identity",
    "identity_batched",
    "together",
    "decoupled",
    "decoupled_async",
    "evaluate_decoupled",
    "sequence",
    "sequence_oldest",
    "sequence_texts",
    "iterative_alone",
    "queued",
    "labelled",
    "generator",
    "pipeline",
    "metered",
]


def cases(server):
    for path in ["/v2", "/v2/health/live", "/v2/health/ready"]:
        yield f"GET {path}", server.http("GET", path)
    yield "ServerMetadata", server.call("ServerMetadata", pb.ServerMetadataRequest())
    yield "ServerLive", server.call("ServerLive", pb.ServerLiveRequest())
    yield "ServerReady", server.call("ServerReady", pb.ServerReadyRequest())
    for model in [*MODELS, "absent", "life"]:
        for version in ["", "1", "7"]:
            place = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
            for verb in ["", "/config", "/ready"]:
                yield f"GET {place}{verb}", server.http("GET", place + verb)
            named = {"name": model, "version": version}
            yield f"ModelMetadata {model}/{version}", server.call("ModelMetadata", pb.ModelMetadataRequest(**named))
            yield f"ModelConfig {model}/{version}", server.call("ModelConfig", pb.ModelConfigRequest(**named))
            yield f"ModelReady {model}/{version}", server.call("ModelReady", pb.ModelReadyRequest(**named))
    yield "index", in_order(server.http("POST", "/v2/repository/index"))
    yield "index of what is ready", in_order(server.http("POST", "/v2/repository/index", {"ready": True}))
    index = server.call("RepositoryIndex", pb.RepositoryIndexRequest())
    index["message"]["models"].sort(key=lambda model: model["name"])
    yield "RepositoryIndex", index


def in_order(answer):
    """The index has no promised order."""
    answer["body"].sort(key=lambda model: model["name"])
    return answer
