"""Keeps metrics of its own."""

import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, arguments):
        self.answers = utils.MetricFamily(
            name="python_model_answers", description="What it answered", kind=utils.MetricFamily.COUNTER
        )
        self.largest = utils.MetricFamily(
            name="python_model_largest", description="What it saw", kind=utils.MetricFamily.GAUGE
        )
        self.count = self.answers.Metric(labels={"model": "metered", "version": "1"})
        self.seen = self.largest.Metric(labels={"model": "metered"})

    def execute(self, requests):
        responses = []
        for request in requests:
            value = utils.get_input_tensor_by_name(request, "IN").as_numpy()
            self.count.increment(1)
            self.seen.set(max(self.seen.value(), float(value.max())))
            responses.append(utils.InferenceResponse([utils.Tensor("OUT", value)]))
        return responses
