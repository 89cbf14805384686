"""Requests and their responses: errors, streams, queues, futures, cancellation, signals, traces.

For the package of the wheel. Arguments: names of cases, or none for all.
"""

import asyncio
import gc
import os
import queue
import signal
import sys
import threading
import time

import numpy
import tritonserver
from api_support import PARAMETERS, WORDS, repository, started, text_of
from cases import case, raises, run
from tritonserver import _c


@case
def a_request_has_its_fields():
    folder = repository()
    server = started(folder, "echo")
    model = server.model("echo")
    inputs = {"INPUT1": numpy.arange(3)}
    request = model.create_request(request_id="one", inputs=inputs, model="dropped")
    assert request.model is model and (request.flags, request.priority, request.timeout) == (0, 0, 0)
    for _ in range(3):
        (response,) = model.infer(request)
        assert response.request_id == "one" and response.final and response.error is None
        assert response.classification_label is None and response.parameters == PARAMETERS
        assert list(response.outputs) == ["OUTPUT0", "OUTPUT1", "OUTPUT2"]
        assert (response.model.name, response.model.version, model.version) == ("echo", 1, -1)
        fields = ["model", "request_id", "parameters", "outputs", "error", "classification_label", "final"]
        assert list(response.__dict__) == fields
        owner = response.outputs["OUTPUT0"].memory_buffer.owner
        assert owner.output_classification_label(0, 1) == "second" and owner.output_classification_label(1, 1) == ""
    (response,) = model.infer(inputs=inputs)
    assert response.request_id == ""
    for fields in [{"correlation_id": 7, "flags": 3}, {"correlation_id": "seven", "priority": 1, "timeout": 10**7}]:
        (response,) = model.infer(inputs=inputs, parameters={"a": 1, "b": 0.5, "c": True, "d": "text"}, **fields)
        assert response.error is None
    for parameters in [{"a": None}, {"a": {}}, {"a": [1]}]:
        with raises(tritonserver.InvalidArgumentError, "to Request Parameter"):
            model.infer(inputs=inputs, parameters=parameters)
    with raises(tritonserver.NotFoundError, "unknown model"):
        server.model("nobody").infer(inputs=inputs)
    with raises(tritonserver.InvalidArgumentError, "unexpected inference input 'OTHER'"):
        model.infer(inputs={"OTHER": numpy.arange(3)})
    with raises(TypeError):
        model.infer(unknown=1)
    for device, raised in [("cpu", None), ("unsupported", "Memory type unsupported not supported"), ("gpu", "not supp")]:
        iterator = model.infer(inputs=inputs, output_memory_type=device, raise_on_error=False)
        if raised is None:
            assert len(list(iterator)) == 1
            continue
        with raises(tritonserver.InvalidArgumentError, raised):
            next(iterator)
        assert list(iterator) == []
    server.stop()


@case
def parameters_of_responses_keep_their_values():
    folder = repository()
    server = started(folder, "words")
    (response,) = server.model("words").infer(inputs={"WORDS": ["parameters"]})
    assert response.parameters == {"wide": -(1 << 40), "text": "ä", "flag": True}, response.parameters
    server.stop()


@case
def errors_of_models_are_raised_or_returned():
    folder = repository()
    server = started(folder, "words")
    model = server.model("words")

    def check(response):
        assert isinstance(response.error, tritonserver.TritonError) and response.final and not response.outputs
        assert "the model failed" in response.error.args[0] and response.error.args[1] is response

    for _ in range(50):
        iterator = model.infer(inputs={"WORDS": ["fail"]})
        with raises(tritonserver.TritonError, "the model failed"):
            next(iterator)
        assert list(iterator) == []
        (response,) = model.infer(inputs={"WORDS": ["fail"]}, raise_on_error=False)
        check(response)
        responses = queue.SimpleQueue()
        iterator = model.infer(inputs={"WORDS": ["fail"]}, response_queue=responses)
        check(responses.get(timeout=300))
        with raises(tritonserver.TritonError, "the model failed"):
            next(iterator)

    async def asynchronous():
        iterator = model.async_infer(inputs={"WORDS": ["fail"]})
        with raises(tritonserver.TritonError, "the model failed"):
            await iterator.__anext__()
        assert [response async for response in iterator] == []
        responses = asyncio.Queue()
        iterator = model.async_infer(inputs={"WORDS": ["fail"]}, raise_on_error=False, response_queue=responses)
        check(await asyncio.wait_for(responses.get(), 300))
        (response,) = [response async for response in iterator]
        check(response)

    asyncio.run(asynchronous())
    # The process goes on.
    (response,) = model.infer(inputs={"WORDS": ["well"]})
    assert text_of(response) == ["well"]
    server.stop()


