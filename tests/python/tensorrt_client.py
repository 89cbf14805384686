"""Drives a library in the place of TensorRT's lean runtime through NVIDIA's Python package, which was compiled against
NVIDIA's headers, and prints what each method returned: the places of the library's virtual functions are right only if
every value is.

    tensorrt_client.py LIBRARY
"""

import array
import ctypes
import sys

# The package finds the same file by its name, in LD_LIBRARY_PATH.
library = ctypes.CDLL(sys.argv[1])

import tensorrt_lean_bindings as trt

PLAN = b"""nereid-plan 2
input A 0 -1 4
input S 8 2
output B 0 -1 4
bounds 0 A 1 4 / 2 4 / 4 4
bounds 1 A 4 4 / 6 4 / 8 4
bounds 0 S 2 / 2 / 2
bounds 1 S 2 / 2 / 2
shape S
values 0 S 1 1 / 2 3 / 4 4
values 1 S 1 1 / 5 6 / 8 8
copy B A
"""


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.texts = []

    def log(self, severity, text):
        self.texts.append(text.split("(")[-1].rstrip(")"))


class Allocator(trt.IOutputAllocator):
    def __init__(self):
        trt.IOutputAllocator.__init__(self)

    def reallocate_output(self, *given):
        return 0

    def notify_shape(self, *given):
        pass


def main():
    log = Log()
    runtime = trt.Runtime(log)
    runtime.DLA_core = 1
    print("dla", runtime.num_DLA_cores, runtime.DLA_core)
    print("junk", runtime.deserialize_cuda_engine(b"junk"))
    print("refused", runtime.deserialize_cuda_engine(PLAN))
    print("log", log.texts)
    runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(PLAN)
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    print("tensors", names, engine.num_optimization_profiles)
    for name in names:
        print(
            name,
            engine.get_tensor_mode(name).name,
            engine.get_tensor_dtype(name).name,
            tuple(engine.get_tensor_shape(name)),
            engine.get_tensor_location(name).name,
            engine.is_shape_inference_io(name),
            engine.get_tensor_components_per_element(name, 1),
            engine.get_tensor_vectorized_dim(name, 1),
        )
    print("bounds", [tuple(shape) for shape in engine.get_tensor_profile_shape("A", 1)])
    print("values", engine.get_tensor_profile_values(1, "S"))
    context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE)
    print("profile", context.set_optimization_profile_async(1, 0), context.active_optimization_profile)
    print("outside", context.set_input_shape("A", (9, 4)))
    print("inside", context.set_input_shape("A", (5, 4)), tuple(context.get_tensor_shape("B")))
    print("missing", context.infer_shapes())
    values = array.array("q", [7, 8])
    address = values.buffer_info()[0]
    print("addresses", [context.set_tensor_address(name, address) for name in names], context.infer_shapes())
    print("allocator", context.set_output_allocator("B", Allocator()))
    # There is no stream.
    print("enqueued", context.execute_async_v3(0))
    print("live", library.nereid_live_objects())
    del context
    del engine
    print("live", library.nereid_live_objects())


main()
