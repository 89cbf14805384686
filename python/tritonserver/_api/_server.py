"""A server inside this process, and its options."""

from __future__ import annotations

import atexit
import json
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Union

from tritonserver._api._model import Model
from tritonserver._c import triton_bindings
from tritonserver._c.triton_bindings import (
    InvalidArgumentError,
    TRITONSERVER_Metric,
    TRITONSERVER_MetricFamily,
    TRITONSERVER_Parameter,
    TRITONSERVER_Server,
    TRITONSERVER_ServerOptions,
    TritonError,
    UnavailableError,
)

InstanceGroupKind = triton_bindings.TRITONSERVER_InstanceGroupKind
LogFormat = triton_bindings.TRITONSERVER_LogFormat
LogLevel = triton_bindings.TRITONSERVER_LogLevel
MetricFormat = triton_bindings.TRITONSERVER_MetricFormat
MetricKind = triton_bindings.TRITONSERVER_MetricKind
ModelControlMode = triton_bindings.TRITONSERVER_ModelControlMode
ModelIndexFlag = triton_bindings.TRITONSERVER_ModelIndexFlag
RateLimitMode = triton_bindings.TRITONSERVER_RateLimitMode

# level, file, line, microseconds since the epoch, message
LogCallback = Callable[[LogLevel, str, int, int, str], Any]


@dataclass(slots=True)
class RateLimiterResource:
    """A resource of the rate limiter. `device` -1 is every device."""

    name: str
    count: int
    device: int


@dataclass(slots=True)
class ModelLoadDeviceLimit:
    """The fraction of a device's memory that may be in use when a model is loaded."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """What a server is started with. The fields have the meaning of the server's flags; nothing is checked before
    `Server.start`."""

    model_repository: Union[str, list[str]] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: Optional[str] = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, str]] = field(default_factory=dict)
    log_callback: Optional[LogCallback] = None

    def _create_tritonserver_server_options(self) -> TRITONSERVER_ServerOptions:
        """Options of the C interface. Those of the log are in effect when this returns."""
        options = TRITONSERVER_ServerOptions()
        self._set_models(options)
        self._set_process(options)
        self._set_log(options)
        for kind, values in [
            (options.set_backend_config, self.backend_configuration),
            (options.set_host_policy, self.host_policies),
            (options.set_metrics_config, self.metrics_configuration),
        ]:
            for name, settings in values.items():
                for setting, value in settings.items():
                    kind(name, setting, value)
        return options

    def _set_models(self, options: TRITONSERVER_ServerOptions) -> None:
        if self.model_repository is None:
            raise InvalidArgumentError("Model repository must be specified.")
        if not isinstance(self.model_repository, list):
            self.model_repository = [self.model_repository]
        for path in self.model_repository:
            options.set_model_repository_path(path)
        options.set_server_id(self.server_id)
        options.set_model_control_mode(self.model_control_mode)
        for model in self.startup_models:
            options.set_startup_model(model)
        options.set_strict_model_config(self.strict_model_config)
        options.set_rate_limiter_mode(self.rate_limiter_mode)
        for resource in self.rate_limiter_resources:
            options.add_rate_limiter_resource(resource.name, resource.count, resource.device)
        options.set_model_load_thread_count(self.model_load_thread_count)
        options.set_model_load_retry_count(self.model_load_retry_count)
        options.set_model_namespacing(self.model_namespacing)
        for limit in self.model_load_device_limits:
            options.set_model_load_device_limit(limit.kind, limit.device, limit.fraction)

    def _set_process(self, options: TRITONSERVER_ServerOptions) -> None:
        options.set_pinned_memory_pool_byte_size(self.pinned_memory_pool_size)
        for device, size in self.cuda_memory_pool_sizes.items():
            options.set_cuda_memory_pool_byte_size(device, size)
        for name, settings in self.cache_config.items():
            options.set_cache_config(name, json.dumps(settings))
        options.set_cache_directory(self.cache_directory)
        options.set_min_supported_compute_capability(self.min_supported_compute_capability)
        options.set_exit_on_error(self.exit_on_error)
        options.set_strict_readiness(self.strict_readiness)
        options.set_exit_timeout(self.exit_timeout)
        options.set_buffer_manager_thread_count(self.buffer_manager_thread_count)
        options.set_enable_peer_access(self.enable_peer_access)
        options.set_metrics(self.metrics)
        options.set_cpu_metrics(self.cpu_metrics)
        options.set_gpu_metrics(self.gpu_metrics)
        options.set_metrics_interval(self.metrics_interval)
        options.set_backend_directory(self.backend_directory)
        options.set_repo_agent_directory(self.repo_agent_directory)

    def _set_log(self, options: TRITONSERVER_ServerOptions) -> None:
        # Each level brings the ones above it.
        self.log_info = self.log_info or self.log_verbose > 0
        self.log_warn = self.log_warn or self.log_info
        self.log_error = self.log_error or self.log_warn
        if self.log_file:
            options.set_log_file(self.log_file)
        options.set_log_info(self.log_info)
        options.set_log_warn(self.log_warn)
        options.set_log_error(self.log_error)
        options.set_log_format(self.log_format)
        options.set_log_verbose(self.log_verbose)
        options.set_log_callback(self.log_callback)


class ModelDictionary(dict):
    """Models by `(name, version)`. A name alone is that model in the version that the server chooses."""

    def __init__(self, server: Server, models: list[Model]) -> None:
        super().__init__({(model.name, model.version): model for model in models})
        self._server = server

    def __getitem__(self, key: Union[str, tuple[str, int]]) -> Model:
        if isinstance(key, tuple) and key in self:
            return super().__getitem__(key)
        if isinstance(key, str) and any(name == key for name, _ in self):
            return Model(self._server, key)
        raise KeyError(f"Unknown Model: {key}")


class _Unstarted:
    """In the place of a server that does not run."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidArgumentError("Server not started")


