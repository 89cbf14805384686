"""Turns texts around, and tells who asked."""

import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            texts = utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            turned = numpy.array([text.decode()[::-1].encode() for text in texts.reshape(-1)], dtype=object)
            who = [request.request_id(), str(request.correlation_id()), request.parameters()]
            told = numpy.array([text.encode() for text in who], dtype=object)
            responses.append(
                utils.InferenceResponse(
                    [utils.Tensor("TURNED", turned.reshape(texts.shape)), utils.Tensor("WHO", told)]
                )
            )
        return responses
