"""The flags of the program `nereid` for each field of `tritonserver.Options`."""

from __future__ import annotations

from typing import Any

import tritonserver
from tritonserver import Options


def _flag(name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"--{name}={text}"


# Fields that have one value, in the form of the flag.
_PLAIN = {
    "server_id": "id",
    "pinned_memory_pool_size": "pinned-memory-pool-byte-size",
    "cache_directory": "cache-directory",
    "min_supported_compute_capability": "min-supported-compute-capability",
    "exit_on_error": "exit-on-error",
    "strict_readiness": "strict-readiness",
    "exit_timeout": "exit-timeout-secs",
    "buffer_manager_thread_count": "buffer-manager-thread-count",
    "model_load_thread_count": "model-load-thread-count",
    "model_load_retry_count": "model-load-retry-count",
    "model_namespacing": "model-namespacing",
    "enable_peer_access": "enable-peer-access",
    "log_verbose": "log-verbose",
    "metrics": "allow-metrics",
    "metrics_interval": "metrics-interval-ms",
    "backend_directory": "backend-directory",
    "repo_agent_directory": "repoagent-directory",
}
# Fields with settings by name; the name "" is for all.
_SETTINGS = {
    "cache_config": "cache-config",
    "backend_configuration": "backend-config",
    "host_policies": "host-policy",
    "metrics_configuration": "metrics-config",
}


def flags_of(options: Options) -> list[str]:
    """Flags with which the program starts as `tritonserver.Server(options)` does.

    Raises `ValueError` for a field that has no meaning in another process.
    """
    if options.log_callback is not None:
        raise ValueError("log_callback cannot be called by a server beside the replica: use log_file, or beside=False")
    repositories = options.model_repository
    if isinstance(repositories, str):
        repositories = [repositories]
    flags = [_flag("model-repository", path) for path in repositories]
    flags.append(_flag("model-control-mode", options.model_control_mode.name.lower()))
    flags += [_flag("load-model", name) for name in options.startup_models]
    flags += [_flag(flag, getattr(options, name)) for name, flag in _PLAIN.items()]
    if options.strict_model_config:
        flags.append("--disable-auto-complete-config")
    flags += _log(options)
    if options.metrics:
        flags += [_flag("allow-gpu-metrics", options.gpu_metrics), _flag("allow-cpu-metrics", options.cpu_metrics)]
    flags += [_flag("cuda-memory-pool-byte-size", f"{k}:{v}") for k, v in options.cuda_memory_pool_sizes.items()]
    flags += _rate_limiter(options)
    for limit in options.model_load_device_limits:
        if limit.kind != tritonserver.InstanceGroupKind.GPU:
            raise ValueError(f"model_load_device_limits: a limit for {limit.kind.name} is not supported: use GPU")
        flags.append(_flag("model-load-gpu-limit", f"{limit.device}:{limit.fraction}"))
    for name, flag in _SETTINGS.items():
        for of, settings in getattr(options, name).items():
            flags += [_flag(flag, f"{of},{key}={value}" if of else f"{key}={value}") for key, value in settings.items()]
    return flags


def _log(options: Options) -> list[str]:
    # Each level brings the ones above it, as in a process of its own.
    info = options.log_info or options.log_verbose > 0
    warn = options.log_warn or info
    error = options.log_error or warn
    flags = [_flag("log-info", info), _flag("log-warning", warn), _flag("log-error", error)]
    # The names of the enumeration are those of the flag, but for the first one's case.
    name = options.log_format.name
    flags.append(_flag("log-format", name.lower() if name == "DEFAULT" else name))
    return flags + ([_flag("log-file", options.log_file)] if options.log_file else [])


def _rate_limiter(options: Options) -> list[str]:
    is_on = options.rate_limiter_mode == tritonserver.RateLimitMode.EXEC_COUNT
    flags = [_flag("rate-limit", "execution_count" if is_on else "off")]
    for resource in options.rate_limiter_resources:
        device = f":{resource.device}" if resource.device >= 0 else ""
        flags.append(_flag("rate-limit-resource", f"{resource.name}:{resource.count}{device}"))
    return flags