_started: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stops the servers before the interpreter ends, which their threads call."""
    for server in list(_started):
        try:
            server.stop()
        except TritonError:
            pass  # Models that are still busy end with the process.


class Server:
    """A server inside this process.

    It is constructed with `Options`, or with their fields; `start` starts it.
    """

    def __init__(self, options: Optional[Options] = None, **kwargs: Any) -> None:
        self.options = options if options is not None else Options(**kwargs)
        self._server: Any = _Unstarted()

    def start(
        self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: Optional[float] = None
    ) -> Server:
        """Starts the server; with `wait_until_ready` it is ready when this returns, or `UnavailableError` is raised
        after `timeout` seconds."""
        if not isinstance(self._server, _Unstarted):
            raise InvalidArgumentError("Server already started")
        self._server = TRITONSERVER_Server(self.options._create_tritonserver_server_options())
        _started.add(self)
        until = None if timeout is None else time.monotonic() + timeout
        while wait_until_ready and not self.ready():
            if until is not None and time.monotonic() >= until:
                raise UnavailableError("Timeout before ready")
            time.sleep(polling_interval)
        return self

    def stop(self) -> None:
        """Refuses new requests, waits for the others, at most for the exit timeout, and unloads the models. After an
        error the server is as before, and may be stopped again."""
        self._server.stop()
        self._server = _Unstarted()
        _started.discard(self)

    def _ptr(self) -> int:
        return self._server._ptr()

    def live(self) -> bool:
        return self._server.is_live()

    def ready(self) -> bool:
        return self._server.is_ready()

    def metadata(self) -> dict[str, Any]:
        return json.loads(self._server.metadata().serialize_to_json())

    def model(self, model_name: str, model_version: int = -1) -> Model:
        """The model of this name, which is not checked."""
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The models of the repositories."""
        flags = int(ModelIndexFlag.READY) if exclude_not_ready else 0
        rows = json.loads(self._server.model_index(flags).serialize_to_json())
        return ModelDictionary(self, [Model(self, **row) for row in rows])

    def load(self, model_name: str, parameters: Optional[dict[str, Union[str, int, bool, bytes]]] = None) -> Model:
        """Loads a model and returns it. Parameters are `config`, a JSON text, and `file:<version>/<name>`, the bytes of
        a file."""
        if parameters:
            given = [TRITONSERVER_Parameter(name, value) for name, value in parameters.items()]
            self._server.load_model_with_parameters(model_name, given)
        else:
            self._server.load_model(model_name)
        return self.model(model_name)

    def unload(
        self,
        model: Union[str, Model],
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: Optional[float] = None,
    ) -> None:
        """Unloads a model; with `wait_until_unloaded` its last request is answered when this returns, or `timeout`
        seconds have passed."""
        name = model.name if isinstance(model, Model) else model
        if unload_dependents:
            self._server.unload_model_and_dependents(name)
        else:
            self._server.unload_model(name)
        until = None if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and not self._is_unloaded(name):
            if until is not None and time.monotonic() >= until:
                return
            time.sleep(polling_interval)

    def _is_unloaded(self, name: str) -> bool:
        versions = [model for (of, _), model in self.models().items() if of == name]
        return all(model.state in (None, "UNAVAILABLE") for model in versions)

    def register_model_repository(self, path: str, name_mapping: Optional[dict[str, str]] = None) -> None:
        """Adds a repository. The mapping has names of directories and the names that stand for them."""
        mapping = [TRITONSERVER_Parameter(folder, served) for folder, served in (name_mapping or {}).items()]
        self._server.register_model_repository(path, mapping)

    def unregister_model_repository(self, path: str) -> None:
        self._server.unregister_model_repository(path)

    def poll_model_repository(self) -> None:
        self._server.poll_model_repository()

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        return self._server.metrics().formatted(metric_format)


class MetricFamily(TRITONSERVER_MetricFamily):
    """Metrics of one name: kind, name and description."""


class Metric(TRITONSERVER_Metric):
    """A metric of the program's own, which is shown with the server's."""

    def __new__(cls, family: MetricFamily, labels: Optional[dict[str, str]] = None) -> Metric:
        given = [TRITONSERVER_Parameter(name, value) for name, value in (labels or {}).items()]
        return super().__new__(cls, family, given)
