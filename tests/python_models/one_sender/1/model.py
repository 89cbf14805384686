"""One thread answers all requests in turns: COUNT responses of SIZE numbers for each, as engines of language models do."""

import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.arrivals = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            count, size = [int(tensor.as_numpy()[0]) for tensor in request.inputs()]
            self.arrivals.put((request.get_response_sender(), count, size))

    def answer(self):
        under_way = []
        while True:
            while not under_way or not self.arrivals.empty():
                arrival = self.arrivals.get()
                if arrival is None:
                    return
                under_way.append([*arrival, 0])
            for one in under_way:
                sender, count, size, number = one
                if number == count:
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                else:
                    values = np.full(size, number, dtype=np.int32)
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
                one[3] += 1
            under_way = [one for one in under_way if one[3] <= one[1]]

    def finalize(self):
        self.arrivals.put(None)
        self.thread.join()
