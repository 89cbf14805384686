"""Requests to Python models by the official clients over both protocols, with plain arguments and plain answers."""

import os
import queue
import sys
import traceback

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

PATIENCE_S = 300


class Answer:
    """What came: outputs by name, or the error's status and text."""

    def __init__(self, result=None, error=None):
        self.result, self.error = result, error
        self.status = None if error is None else error.status()
        self.text = None if error is None else error.message()

    def __getitem__(self, name):
        if self.error is not None:
            raise SystemExit(f"an error instead of {name}: {self.status} {self.text}")
        return self.result.as_numpy(name)

    def names(self):
        response = self.result.get_response()
        outputs = response["outputs"] if isinstance(response, dict) else response.outputs
        return sorted(one["name"] if isinstance(one, dict) else one.name for one in outputs)

    def __repr__(self):
        return f"{self.status} {self.text}" if self.error else str(self.result.get_response())[:400]


def tensors(module, arrays):
    made = []
    for name, array in arrays.items():
        array, datatype = array if isinstance(array, tuple) else (array, np_to_triton_dtype(array.dtype))
        one = module.InferInput(name, list(array.shape), datatype)
        one.set_data_from_numpy(array)
        made.append(one)
    return made


def texts(*values, shape=None):
    array = np.array([value if isinstance(value, bytes) else value.encode() for value in values], dtype=np.object_)
    return array if shape is None else array.reshape(shape)


class Http:
    name, module = "HTTP", http

    def __init__(self, url, concurrency=4):
        self.client = http.InferenceServerClient(
            url, concurrency=concurrency, network_timeout=PATIENCE_S, connection_timeout=PATIENCE_S
        )

    def infer(self, model, arrays, outputs=None, **more):
        wanted = None if outputs is None else [http.InferRequestedOutput(name) for name in outputs]
        try:
            return Answer(self.client.infer(model, tensors(http, arrays), outputs=wanted, **more))
        except InferenceServerException as error:
            return Answer(error=error)

    def start(self, model, arrays, **more):
        """A function that waits for the answer."""
        request = self.client.async_infer(model, tensors(http, arrays), **more)

        def answer():
            try:
                return Answer(request.get_result(timeout=PATIENCE_S))
            except InferenceServerException as error:
                return Answer(error=error)

        return answer


class Grpc:
    name, module = "gRPC", grpc

    def __init__(self, url):
        self.client = grpc.InferenceServerClient(url)

    def infer(self, model, arrays, outputs=None, **more):
        wanted = None if outputs is None else [grpc.InferRequestedOutput(name) for name in outputs]
        try:
            return Answer(self.client.infer(model, tensors(grpc, arrays), outputs=wanted, **more))
        except InferenceServerException as error:
            return Answer(error=error)

    def start(self, model, arrays, **more):
        answers = queue.Queue()
        self.client.async_infer(
            model, tensors(grpc, arrays), callback=lambda result, error: answers.put(Answer(result, error)), **more
        )
        return lambda: answers.get(timeout=PATIENCE_S)


class Stream:
    """A gRPC stream of its own: the responses of all that is asked on it, in the order in which they come."""

    def __init__(self, url):
        self.client = grpc.InferenceServerClient(url)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put(Answer(result, error)))

    def ask(self, model, arrays, **more):
        self.client.async_stream_infer(model, tensors(grpc, arrays), enable_empty_final_response=True, **more)

    def next(self):
        """An answer, and whether it is its request's last."""
        answer = self.answers.get(timeout=PATIENCE_S)
        if answer.error is not None:
            return answer, True
        return answer, answer.result.get_response().parameters["triton_final_response"].bool_param

    def all(self, model, arrays, **more):
        """The answers of one request, to its end; a bare end is none."""
        self.ask(model, arrays, **more)
        answers = []
        while True:
            answer, is_last = self.next()
            if answer.error is not None or answer.result.get_response().outputs:
                answers.append(answer)
            if is_last:
                return answers

    def stop(self, cancel=False):
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()


def both(http_url, grpc_url):
    return [Http(http_url), Grpc(grpc_url)]


def run(main):
    """Runs a script to its end: after a failure nobody waits for the threads of a stream that is left behind."""
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
