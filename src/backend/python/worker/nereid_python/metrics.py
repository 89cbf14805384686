"""Custom metrics of models, which live as long as their objects.

Operations that a metric's kind does not support are refused here, with the core's texts, so that a change is one
message without an answer. A value is queried, and queried again while changes of this worker are still in flight.
"""

import itertools
import time

from . import kinds
from .errors import Choice, TritonModelException, text, wrong
from .wire import Refused, link

_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 2

# Queries of a value while changes are in flight; the server reads these within microseconds.
_TRIES = 1000

_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
_MONOTONIC = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."


class MetricKind(Choice):
    """TRITONSERVER_MetricKind."""

    COUNTER = _COUNTER
    GAUGE = _GAUGE
    HISTOGRAM = _HISTOGRAM


class MetricFamily:
    """Metrics of one name (contract/python_backend.md section 3, "MetricFamily")."""

    __slots__ = ("_number", "_kind", "_here", "__weakref__")

    MetricKind = MetricKind
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name, description, kind):
        name = text(name, "name")
        description = text(description, "description")
        if type(kind) is not MetricKind:
            raise wrong("kind", "a MetricKind", kind)
        self._kind = kind
        self._number = _create("Error when creating MetricFamily: ", kinds.METRIC_FAMILY, name, description, kind.value)
        # Shared with its metrics, which do not keep the family alive.
        self._here = [True]

    def Metric(self, labels=None, buckets=None):
        """The metric of these labels; two of the same labels share their value."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self._kind is not MetricKind.HISTOGRAM:
            if buckets is not None:
                raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        elif buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        else:
            buckets = tuple([_number(bucket, "a bucket") for bucket in buckets])
        pairs = []
        for key, value in (labels or {}).items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TritonModelException("Error when creating Metric: labels must be texts, for texts")
            pairs.append((str(key), str(value)))
        number = _create("Error when creating Metric: ", kinds.METRIC, self._number, tuple(pairs), buckets)
        return _metric_of(number, self._kind, self._here)

    def __del__(self):
        # After a call with wrong arguments the object has no attributes.
        if getattr(self, "_here", None) is not None:
            self._here[0] = False
            link.notify(kinds.FAMILY_DROPPED, self._number)


MetricFamily.__module__ = "c_python_backend_utils"


class Metric:
    """One value of a family, or one histogram."""

    __slots__ = ("_number", "_kind", "_here", "_count", "_changes", "__weakref__")

    def __init__(self):
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    def increment(self, value):
        self._change("increment", "Increment", kinds.INCREMENT, value)

    def set(self, value):
        self._change("set", "Set", kinds.SET, value)

    def observe(self, value):
        self._change("observe", "Observe", kinds.OBSERVE, value)

    def value(self):
        self._check("get", "Value")
        for _ in range(_TRIES):
            # Read before the query: later changes of other threads are not awaited.
            changes = self._changes
            try:
                value, applied = link.query(kinds.METRIC_VALUE, self._number)
            except Refused as refused:
                raise TritonModelException("Failed to get metric value: " + refused.text) from None
            if applied >= changes:
                break
            time.sleep(0.0001)
        return value

    def _change(self, verb, name, operation, value):
        value = _number(value, "value")
        self._check(verb, name)
        if value < 0 and operation == kinds.INCREMENT and self._kind is MetricKind.COUNTER:
            raise TritonModelException("Failed to increment metric value: " + _MONOTONIC)
        link.notify(kinds.METRIC_CHANGE, self._number, operation, value)
        self._changes = self._count()

    def _check(self, verb, name):
        if not self._here[0]:
            raise TritonModelException("Failed to %s metric value: %s" % (verb, _GONE))
        if name not in _KNOWN[self._kind.value]:
            complaint = "Failed to %s metric value: TRITONSERVER_METRIC_KIND_%s does not support %s"
            raise TritonModelException(complaint % (verb, self._kind.name, name))

    def __del__(self):
        # The drop of its family has dropped it.
        if getattr(self, "_here", (False,))[0]:
            link.notify(kinds.METRIC_DROPPED, self._number)


Metric.__module__ = "c_python_backend_utils"

# By kind.
_KNOWN = (("Increment", "Value"), ("Increment", "Set", "Value"), ("Observe",))


def _metric_of(number, kind, here):
    metric = Metric.__new__(Metric)
    metric._number = number
    metric._kind = kind
    metric._here = here
    metric._count = itertools.count(1).__next__
    metric._changes = 0
    return metric


def _create(failed, kind, *payload):
    try:
        return link.query(kind, *payload)
    except Refused as refused:
        raise TritonModelException(failed + refused.text) from None


def _number(value, argument):
    try:
        # Texts, which float accepts too, have none of these methods.
        if hasattr(value, "__float__") or hasattr(value, "__index__"):
            return float(value)
    except TypeError:
        pass
    raise wrong(argument, "a number", value)
