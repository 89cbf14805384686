"""Tensors: from and to arrays, lists and strings, and how long their memory lives.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import gc
import sys
import weakref

import numpy
import tritonserver
from api_support import ECHO, write, repository, started
from cases import case, raises, run
from tritonserver import _c


@case
def arrays_come_and_go_without_a_copy():
    values = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    for made in [tritonserver.Tensor._from_object(values), tritonserver.Tensor.from_dlpack(values)]:
        assert made.data_ptr == values.ctypes.data and made.size == values.nbytes
        assert (made.memory_type, made.memory_type_id) == (tritonserver.MemoryType.CPU, 0)
        assert made.data_type is tritonserver.DataType.FP32 and tuple(made.shape) == (3, 4)
        back = numpy.from_dlpack(made)
        assert back.ctypes.data == values.ctypes.data and numpy.array_equal(back, values)
        assert made.to_host() is made and made.to_device("cpu:0") is made
        assert made.__dlpack_device__() == (1, 0)
    folder = repository()
    server = started(folder, "echo")
    (response,) = server.model("echo").infer(inputs={"INPUT0": values})
    output = response.outputs["OUTPUT0"]
    array = numpy.from_dlpack(output)
    assert array.ctypes.data == output.data_ptr and array.ctypes.data % 64 == 0
    assert isinstance(output.memory_buffer.owner, _c.TRITONSERVER_InferenceResponse)
    # A consumer that knows the newer form may write into the memory.
    array = numpy.from_dlpack(Newer(output))
    array[0, 0] = 7
    assert numpy.from_dlpack(output)[0, 0] == 7
    copy = numpy.from_dlpack(Newer(output, copy=True))
    assert copy.ctypes.data != output.data_ptr and copy[0, 0] == 7
    with raises(tritonserver.UnsupportedError, "DLPack stream synchronization"):
        output.__dlpack__(stream=3)
    with raises(BufferError):
        output.__dlpack__(dl_device=(2, 0))
    output.shape = [4, 3]
    assert numpy.from_dlpack(output).shape == (4, 3)
    del response, output, array, copy
    server.stop()


class Newer:
    """Passes a tensor on as a consumer of DLPack 1.0 asks for it."""

    def __init__(self, tensor, **arguments):
        self.tensor, self.arguments = tensor, arguments

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__(max_version=(1, 0), **self.arguments)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@case
def references_are_counted():
    values = numpy.ones(8, numpy.int64)
    before = sys.getrefcount(values)
    tensor = tritonserver.Tensor.from_dlpack(values)
    assert sys.getrefcount(values) == before + 1 and sys.getrefcount(tensor) == 2
    array = numpy.from_dlpack(tensor)
    assert sys.getrefcount(tensor) == 3
    unused = tensor.__dlpack__()
    assert sys.getrefcount(tensor) == 4
    del unused
    assert sys.getrefcount(tensor) == 3
    del array
    assert sys.getrefcount(tensor) == 2
    kept = weakref.ref(tensor)
    del tensor
    assert kept() is None and sys.getrefcount(values) == before


@case
def each_type_of_element_has_its_form():
    kinds = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
    names = "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 FP32 FP64".split()
    for kind, name in zip(kinds, names):
        for array in [numpy.ones([2, 3], kind), numpy.zeros([0, 2], kind), numpy.ones([], kind)]:
            tensor = tritonserver.Tensor._from_object(array)
            assert tensor.data_type is tritonserver.DataType.__members__[name] and tensor.shape == array.shape
            back = numpy.from_dlpack(tensor)
            assert back.dtype == array.dtype and numpy.array_equal(back, array)
    for given, kind in [([1, 2], "INT64"), ([0.5], "FP64"), ([True], "BOOL"), ([], "FP64"), ([["a", 1]], "BYTES")]:
        assert tritonserver.Tensor._from_object(given).data_type.name == kind
    assert tritonserver.Tensor._from_object(numpy.float32(1)).data_type is tritonserver.DataType.FP32
    for wrong, part in [
        ((1, 2), "not supported. Must be one of"),
        (object(), "not supported. Must be one of"),
        (numpy.ones(2, numpy.complex64), "Unsupported Numpy data type"),
        ([[1], [1, 2]], "to tensor not supported."),
    ]:
        with raises(tritonserver.InvalidArgumentError, part):
            tritonserver.Tensor._from_object(wrong)
    with raises(tritonserver.InvalidArgumentError, "Unsupported DLPack data type"):
        tritonserver.Tensor.from_dlpack(numpy.ones(2, numpy.complex64))
    with raises(tritonserver.InvalidArgumentError, "Object does not support DLPack protocol"):
        tritonserver.Tensor.from_dlpack(3)
    with raises(tritonserver.InvalidArgumentError, "Only contiguous memory is supported"):
        tritonserver.Tensor.from_dlpack(numpy.ones([4, 4])[:, ::2])
    with raises(tritonserver.InvalidArgumentError, "Only contiguous memory is supported"):
        tritonserver.MemoryBuffer.from_dlpack(numpy.ones([4, 4]).T)
    with raises(tritonserver.InvalidArgumentError, "Object does not support DLpack protocol"):
        tritonserver.MemoryBuffer.from_dlpack(3)


@case
def devices_are_named_in_several_ways():
    parse = tritonserver._api._datautils.parse_device_or_memory_type
    kind, device = tritonserver.MemoryType, tritonserver.DLDeviceType
    for given, expected in [
        (kind.GPU, (kind.GPU, 0)),
        ((kind.GPU, 2), (kind.GPU, 2)),
        ((device(device.kDLCPU), 0), (kind.CPU, 0)),
        ((device.kDLCUDA, 1), (kind.GPU, 1)),
        ("cpu", (kind.CPU, 0)),
        ("CPU_Pinned", (kind.CPU_PINNED, 0)),
        ("gpu:1", (kind.GPU, 1)),
    ]:
        assert parse(given) == expected, given
    for wrong, part in [
        ("gpu:1:2", "Invalid memory type string gpu:1:2"),
        ("gpu:x", "Invalid memory type string"),
        ("tpu", "Can't convert TPU to Triton server memory type"),
        ((device.kDLMetal, 0), ""),
        (3.5, "Invalid memory type"),
        ((kind.CPU,), "Invalid memory type"),
    ]:
        with raises(tritonserver.InvalidArgumentError, part):
            parse(wrong)
    tensor = tritonserver.Tensor._from_object(numpy.ones(2))
    with raises(tritonserver.UnsupportedError, "not supported."):
        tensor.to_device("cpu_pinned")


@case
def strings_are_utf_8():
    texts = [["plain", "äöü — 漢字", ""], ["\0in\0side", "🦀", "x" * 100_000]]
    tensor = tritonserver.Tensor.from_string_array(texts)
    assert tensor.data_type is tritonserver.DataType.BYTES and tuple(tensor.shape) == (2, 3)
    assert tensor.to_string_array().tolist() == texts
    assert tensor.to_bytes_array()[0, 1] == texts[0][1].encode()
    raw = numpy.array([b"\xff\0", b""], dtype=numpy.object_)
    assert tritonserver.Tensor.from_bytes_array(raw).to_bytes_array().tolist() == raw.tolist()
    for empty in [numpy.empty([0], numpy.object_), numpy.empty([2, 0], numpy.str_)]:
        tensor = tritonserver.Tensor.from_bytes_array(empty)
        assert tensor.size == 0 and tensor.to_bytes_array().shape == empty.shape
    for wrong in [[1, 2], "text", numpy.ones(3)]:
        with raises(tritonserver.InvalidArgumentError, "to Triton BYTES Tensor"):
            tritonserver.Tensor.from_string_array(wrong)
    with raises(tritonserver.InvalidArgumentError, "not TRITONSERVER_DataType.BYTES"):
        tritonserver.Tensor._from_object(numpy.ones(3)).to_bytes_array()
    with raises(tritonserver.InvalidArgumentError, "DLPack"):
        tensor.__dlpack__()
    folder = repository()
    server = started(folder, "echo")
    flat = [text for row in texts for text in row]
    for given in [flat, numpy.array(flat, dtype=numpy.object_), tritonserver.Tensor.from_string_array(flat)]:
        (response,) = server.model("echo").infer(inputs={"INPUT2": given})
        assert response.outputs["OUTPUT2"].to_string_array().tolist() == flat
    (response,) = server.model("echo").infer(inputs={"INPUT2": numpy.empty(0, numpy.object_)})
    assert response.outputs["OUTPUT2"].to_bytes_array().shape == (0,)
    server.stop()


@case
def strided_and_swapped_arrays_arrive_as_they_read():
    folder = repository()
    server = started(folder, "echo")
    model = server.model("echo")
    values = numpy.arange(20, dtype=numpy.float32).reshape(4, 5)
    swapped = values.astype(values.dtype.newbyteorder())
    for given in [values.T, values[::2, ::-1], numpy.asfortranarray(values), swapped, values[:, 1:2]]:
        (response,) = model.infer(inputs={"INPUT0": given})
        assert numpy.array_equal(numpy.from_dlpack(response.outputs["OUTPUT0"]), given)
    server.stop()


@case
def inputs_live_as_long_as_the_server_reads_them():
    folder = repository()
    delayed = ECHO.replace("max_batch_size: 0", "max_batch_size: 8 dynamic_batching {"
                           " max_queue_delay_microseconds: 200000 preferred_batch_size: 8 }")
    write(folder, "echo/config.pbtxt", delayed)
    server = started(folder, "echo")
    model = server.model("echo")
    count = 50_000
    iterator = model.infer(inputs={"INPUT1": [list(range(count))]})
    # What was converted from the list would be here by now if nothing held it.
    poison = [numpy.full([count], -7, numpy.int64) for _ in range(16)]
    (response,) = iterator
    assert numpy.array_equal(numpy.from_dlpack(response.outputs["OUTPUT1"]), [range(count)])
    del poison
    # The array is let go when the request is, not before and not never.
    values = numpy.arange(count).reshape(1, count)
    alive = weakref.ref(values)
    iterator = model.infer(inputs={"INPUT1": values})
    del values
    gc.collect()
    assert alive() is not None
    (response,) = iterator
    del iterator, response
    while alive() is not None:
        gc.collect()
        server.live()
    server.stop()


if __name__ == "__main__":
    run(sys.argv[1:])
