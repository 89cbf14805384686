"""Renders and checks deploy/kubernetes: the chart under many values, the plain manifests, the runtimes for KServe.

    kubernetes.py CASE ...     these cases, or all; each says on stdout that it held
    kubernetes.py --render     the objects of the chart with the values on stdin (JSON), as a list of JSON
    kubernetes.py --write      renews the plain manifests
"""

import json
import pathlib
import sys

import cases
import helm_python
import kubernetes_validate
import yaml
from cases import case, raises

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "deploy/kubernetes"
CHART = FOLDER / "nereid"
PLAIN = FOLDER / "manifests/nereid.yaml"
GATEWAY = FOLDER / "manifests/gateway.yaml"
# The values that the second one is made with.
POOL = {"gateway": {"engine": "triton-tensorrt-llm", "pool": {"enabled": True}}}
# The oldest that the chart allows, and the newest whose schemas are here.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
# What is not Kubernetes' own has no schema here: the fields that these kinds may have.
FOREIGN = {
    "ServiceMonitor": {"selector", "endpoints"},
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "InferencePool": {"selector", "targetPorts", "endpointPickerRef"},
    "ScaledObject": {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "cooldownPeriod", "triggers"},
}
RUNTIME = {"annotations", "containers", "protocolVersions", "supportedModelFormats", "volumes"}
GATEWAY_HEADER = """# The same with `gateway.engine=triton-tensorrt-llm` and `gateway.pool.enabled=true`: pods as endpoint pickers of the
# Gateway API inference extension and of llm-d find and read them, and an InferencePool of them. Made as nereid.yaml is.
"""
HEADER = """# The chart `deploy/kubernetes/nereid` with its default values, for clusters without Helm. Made by
# tests/python/kubernetes.py --write; change the image, the repository and the resources to yours.
"""


def rendered(values=None, name="nereid"):
    """The texts of the objects, in the order of their files."""
    chart = helm_python.Chart.load(CHART)
    chart.validate_schema(chart.merge_values(values or {}))
    files = chart.render(values or {}, name=name, namespace="default")
    return [text.strip() + "\n" for path, text in sorted(files.items()) if path.endswith(".yaml") and text.strip()]


def objects(values=None):
    return [found for text in rendered(values) for found in yaml.safe_load_all(text) if found]


def check(found):
    kind = found["kind"]
    if kind in FOREIGN:
        unknown = set(found["spec"]) - FOREIGN[kind]
        assert not unknown, f"{kind}: {unknown}"
        return
    for version in VERSIONS:
        kubernetes_validate.validate(found, version, strict=True)


def by_kind(values=None):
    all_ = objects(values)
    for found in all_:
        check(found)
    return {found["kind"]: found for found in all_}


def container(values=None):
    pod = by_kind(values)["Deployment"]["spec"]["template"]["spec"]
    return pod, pod["containers"][0]


@case
def the_chart_has_no_mistake():
    report = helm_python.lint(str(CHART), strict=True)
    serious = [message for message in report["messages"] if message["severity"] > 1]
    assert not report["errors"] and not serious, report


@case
def plain_manifests_are_the_chart_with_its_defaults():
    assert PLAIN.read_text() == plain(), "run tests/python/kubernetes.py --write"
    assert GATEWAY.read_text() == plain(GATEWAY_HEADER, POOL), "run tests/python/kubernetes.py --write"


