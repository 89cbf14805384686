"""Does what its requests name with other models, and answers what came of it as JSON.

WHAT is the name of a function here, WITH its keyword arguments as JSON."""

import asyncio
import inspect
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils


def numbers(*values):
    return pb_utils.Tensor("IN", np.array(values, np.int32))


def request_for(model, inputs, outputs=("OUT",), **rest):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=inputs, requested_output_names=list(outputs), **rest
    )


def echo(*values, **rest):
    return request_for("echo", [numbers(*values)], **rest)


def told(response):
    """What a response says."""
    if response.has_error():
        return {"code": int(response.error().code()), "text": response.error().message()}
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def first(response):
    if response.has_error():
        raise RuntimeError(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()


def complaint(action):
    try:
        return repr(action())
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


class TritonPythonModel:
    def initialize(self, args):
        self.in_initialize = complaint(lambda: echo(1).exec())
        self.kept = []

    async def execute(self, requests):
        responses = []
        for request in requests:
            what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
            given = pb_utils.get_input_tensor_by_name(request, "WITH")
            given = {} if given is None else json.loads(given.as_numpy()[0])
            try:
                answer = getattr(self, what)(request, **given)
                if inspect.isawaitable(answer):
                    answer = await answer
            except Exception as error:
                responses.append(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError("%s: %s" % (type(error).__name__, error)))
                )
                continue
            out = np.array([json.dumps(answer).encode()], dtype=object)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses

    # Requests in all their forms.

    def one(self, request, version=-1):
        """Everything that a request may say, and what the called model saw of it."""
        texts = np.array(["one", "zwei", "três"], dtype=object)
        called = request_for(
            "echo",
            [numbers(1, 2, 3), pb_utils.Tensor("TEXT", texts)],
            ["OUT", "FACTS"],
            model_version=version,
            request_id="abc",
            correlation_id="sequence",
            flags=3,
            timeout=7_000_000,
            parameters={"number": 5, "flag": True, "text": "t"},
        )
        response = called.exec()
        answer = told(response)
        answer["FACTS"] = json.loads(answer["FACTS"][0])
        answer["parameters"] = json.loads(response.parameters())
        return answer

    def pruned(self, request):
        """Only what is asked for comes."""
        return [sorted(told(echo(1, outputs=outputs).exec())) for outputs in (["OUT"], ["FACTS"], [], ["OUT", "OUT"])]

    def failures(self, request):
        how = [b"raise", b"error", b"no outputs"]
        failing = [
            told(request_for("ailing", [pb_utils.Tensor("HOW", np.array([one], dtype=object))]).exec()) for one in how
        ]
        other = [
            request_for("nobody", [numbers(1)]),
            echo(1, model_version=7),
            request_for("echo", [numbers(1)], ["NONE"]),
            request_for("echo", []),
            request_for("echo", [numbers(1), numbers(2)]),
            request_for("echo", [pb_utils.Tensor("IN", np.zeros(1, np.float32))]),
            request_for("several", [numbers(1)]),
        ]
        return failing + [told(one.exec()) for one in other]

    def failures_of_iterators(self, request):
        how = pb_utils.Tensor("HOW", np.array([b"error"], dtype=object))
        several = [request_for("ailing", [how]), request_for("nobody", [numbers(1)]), echo(4)]
        return [[told(response) for response in one.exec(decoupled=True)] for one in several]

    def dying(self, request):
        how = pb_utils.Tensor("HOW", np.array([b"die"], dtype=object))
        return told(request_for("ailing", [how]).exec())

    def before_it_is_ready(self, request):
        return self.in_initialize

    # Many at a time.

    def in_a_row(self, request, count, size):
        total = 0
        for at in range(count):
            total += int(first(request_for("echo", [pb_utils.Tensor("IN", np.full(size, at, np.int32))]).exec()).sum())
        return total

    async def gathered(self, request, count, size):
        """#7888: calls of one model that are awaited together run together."""
        calls = [
            request_for("echo", [pb_utils.Tensor("IN", np.full(size, at, np.int32))]).async_exec()
            for at in range(count)
        ]
        responses = await asyncio.gather(*calls)
        return [len(responses), all((first(one) == at).all() for at, one in enumerate(responses))]

    async def together(self, request, place):
        """Two executions that wait for each other."""
        calls = [echo(at, parameters={"meet": place, "number": at}).async_exec() for at in (0, 1)]
        return [int(first(one)[0]) for one in await asyncio.gather(*calls)]

    def in_threads(self, request, threads, count, size):
        """#8882: calls from many threads, with tensors large and small, neither crash nor mix up what they carry."""
        wrong = []

        def work(thread):
            for at in range(count):
                value, length = thread * 100_000 + at, 1 + size * ((thread + at) % 3)
                called = request_for("echo", [pb_utils.Tensor("IN", np.full(length, value, np.int32))])
                got = first(called.exec())
                if len(got) != length or not (got == value).all():
                    wrong.append((thread, at))

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        return wrong

    # Decoupled.

    def several(self, count, size=1):
        inputs = [pb_utils.Tensor("COUNT", np.array([count], np.int32)), pb_utils.Tensor("SIZE", np.array([size], np.int32))]
        return request_for("several", inputs)

    def iterated(self, request, count, size=1):
        iterator = self.several(count, size).exec(decoupled=True)
        taken = [told(response).get("OUT", [None])[:1] for response in iterator]
        again = [told(response).get("OUT", [None])[:1] for response in iterator]
        return [taken, again == taken]

    async def iterated_in_threads(self, request, threads, count, size):
        """#8922: many decoupled calls at a time, awaited and blocking, whose iterators are read side by side."""
        wrong = []

        def check(which, iterator):
            got = [told(response).get("OUT") for response in iterator]
            want = [[at] * size for at in range(count)] + [None]
            if got != want:
                wrong.append([which, len(got)])

        def work(which):
            check(which, self.several(count, size).exec(decoupled=True))

        with ThreadPoolExecutor(2 * threads) as pool:
            loop = asyncio.get_running_loop()
            jobs = [loop.run_in_executor(pool, work, which) for which in range(threads)]
            awaited = await asyncio.gather(*[self.several(count, size).async_exec(decoupled=True) for _ in range(threads)])
            jobs += [loop.run_in_executor(pool, check, 1000 + at, one) for at, one in enumerate(awaited)]
            await asyncio.gather(*jobs)
        return wrong

    def cancelled(self, request):
        """An endless call ends once it is cancelled, and its iterator with it."""
        iterator = self.several(-1).exec(decoupled=True)
        taken = [told(next(iterator)) for _ in range(5)]
        iterator.cancel()
        rest = sum(1 for _ in iterator)
        return [len(taken), rest >= 1]

    def left(self, request, count):
        """An iterator that is dropped early holds nobody up; its slot serves others afterwards."""
        for _ in range(count):
            iterator = self.several(200, 100).exec(decoupled=True)
            next(iterator)
            del iterator
        return len([response for response in self.several(3).exec(decoupled=True)])

    # What lives longer than an execution.

    def later(self, request):
        """A thread that the model leaves behind calls after the execution has returned."""
        done = []
        thread = threading.Thread(target=lambda: (time.sleep(0.2), done.append(told(echo(9).exec()))))
        thread.start()
        self.kept.append((thread, done))
        return len(self.kept)

    def what_came_later(self, request):
        for thread, _ in self.kept:
            thread.join()
        return [done for _, done in self.kept]

    # Chains and sequences.

    def chain(self, request, model, depth):
        """Calls itself, or rather another instance, until the depth is reached."""
        if depth == 0:
            return 0
        given = json.dumps({"model": model, "depth": depth - 1}).encode()
        inputs = [
            pb_utils.Tensor("WHAT", np.array([b"chain"], dtype=object)),
            pb_utils.Tensor("WITH", np.array([given], dtype=object)),
        ]
        response = request_for(model, inputs).exec()
        return 1 + json.loads(first(response)[0])

    def passed_on(self, request, size):
        """What one model answers is another one's input, untouched."""
        response = request_for("echo", [pb_utils.Tensor("IN", np.arange(size, dtype=np.int32))]).exec()
        output = pb_utils.get_output_tensor_by_name(response, "OUT")
        again = pb_utils.Tensor.from_dlpack("IN", output.to_dlpack())
        return bool((first(request_for("echo", [again]).exec()) == np.arange(size)).all())

    def traced(self, request):
        return [told(echo(1, trace=request.trace()).exec()), told(echo(2).exec())]

    def traced_to_the_end(self, request):
        inputs = [pb_utils.Tensor(name, np.array([value], np.int32)) for name, value in (("COUNT", 2), ("SIZE", 1))]
        several = request_for("several", inputs, trace=request.trace()).exec(decoupled=True)
        return [told(response) for response in several]

    def sequences(self, request, names, steps):
        sums = {str(name): [] for name in names}
        for at in range(steps):
            flags = (1 if at == 0 else 0) | (2 if at == steps - 1 else 0)
            for name in names:
                called = request_for("accumulator", [numbers(at + 1)], correlation_id=name, flags=flags)
                sums[str(name)].append(int(first(called.exec())[0]))
        return sums

    # Models that control models.

    def control(self, request):
        said = [complaint(lambda: pb_utils.is_model_ready("echo"))]
        said.append(complaint(lambda: pb_utils.is_model_ready("nobody")))
        said.append(complaint(lambda: pb_utils.unload_model("echo")))
        said.append(complaint(lambda: pb_utils.is_model_ready("echo")))
        said.append(told(echo(1).exec())["text"])
        said.append(complaint(lambda: pb_utils.load_model("echo")))
        said.append(complaint(lambda: pb_utils.is_model_ready("echo", "1")))
        said.append(complaint(lambda: pb_utils.is_model_ready("echo", "2")))
        said.append(told(echo(1).exec()))
        said.append(complaint(lambda: pb_utils.load_model("nobody")))
        said.append(complaint(lambda: pb_utils.unload_model("nobody")))
        return said

    def replaced(self, request):
        """A model whose configuration and file come with the load."""
        config = {
            "backend": "python",
            "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
            "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
        }
        code = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() * 2)]) for r in requests]
