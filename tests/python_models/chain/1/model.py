"""Calls add_sub, and add_sub again with what came of it: twice the inputs."""

import triton_python_backend_utils as pb_utils


def called(left, right):
    request = pb_utils.InferenceRequest(
        model_name="add_sub",
        requested_output_names=["OUTPUT0", "OUTPUT1"],
        inputs=[pb_utils.Tensor("INPUT0", left), pb_utils.Tensor("INPUT1", right)],
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return [pb_utils.get_output_tensor_by_name(response, name) for name in ("OUTPUT0", "OUTPUT1")]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            first = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1")]
            second = [tensor.as_numpy() for tensor in called(*first)]
            responses.append(pb_utils.InferenceResponse(output_tensors=called(*second)))
        return responses