@case
def what_is_always_there():
    found = by_kind()
    assert set(found) == {"Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}, set(found)
    pod, server = container()
    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] == 600
    assert server["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert server["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert server["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for other in (found["Deployment"]["spec"]["selector"]["matchLabels"], found["Service"]["spec"]["selector"]):
        assert other.items() <= labels.items(), (other, labels)
    targets = {port["targetPort"] for port in found["Service"]["spec"]["ports"]}
    assert targets == {port["name"] for port in server["ports"]}


@case
def the_pod_has_longer_to_end_than_its_server():
    for before, delay, exit_ in ((0, 10, 30), (7, 5, 5), (20, 0, 600)):
        drain = {"preStopSeconds": before, "delaySeconds": delay, "exitSeconds": exit_}
        pod, server = container({"drain": drain})
        assert pod["terminationGracePeriodSeconds"] > before + delay + exit_
        assert f"--exit-timeout-secs={delay + exit_}" in server["args"]
        assert f"--drain-delay={delay}" in server["args"]
        assert ("lifecycle" in server) == (before > 0)
    with raises(helm_python.HelmError, "drain.delaySeconds"):
        rendered({"drain": {"delaySeconds": 31, "exitSeconds": 30}})


@case
def what_can_be_asked_for():
    claim = {"claim": "disk", "claimDirectory": "a/b", "repository": "/mnt/models"}
    pod, server = container({"models": claim, "startupSeconds": 7, "probes": {"periodSeconds": 5}})
    assert {"name": "models", "mountPath": "/mnt/models", "subPath": "a/b", "readOnly": True} in server["volumeMounts"]
    assert server["startupProbe"]["failureThreshold"] == 2
    assert any(volume.get("persistentVolumeClaim") for volume in pod["volumes"])
    scaled = {"enabled": True, "by": "hpa"}
    found = by_kind({"autoscaling": scaled})
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]
    assert "replicas" not in found["Deployment"]["spec"]
    trigger = by_kind({"autoscaling": {"enabled": True, "by": "keda"}})["ScaledObject"]["spec"]["triggers"][0]
    assert "nv_inference_queue_duration_us" in trigger["metadata"]["query"]
    for monitor, kind in (("service", "ServiceMonitor"), ("pod", "PodMonitor")):
        assert kind in by_kind({"monitoring": {"monitor": monitor, "labels": {"release": "prometheus"}}})
    peers = [{"namespaceSelector": {}}]
    policy = by_kind({"networkPolicy": {"enabled": True, "inference": peers, "metrics": peers}})["NetworkPolicy"]
    assert len(policy["spec"]["ingress"]) == 2
    assert by_kind({"networkPolicy": {"enabled": True}})["NetworkPolicy"]["spec"]["ingress"] == []
    pod, server = container({
        "security": {"seccomp": "Localhost"}, "flags": ["--model-control-mode=explicit"], "maxSkew": 0,
        "env": [{"name": "A", "value": "b"}], "envFrom": [{"secretRef": {"name": "keys"}}],
        "pullSecrets": [{"name": "registry"}], "priorityClassName": "high", "nodeSelector": {"gpu": "yes"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "podAnnotations": {"a": "b"}, "podLabels": {"c": "d"},
        "resources": {"limits": {"nvidia.com/gpu": 1}}, "serviceAccount": {"create": False, "name": "mine"},
        "extraVolumes": [{"name": "x", "emptyDir": {}}], "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
        "affinity": {"podAntiAffinity": {}}, "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "disruption": {"enabled": False},
    })
    assert pod["securityContext"]["seccompProfile"]["localhostProfile"] == "nereid.json"
    assert server["args"][-1] == "--model-control-mode=explicit" and pod["serviceAccountName"] == "mine"


@case
def pods_for_endpoint_pickers():
    names = {"vllm": "vllm", "sglang": "sglang", "trtllm-serve": "trtllm", "triton-tensorrt-llm": "triton"}
    for engine, flag in names.items():
        found = by_kind({"gateway": {"engine": engine, "pool": {"enabled": True, "picker": "epp", "pickerPort": 7}}})
        deployment, pool = found["Deployment"]["spec"], found["InferencePool"]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert labels["llm-d.ai/engine-type"] == labels["inference.networking.k8s.io/engine-type"] == engine
        # A selector cannot be changed later, the engine can.
        assert not any("engine-type" in label for label in deployment["selector"]["matchLabels"])
        args = deployment["template"]["spec"]["containers"][0]["args"]
        assert f"--engine-metrics={flag}" in args and "--http-metrics=true" in args
        assert pool["selector"]["matchLabels"].items() <= labels.items()
        assert pool["targetPorts"] == [{"number": 8000}]
        assert pool["endpointPickerRef"] == {"name": "epp", "port": {"number": 7}, "failureMode": "FailOpen"}
    _, server = container()
    assert not any(flag.startswith(("--engine-metrics", "--http-metrics", "--orca")) for flag in server["args"])
    assert "--orca=always" in container({"loadReports": "always"})[1]["args"]
    with raises(helm_python.HelmError, "gateway.engine"):
        rendered({"gateway": {"pool": {"enabled": True}}})


@case
def values_out_of_range_are_refused():
    for wrong in (
        {"ports": {"http": 70000}}, {"ports": {"grpc": 0}}, {"replicas": -1}, {"replicas": "two"},
        {"image": {"repository": ""}}, {"image": {"pullPolicy": "Sometimes"}}, {"models": {"repository": "models"}},
        {"models": {"claimDirectory": "/a"}}, {"flags": ["model-control-mode=explicit"]}, {"sharedMemory": "much"},
        {"startupSeconds": 0}, {"probes": {"periodSeconds": 0}}, {"drain": {"exitSeconds": -1}},
        {"disruption": {"maxUnavailable": "200%"}}, {"autoscaling": {"by": "hand"}}, {"autoscaling": {"minimum": 0}},
        {"autoscaling": {"prometheus": "prometheus:9090"}}, {"monitoring": {"monitor": "all"}},
        {"security": {"user": 0}}, {"security": {"seccomp": "Unconfined"}}, {"replica": 3},
        {"drain": {"delay": 3}}, {"service": {"type": "Headless"}}, {"command": []},
        {"loadReports": "sometimes"}, {"gateway": {"engine": "triton"}}, {"gateway": {"pool": {"pickerPort": 0}}},
        {"gateway": {"pool": {"failureMode": "FailClosed"}}},
    ):
        with raises(helm_python.HelmError):
            rendered(wrong)
            raise AssertionError(f"{wrong} is rendered")


@case
def every_value_has_its_range():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(values, schema, place):
        ranges = schema.get("properties")
        if ranges is None:
            return
        assert set(values) == set(ranges) - {"global"}, (place, set(values) ^ set(ranges))
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, ranges[name], f"{place}.{name}")

    compare(values, schema, "values")


@case
def runtimes_for_kserve():
    for path in sorted((FOLDER / "kserve").glob("*.yaml")):
        runtime = yaml.safe_load(path.read_text())
        spec = runtime["spec"]
        assert runtime["apiVersion"] == "serving.kserve.io/v1alpha1" and set(spec) == RUNTIME, path
        assert spec["protocolVersions"] == ["v2", "grpc-v2"]
        # Nothing selects it by itself.
        for format_ in spec["supportedModelFormats"]:
            assert set(format_) == {"name", "version"} and isinstance(format_["version"], str), format_
        container = spec["containers"][0]
        assert container["name"] == "kserve-container"
        pod = {key: spec[key] for key in ("containers", "volumes")}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
        # What KServe gives Triton.
        assert container["args"] == ["--model-store=/mnt/models", "--grpc-port=9000", "--http-port=8080",
                                     "--allow-grpc=true", "--allow-http=true"]


def plain(header=HEADER, values=None):
    return header + "".join("---\n" + text for text in rendered(values))


def main():
    if sys.argv[1:] == ["--render"]:
        print(json.dumps(objects(json.load(sys.stdin))))
    elif sys.argv[1:] == ["--write"]:
        PLAIN.parent.mkdir(exist_ok=True)
        PLAIN.write_text(plain())
        GATEWAY.write_text(plain(GATEWAY_HEADER, POOL))
    else:
        cases.run(sys.argv[1:])


if __name__ == "__main__":
    main()
