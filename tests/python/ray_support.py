"""What the programs for Ray have in common: a cluster of two raylets on this host, and the end of all its processes."""

import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

# Before Ray is imported, which reads them.
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
    RAY_enable_worker_prestart="0",
    # A busy host is no reason to end processes.
    RAY_memory_monitor_refresh_ms="0",
)
_OBJECT_STORE = 80 << 20


def supervised(main):
    """Runs `main` in a child, and ends with its status and without any process of it, whatever happened."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Processes whose parent ends come to this one.
    assert libc.prctl(36, 1, 0, 0, 0) == 0, "PR_SET_CHILD_SUBREAPER"
    if os.environ.get("NEREID_RAY_CHILD") == str(os.getppid()):
        # The supervisor does not end before this process, except by SIGKILL.
        assert libc.prctl(1, signal.SIGKILL, 0, 0, 0) == 0, "PR_SET_PDEATHSIG"
        return main()
    # Short, because paths of sockets are, and with all that the child and Ray write.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="n") as folder:
        own = {"NEREID_RAY_CHILD": str(os.getpid()), "TMPDIR": folder, "RAY_TMPDIR": folder}
        child = subprocess.Popen([sys.executable, "-B", *sys.argv], env={**os.environ, **own})
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: child.kill())
        status = child.wait()
        end_all()
        if status != 0:
            show_logs(pathlib.Path(folder))
    sys.exit(status)


def show_logs(folder):
    """The ends of what replicas and their processes wrote, which explain a failure."""
    files = [*folder.glob("**/serve/replica_*.log"), *folder.glob("**/worker-*.err")]
    for file in sorted(files, key=lambda file: file.stat().st_mtime)[-8:]:
        lines = file.read_text(errors="replace").splitlines()[-12:]
        print(f"-- {file.name}", *lines, sep="\n", file=sys.stderr)


def end_all():
    """Kills every process below this one, and those that become its children by that."""
    while left := descendants(os.getpid()):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.05)


def descendants(of):
    """The processes below one, as far as they run."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            parents[int(entry.name)] = int(parent)
    found, new = set(), {of}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return found


def command_of(pid):
    """The command line of a process, empty if it does not run."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def runs(pid):
    """Whether a process runs: a zombie has no command line."""
    return command_of(pid) != ""


def servers_beside():
    """The processes of the program nereid below the supervisor."""
    below = descendants(int(os.environ["NEREID_RAY_CHILD"]))
    return {pid for pid in below if "/nereid --model-repository" in command_of(pid)}


def until(condition, what, patience_s=300):
    """Waits until a condition holds, and returns what it returned."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {patience_s} s: {what}"
        time.sleep(0.1)
    return found


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def cluster():
    """Two raylets, connected to; the first one has the head."""
    import ray
    from ray.cluster_utils import Cluster

    shared = {"num_cpus": 1, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={**shared, "resources": {"first": 1}})
    made.add_node(**shared, resources={"second": 1})
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False)
    return made
