"""Sum and difference of its inputs. Two rows of different lengths raise numpy's error."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if config.as_dict()["input"]:
            return config
        for at in range(2):
            config.add_input({"name": f"INPUT__{at}", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": f"OUTPUT__{at}", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            first, second = (pb_utils.get_input_tensor_by_name(request, f"INPUT__{at}").as_numpy() for at in range(2))
            try:
                results = [first + second, first - second]
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
                continue
            tensors = [pb_utils.Tensor(f"OUTPUT__{at}", result) for at, result in enumerate(results)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
