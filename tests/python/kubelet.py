"""Plays rolling updates of the chart's Deployment under load: starts, probes and ends servers as a kubelet does.

    kubelet.py --binary=PROGRAM --repository=DIRECTORY --updates=2 [FLAG ...]

The pod is that of the rendered chart: its command, arguments, probes and grace period. What is behind a Service learns
of a change LAG_S later, as proxies in a cluster do; a client picks one of the pods that its Service knows when it
connects. Fails if one request does, if a pod is restarted or killed, or does not end in its grace period.
"""

import argparse
import http.client
import json
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

LAG_S = 1.0
CLIENTS = 6
REPLICAS = 2
BODY = json.dumps({
    "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [4], "data": [1, 2, 3, 4]}],
}).encode()
PATH = "/v2/models/same/infer"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def pod_spec(arguments, ports, flags):
    """The pod of the chart, with these ports."""
    values = {
        "ports": dict(zip(("http", "grpc", "metrics"), ports)),
        "models": {"repository": arguments.repository},
        "probes": {"periodSeconds": 1},
        # Long enough for a client that is not run for seconds between choosing a pod and asking it.
        "drain": {"delaySeconds": 10, "exitSeconds": 30},
        "flags": [f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")] + flags,
    }
    script = pathlib.Path(__file__).with_name("kubernetes.py")
    done = subprocess.run([sys.executable, "-B", script, "--render"], input=json.dumps(values), text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    return next(found for found in json.loads(done.stdout) if found["kind"] == "Deployment")["spec"]["template"]["spec"]


class Service:
    """The pods that clients find, some time after their state has changed."""

    def __init__(self):
        self.changes = queue.SimpleQueue()
        self.known = ()
        self.changed = threading.Condition()
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            at, pods = self.changes.get()
            time.sleep(max(0.0, at + LAG_S - time.monotonic()))
            with self.changed:
                self.known = pods
                self.changed.notify_all()

    def announce(self, pods):
        self.changes.put((time.monotonic(), tuple(pods)))

    def some(self):
        """A busy machine may miss the probes of every pod for a while."""
        with self.changed:
            self.changed.wait_for(lambda: self.known)
            return self.known

    def wait_until_known(self, pods):
        wanted = set(pods)
        with self.changed:
            self.changed.wait_for(lambda: set(self.known) == wanted)


class Pod:
    def __init__(self, arguments, flags, cluster):
        for _ in range(5):
            self.ports = free_ports(3)
            self.spec = pod_spec(arguments, self.ports, flags)
            self.container = self.spec["containers"][0]
            self.process = subprocess.Popen([arguments.binary, "serve", *self.container["args"]],
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.log = []
            self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stdout), daemon=True)
            self.reader.start()
            if self.start():
                break
        else:
            raise AssertionError("".join(self.log))
        self.cluster = cluster
        self.is_ready = True
        self.is_ending = False
        self.probing = threading.Thread(target=self.probe_until_the_end, daemon=True)
        self.probing.start()

    def probe(self, kind):
        probe = self.container[kind]
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=probe["timeoutSeconds"])
        try:
            connection.request("GET", probe["httpGet"]["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def start(self):
        """Until the startup probe has succeeded. False: another program has taken a port meanwhile."""
        probe = self.container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.probe("startupProbe"):
                return True
            if self.process.poll() is not None:
                self.reader.join()
                assert any("in use" in line for line in self.log), "".join(self.log)
                return False
            time.sleep(probe["periodSeconds"])
        raise AssertionError("the pod is restarted: it has not started in time\n" + "".join(self.log))

    def probe_until_the_end(self):
        """Readiness decides about requests, and a kubelet goes on with it until the pod is gone."""
        unready = not_live = 0
        while self.process.poll() is None:
            time.sleep(self.container["readinessProbe"]["periodSeconds"])
            unready = 0 if self.probe("readinessProbe") else unready + 1
            is_ready = unready < self.container["readinessProbe"]["failureThreshold"]
            if is_ready != self.is_ready:
                self.is_ready = is_ready
                self.cluster.announce()
            if not self.is_ending:
                not_live = 0 if self.probe("livenessProbe") else not_live + 1
                if not_live >= self.container["livenessProbe"]["failureThreshold"]:
                    self.cluster.fail("a pod is restarted: it was not live")
                    return

    def end(self):
        """What a kubelet does with a pod that was deleted."""
        started = time.monotonic()
        self.is_ending = True
        self.cluster.announce()
        before = self.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        time.sleep(before)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(self.spec["terminationGracePeriodSeconds"] - (time.monotonic() - started))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.cluster.fail("a pod is killed at the end of its grace period\n" + "".join(self.log))
        if self.process.returncode != 0:
            self.cluster.fail(f"a pod ends with {self.process.returncode}\n" + "".join(self.log))


class Cluster:
    def __init__(self, arguments, flags):
        self.arguments, self.flags = arguments, flags
        self.pods = []
        self.failures = queue.SimpleQueue()
        self.service = Service()

    def fail(self, what):
        self.failures.put(what)

    def announce(self):
        self.service.announce(pod for pod in self.pods if pod.is_ready and not pod.is_ending)

    def add(self):
        self.pods = [*self.pods, Pod(self.arguments, self.flags, self)]
        self.announce()
        self.service.wait_until_known(pod for pod in self.pods if not pod.is_ending)

    def remove(self, pod):
        pod.end()
        self.pods = [one for one in self.pods if one is not pod]
        self.announce()

    def update(self):
        """Replaces every pod, one more than there shall be at a time."""
        for old in self.pods[:]:
            self.add()
            self.remove(old)


class Client(threading.Thread):
    """Sends requests one after another, over connections that it keeps or one for each."""

    def __init__(self, cluster, keeps, number):
        super().__init__(daemon=True)
        self.cluster, self.keeps, self.number = cluster, keeps, number
        self.answered = 0
        self.connections = 0
        self.is_over = False

    def run(self):
        connection = None
        while not self.is_over:
            try:
                if connection is None:
                    known = self.cluster.service.some()
                    pod = known[(self.number + self.connections) % len(known)]
                    self.connections += 1
                    connection = http.client.HTTPConnection("127.0.0.1", pod.ports[0], timeout=300)
                connection.request("POST", PATH, BODY)
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200 or answer["outputs"][0]["data"] != [1, 2, 3, 4]:
                    self.cluster.fail(f"request {self.answered}: {response.status} {answer}")
                self.answered += 1
                if response.will_close or not self.keeps:
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                self.cluster.fail(f"request {self.answered} of a connection: {error!r}")
                connection = None
            time.sleep(0.002)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--repository", required=True)
    parser.add_argument("--updates", type=int, default=2)
    arguments, flags = parser.parse_known_args()
    cluster = Cluster(arguments, flags)
    try:
        for _ in range(REPLICAS):
            cluster.add()
        clients = [Client(cluster, number % 3 > 0, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for _ in range(arguments.updates):
            cluster.update()
        for client in clients:
            client.is_over = True
        for client in clients:
            client.join()
        for pod in cluster.pods[:]:
            cluster.remove(pod)
    finally:
        for pod in cluster.pods:
            pod.process.kill()
    failures = []
    while not cluster.failures.empty():
        failures.append(cluster.failures.get())
    answered = [client.answered for client in clients]
    assert not failures, f"{len(failures)} failures of {sum(answered)} requests, among them {failures[:5]}"
    assert all(count > 0 for count in answered), answered
    print(f"{sum(answered)} requests over {sum(client.connections for client in clients)} connections during "
          f"{arguments.updates} updates of {REPLICAS} pods, 0 failed")


if __name__ == "__main__":
    main()