@case
def responses_of_a_stream_come_in_order():
    folder = repository()
    server = started(folder, "stream")
    model = server.model("stream")
    assert model.transaction_properties() is tritonserver.ModelTxnPropertyFlag.DECOUPLED
    count = 3000
    words = [str(number) for number in range(count)]

    def check(responses):
        assert [response.final for response in responses] == [False] * count + [True]
        assert [text_of(response)[0] for response in responses[:-1]] == words
        assert responses[-1].outputs == {} and responses[-1].request_id == "streamed"

    fields = {"inputs": {"WORDS": words}, "request_id": "streamed"}
    check(list(model.infer(**fields)))
    for kind in [queue.SimpleQueue, queue.Queue]:
        responses = kind()
        iterator = model.infer(response_queue=responses, **fields)
        check([responses.get(timeout=300) for _ in range(count + 1)])
        check(list(iterator))
    # A queue that is full holds nothing up but itself.
    responses = queue.Queue(maxsize=1)
    iterator = model.infer(response_queue=responses, **fields)
    (other,) = [response for response in model.infer(inputs={"WORDS": ["x"]}) if response.outputs]
    assert text_of(other) == ["x"]
    check([responses.get(timeout=300) for _ in range(count + 1)])
    check(list(iterator))

    async def asynchronous():
        check([response async for response in model.async_infer(**fields)])
        responses = asyncio.Queue()
        iterator = model.async_infer(response_queue=responses, **fields)
        check([await asyncio.wait_for(responses.get(), 300) for _ in range(count + 1)])
        check([response async for response in iterator])

    asyncio.run(asynchronous())
    with raises(RuntimeError):
        model.async_infer(response_queue=asyncio.Queue(), **fields)
    # An error in the middle ends nothing but itself.
    iterator = model.infer(inputs={"WORDS": ["a", "fail", "b"]})
    assert text_of(next(iterator)) == ["a"]
    with raises(tritonserver.TritonError, "the model failed"):
        next(iterator)
    rest = list(iterator)
    assert text_of(rest[0]) == ["b"] and rest[-1].final
    server.stop()


@case
def requests_are_cancelled():
    folder = repository()
    server = started(folder, "words")
    model = server.model("words")
    iterator = model.infer(inputs={"WORDS": ["wait"]})
    threading.Timer(0.1, iterator.cancel).start()
    try:
        next(iterator)
    except tritonserver.CancelledError as error:
        assert isinstance(error, tritonserver.UnknownError)
    else:
        raise AssertionError("the request was not cancelled")
    assert list(iterator) == []
    iterator.cancel()
    iterator.cancel()

    async def asynchronous():
        iterator = model.async_infer(inputs={"WORDS": ["wait"]})
        waiting = asyncio.create_task(iterator.__anext__())
        await asyncio.sleep(0.05)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            iterator.cancel()
        # The response that the cancelled task did not get is not lost.
        with raises(tritonserver.CancelledError):
            await iterator.__anext__()
        assert [response async for response in iterator] == []

    asyncio.run(asynchronous())

    async def in_between():
        """The task is cancelled when its future has the response, and it has not run since."""
        iterator = model.async_infer(inputs={"WORDS": ["wait"]})
        waiting = asyncio.create_task(iterator.__anext__())
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        schedule = loop.call_soon_threadsafe

        def schedule_both(hand_over):
            loop.call_soon_threadsafe = schedule
            # In one step of the loop, in which the task cannot run in between.
            schedule(lambda: (hand_over(), waiting.cancel()))

        loop.call_soon_threadsafe = schedule_both
        iterator.cancel()
        with raises(asyncio.CancelledError):
            await waiting
        with raises(tritonserver.CancelledError):
            await iterator.__anext__()

    asyncio.run(in_between())
    server.stop()


def once_released(change):
    """Makes a change that is refused while the server has the request, which may be a little longer than its answer."""
    for _ in range(6000):
        try:
            return change()
        except RuntimeError:
            time.sleep(0.01)
    raise AssertionError("the request was never released")


@case
def one_future_waits_for_a_request():
    folder = repository()
    server = started(folder, "words")
    request = server.model("words").create_request(inputs={"WORDS": ["wait"]})._create_server_request()

    class Future:
        def __init__(self):
            self.results, self.is_done = queue.SimpleQueue(), False

        def done(self):
            return self.is_done

        def set_result(self, result):
            self.results.put(result)

    first, second = Future(), Future()
    request.get_next_response(first)
    server._server.infer_async(request)
    with raises(tritonserver.AlreadyExistsError, "cannot call GetNextResponse concurrently"):
        request.get_next_response(second)
    with raises(RuntimeError, "with the server"):
        request.remove_all_inputs()
    with raises(RuntimeError, "with the server"):
        server._server.infer_async(request)
    # One that was given up is no hindrance.
    first.is_done = True
    request.get_next_response(second)
    request.cancel()
    response, flags = second.results.get(timeout=300)
    assert flags == _c.FINAL and first.results.empty()
    with raises(tritonserver.CancelledError):
        response.throw_if_response_error()
    # Then it may be changed and sent again, as soon as the server has released it.
    once_released(request.remove_all_inputs)
    del response
    server.stop()


