"""Sum and difference of two tensors, by asking another model 16 times at once; the last answer is passed on."""

import asyncio

import triton_python_backend_utils as pb_utils

CALLS = 16


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            inputs = request.inputs()
            calls = [
                pb_utils.InferenceRequest(
                    model_name="sums", requested_output_names=["OUTPUT0", "OUTPUT1"], inputs=inputs
                ).async_exec()
                for _ in range(CALLS)
            ]
            answers = await asyncio.gather(*calls)
            for answer in answers:
                if answer.has_error():
                    raise pb_utils.TritonModelException(answer.error().message())
            outputs = [pb_utils.Tensor(output.name(), output.as_numpy()) for output in answers[-1].output_tensors()]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
