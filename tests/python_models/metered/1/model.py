"""Keeps a counter, a gauge and a histogram of the values that it sees."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily
        labels = {"model": args["model_name"], "kind": "a \"quoted\" one"}
        self.families = [
            family(name="differential_seen", description="Values that were seen", kind=family.COUNTER),
            family(name="differential_largest", description="The largest value so far", kind=family.GAUGE),
            family(name="differential_spread", description="How the values spread", kind=family.HISTOGRAM),
        ]
        self.seen = self.families[0].Metric(labels=labels)
        self.bare = self.families[0].Metric()
        self.largest = self.families[1].Metric(labels={"model": args["model_name"]})
        self.spread = self.families[2].Metric(labels=labels, buckets=[0.5, 1, 10])

    def execute(self, requests):
        responses = []
        for request in requests:
            values = request.inputs()[0].as_numpy()
            for value in values.tolist():
                self.seen.increment(1)
                self.bare.increment(0.5)
                self.largest.set(max(self.largest.value(), value))
                self.spread.observe(value)
            state = np.array([self.seen.value(), self.bare.value(), self.largest.value()], dtype=np.float64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", state)]))
        return responses