@case
def what_nobody_waits_for_harms_nothing():
    folder = repository()
    server = started(folder, "echo", "stream")
    for _ in range(200):
        server.model("stream").infer(inputs={"WORDS": ["a", "b", "c"]})
        server.model("echo").infer(inputs={"INPUT1": numpy.arange(1000)})
    server.stop()
    gc.collect()


@case
def a_response_outlives_its_server():
    folder = repository()
    server = started(folder, "echo")
    values = numpy.arange(1000, dtype=numpy.int64)
    (response,) = server.model("echo").infer(inputs={"INPUT1": values})
    server.stop()
    assert numpy.array_equal(numpy.from_dlpack(response.outputs["OUTPUT1"]), values)
    array = numpy.from_dlpack(response.outputs["OUTPUT1"])
    del server, response
    gc.collect()
    assert numpy.array_equal(array, values)
    with raises(tritonserver.TritonError):
        tritonserver.Server().model("echo")


@case
def ten_thousand_requests_share_a_queue():
    folder = repository()
    server = started(folder, "echo")
    model, responses = server.model("echo"), queue.SimpleQueue()
    count, threads = 10_000, 8

    def send(first):
        for number in range(first, count, threads):
            inputs = {"INPUT1": numpy.full(4, number, numpy.int64)}
            model.infer(inputs=inputs, request_id=str(number), response_queue=responses)

    sending = [threading.Thread(target=send, args=(first,)) for first in range(threads)]
    for thread in sending:
        thread.start()
    seen = set()
    for _ in range(count):
        response = responses.get(timeout=300)
        values = numpy.from_dlpack(response.outputs["OUTPUT1"])
        assert response.final and (values == int(response.request_id)).all()
        seen.add(response.request_id)
    for thread in sending:
        thread.join()
    assert len(seen) == count and responses.empty()
    assert f'nv_inference_request_success{{model="echo",version="1"}} {count}' in server.metrics()
    server.stop()


@case
def many_tasks_share_a_loop():
    folder = repository()
    server = started(folder, "echo", "stream")

    async def one(number):
        model = server.model("echo" if number % 4 else "stream")
        if number % 4:
            inputs = {"INPUT1": numpy.full(3, number, numpy.int64)}
            (response,) = [response async for response in model.async_infer(inputs=inputs)]
            assert (numpy.from_dlpack(response.outputs["OUTPUT1"]) == number).all()
            return
        words = [str(number), "second"]
        got = [response async for response in model.async_infer(inputs={"WORDS": words})]
        assert [text_of(response)[0] for response in got[:-1]] == words

    async def all_of_them():
        await asyncio.gather(*[one(number) for number in range(1000)])

    asyncio.run(all_of_them())
    server.stop()


@case
def a_signal_ends_a_wait():
    folder = repository()
    server = started(folder, "words")
    iterator = server.model("words").infer(inputs={"WORDS": ["wait"]})
    # A shell may have started the tests in the background, where the signal is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with raises(KeyboardInterrupt):
        timer.start()
        next(iterator)
    iterator.cancel()
    with raises(tritonserver.CancelledError):
        next(iterator)
    server.stop()


@case
def traces_of_refused_requests_come_back():
    folder = repository()
    server = started(folder, "echo")
    released = queue.SimpleQueue()
    names = ["level", "parent_id", "activity_function", "tensor_activity_function", "release_function", "trace_userp"]
    level = int(_c.TIMESTAMPS)
    values = [level, 9, lambda *_: None, lambda *_: None, lambda trace, userp: released.put((trace.parent_id, userp)), "u"]
    trace = _c.TRITONSERVER_InferenceTrace(**dict(zip(names, values)))
    with raises(TypeError, "the arguments of a trace are level, parent_id"):
        _c.TRITONSERVER_InferenceTrace(1, 2)
    request = _c.TRITONSERVER_InferenceRequest(server._server, "echo", 1)
    request.add_input("OTHER", tritonserver.DataType.FP32, [1])
    for _ in range(2):
        with raises(tritonserver.InvalidArgumentError):
            server._server.infer_async(request, trace)
    request.remove_all_inputs()
    values = numpy.arange(3)
    request.add_input("INPUT1", tritonserver.DataType.INT64, values.shape)
    request.append_input_data("INPUT1", values.ctypes.data, values.nbytes, tritonserver.MemoryType.CPU, 0)
    server._server.infer_async(request, trace)
    response, _flags = request._next(60)
    response.throw_if_response_error()
    assert released.get(timeout=300) == (9, "u")
    with raises(tritonserver.InvalidArgumentError, "trace"):
        trace.model_name
    with raises(tritonserver.InvalidArgumentError, "trace"):
        once_released(lambda: server._server.infer_async(request, trace))
    del request, response
    server.stop()


if __name__ == "__main__":
    run(sys.argv[1:])
