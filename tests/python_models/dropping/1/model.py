"""Leaves its requests in every way without their last responses; `later` ones it answers after its execution."""

import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("DONE", np.array([text], dtype=np.object_))])


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        return getattr(self, self.words(requests[0]))(requests)

    def words(self, request):
        return pb_utils.get_input_tensor_by_name(request, "DO").as_numpy().reshape(-1)[0].decode()

    def drop(self, requests):
        return None

    def drop_each(self, requests):
        return None if self.is_decoupled else [None for _ in requests]

    def drop_senders(self, requests):
        for request in requests:
            request.get_response_sender()

    def drop_after_response(self, requests):
        for request in requests:
            request.get_response_sender().send(response("one"))

    def drop_in_thread(self, requests):
        """The last reference is another thread's, and so is the response before it."""
        senders = [request.get_response_sender() for request in requests]
        threading.Thread(target=self.drop_after_response_of, args=(senders,)).start()

    def drop_after_response_of(self, senders):
        while senders:
            senders.pop().send(response("one"))

    def drop_in_coroutine(self, requests):
        async def fail():
            await asyncio.sleep(0.01)
            raise ValueError("a coroutine raised %d" % len(requests))

        return fail()

    def drop_from_list(self, requests):
        while requests:
            requests.pop()

    def lack_memory(self, requests):
        """The message of the last response does not fit into the memory that is left, once."""
        from nereid_python.wire import link

        def fail(kind, value):
            del link._packed
            raise MemoryError("none for a message")

        link._packed = fail
        self.send(requests, "now")

    def lack_memory_and_go_on(self, requests):
        try:
            self.lack_memory(requests)
        except MemoryError:
            pass

    def lack_memory_and_try_again(self, requests):
        self.lack_memory_and_go_on(requests)
        self.now(requests)

    def keep(self, requests):
        self.kept.extend(requests)

    def forget(self, requests):
        """Drops the kept requests, and answers its own."""
        self.kept.clear()
        return self.now(requests)

    def later(self, requests):
        """Keeps the requests alone; their senders are taken later, by another thread."""
        threading.Thread(target=self.send, args=(list(requests), "later")).start()

    def now(self, requests):
        self.send(requests, "now")

    def send(self, requests, text):
        for request in requests:
            request.get_response_sender().send(response(text), FINAL)