"""
        pb_utils.load_model("doubler", config=json.dumps(config), files={"file:1/model.py": code})
        answer = told(request_for("doubler", [numbers(1, 2)]).exec())
        pb_utils.unload_model("doubler")
        return answer

    def control_refused(self, request):
        return [
            complaint(lambda: pb_utils.load_model("echo")),
            complaint(lambda: pb_utils.unload_model("echo")),
            complaint(lambda: pb_utils.is_model_ready("echo")),
        ]

    # Metrics and the log.

    def metrics(self, request):
        family = pb_utils.MetricFamily(
            name="caller_total", description="counted by a model", kind=pb_utils.MetricFamily.COUNTER
        )
        other = pb_utils.MetricFamily(name="caller_total", description="not this", kind=pb_utils.MetricFamily.COUNTER)
        counter, same, more = family.Metric(labels={"a": "b"}), other.Metric(labels={"a": "b"}), other.Metric(labels={})
        gauge_family = pb_utils.MetricFamily(name="caller_level", description="a level", kind=pb_utils.MetricFamily.GAUGE)
        gauge = gauge_family.Metric(labels={"x": 'quoted "text"'})
        histogram_family = pb_utils.MetricFamily(
            name="caller_times", description="times", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        histogram = histogram_family.Metric(labels={}, buckets=[0.5, 2])
        counter.increment(2)
        same.increment(1.5)
        more.increment(1)
        gauge.set(5)
        gauge.increment(-1.5)
        for value in (0.25, 1, 3):
            histogram.observe(value)
        self.kept = [family, other, counter, same, more, gauge_family, gauge, histogram_family, histogram]
        return [
            counter.value(),
            same.value(),
            gauge.value(),
            complaint(lambda: counter.increment(-1)),
            complaint(lambda: counter.set(1)),
            complaint(lambda: histogram.increment(1)),
            complaint(lambda: pb_utils.MetricFamily("caller_total", "x", pb_utils.MetricFamily.GAUGE)),
            complaint(lambda: pb_utils.MetricFamily("no name", "x", pb_utils.MetricFamily.GAUGE)),
        ]

    def forget(self, request):
        self.kept = []
        return None

    def log(self, request):
        pb_utils.Logger.log_info("information of the caller")
        pb_utils.Logger.log_warn("warning of the caller")
        pb_utils.Logger.log_error("error of the caller")
        pb_utils.Logger.log_verbose("detail of the caller")
        return inspect.currentframe().f_lineno
