"""Autoscaling on the server's queue.

Ray pickles this module by value into its controller, so it imports nothing of this package.
"""

from __future__ import annotations

import math
import re
from typing import Any

# Requests that the server holds and that no instance executes yet.
PENDING = "nereid_pending_requests"
# Calls that the replica has and did not answer yet.
ONGOING = "nereid_ongoing_requests"

_PENDING_SAMPLE = re.compile(r"^nv_inference_pending_request_count\{[^}]*\} (\S+)$", re.MULTILINE)


def pending_requests(exposition: str) -> float:
    """The sum over all models in a text of Prometheus' format."""
    return sum(float(value) for value in _PENDING_SAMPLE.findall(exposition))


class QueuePolicy:
    """A policy of Ray Serve: replicas are added by the servers' queues, and removed by Ray's count of requests.

    A replica whose instances are all busy can still be the right size; only requests that wait show that it is too
    small. So the mean queue of the replicas, together with the requests that wait in handles, is held at
    `target_pending_requests`. An empty queue does not show how much smaller the deployment may be. So replicas are
    removed only as long as each that stays would have at most `target_ongoing_requests` requests.

    Ray applies the bounds, delays and factors of the deployment's `autoscaling_config` to the result.
    """

    def __init__(self, target_pending_requests: float = 2.0) -> None:
        if not target_pending_requests > 0:
            raise ValueError(f"target_pending_requests must be above 0, and is {target_pending_requests}")
        self.target_pending_requests = float(target_pending_requests)

    def __call__(self, ctx: Any) -> tuple[float, dict[str, Any]]:
        replicas = ctx.current_num_replicas
        if replicas == 0:
            return ctx.target_num_replicas, {}
        reported = (ctx.aggregated_metrics or {}).get(PENDING) or {}
        if not reported:
            # Replicas that start have no figures yet: no ground for a change.
            return ctx.target_num_replicas, {}
        # Replicas that did not report yet count as the mean of the others.
        queued = sum(reported.values()) / len(reported) * replicas + (ctx.total_queued_requests or 0.0)
        wanted = queued / self.target_pending_requests
        if wanted > replicas:
            return wanted, {}
        needed = math.ceil(ctx.total_num_requests / ctx.config.get_target_ongoing_requests())
        return max(min(replicas, needed), math.ceil(wanted), ctx.capacity_adjusted_min_replicas), {}
