"""The worker's main loop: it loads a model's code and executes the server's messages until the server ends it.

The rules of `execute` are those of contract/python_backend.md sections 2 and 6. Of the classes for models this module
uses, beside their public methods, `InferenceRequest.received(values, is_decoupled)`, `request.close(error)` and
`request.is_open()` (whether its sender may still answer), `request.answer(response)` (counts a returned response as one
of the sender's, or raises the sender's error), `request.is_rescheduled()`, and `response.pack(requested)`.
"""

import atexit
import faulthandler
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Coroutine

from . import logger, wire
from .errors import TritonModelException
from .wire import link


def main():
    """Runs the worker; returns its exit status."""
    watch_signals()
    # A crash in native code prints the interrupted Python code to the log's stream.
    if sys.stderr is not None:
        faulthandler.enable()
        # The server sends it while an execution does not return; interrupted system calls are restarted.
        faulthandler.register(signal.SIGRTMAX - 1, all_threads=True)
    link.connect(3)
    kind, value = link.receive()
    if kind == wire.COMPLETE:
        return complete(*value)
    worker = Worker()
    try:
        worker.initialize(*value)
    except BaseException as error:
        link.send(wire.FAILED, (describe(error),))
        return 1
    try:
        link.send(wire.INITIALIZED, (worker.watch_readiness(),))
        worker.run()
    except BaseException:
        # Also here: threads that the model has started would keep a process without a connection running.
        traceback.print_exc()
    leave(1)


def watch_signals():
    """Ignores the signals that end processes, because the server ends its workers itself. Processes of the model must
    not ignore them, or `terminate` would not end them: a handler, unlike SIG_IGN, is not inherited by programs."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)
        # Interrupted system calls of native code are restarted, as if nothing had come.
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=_unwatch_signals)


def _ignore(number, frame):
    pass


def _unwatch_signals():
    """In a process that was forked and runs no other program: the defaults, unless the model has set handlers."""
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _ignore:
            signal.signal(number, default)


def leave(status):
    """Ends the process, whatever else runs in it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            # The model may have closed or replaced it.
            pass
    os._exit(status)


def run_exit_functions():
    """Runs the functions that the interpreter runs at its end, which `leave` skips: by them engines end their processes
    and remove their shared memory. Threads of the model are not joined, except those of executors."""
    calls = [*reversed(getattr(threading, "_threading_atexits", ())), atexit._run_exitfuncs]
    for call in calls:
        try:
            call()
        except BaseException:
            traceback.print_exc()


def complete(path, module, paths, version_directory, config):
    """Runs a worker that only completes a configuration."""
    try:
        from . import control

        control.set_model_dir(version_directory)
        # Only a serving model may control other models.
        control.close()
        model = load(path, module, paths)
        completed = None
        if hasattr(model, "auto_complete_config"):
            from .config import ModelConfig

            given = ModelConfig(config)
            completed = model.auto_complete_config(given)
            if not isinstance(completed, ModelConfig):
                text = "auto_complete_config function in model '%s' must return a valid pb.ModelConfig object."
                raise Unfit(text % given.as_dict().get("name", ""))
            completed = json.dumps(completed.as_dict())
    except BaseException as error:
        link.send(wire.FAILED, (describe(error),))
        return 1
    link.send(wire.COMPLETED, (completed,))
    # The server sends a message when it has read that.
    link.receive()
    return 0


def load(path, name, paths):
    """The model's class. The module is `<version>.<name>`, so that it can import the files beside it."""
    sys.path.extend(one for one in paths if one not in sys.path)
    if not os.path.isfile(path):
        raise FileNotFoundError("Python model file not found in '%s'" % path)
    package, _, _ = name.rpartition(".")
    directory = os.path.dirname(path)
    if package and package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [directory]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.TritonPythonModel


def describe(error):
    """An error for operators and clients: its text, and its traceback, the innermost call first."""
    if isinstance(error, Unfit):
        return str(error)
    name = type(error).__name__
    try:
        text = "%s: %s" % (name, str(error) or "<EMPTY MESSAGE>")
    except Exception:
        text = name
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/nereid_python/" not in code.co_filename:
            frames.append("  %s(%d): %s" % (code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    if frames:
        text += "\n\nAt:\n" + "\n".join(reversed(frames)) + "\n"
    return text


class Unfit(Exception):
    """A model returned a wrong value. It is reported without a traceback, which would not contain the cause."""


class _Unsendable(Exception):
    """A model returned a value that cannot be sent."""


def packed(response, request):
    """The form of a response in messages, with the outputs that the request's client wants."""
    try:
        return response.pack(request._facts[6])
    except (wire.Refused, TritonModelException) as error:
        raise _Unsendable(str(error)) from None


async def outcome(coroutine):
    """The result of a coroutine, and its exception. SystemExit and KeyboardInterrupt must not reach the event loop:
    they would end its thread, and the result would never arrive."""
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def run_for_good(loop):
    """Runs an event loop until the process ends. A task of the model that raises SystemExit stops the loop; the other
    tasks continue."""
    from asyncio import set_event_loop

    set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
        except BaseException:
            traceback.print_exc()


DROPPED = (
    "Failed to process the request(s) for model '%s', message: the model has dropped the request without its last "
    "response; return a response from execute, or send one through the request's response sender, with "
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL for the last one"
)


class Worker:
    """One instance of a model."""

    def initialize(self, path, module, paths, version_directory, arguments, is_decoupled):
        from . import calls, control, request, response

        self.InferenceRequest = request.InferenceRequest
        self.InferenceResponse = response.InferenceResponse
        self.path = path
        self.arguments = dict(arguments)
        self.name = self.arguments["model_instance_name"]
        self.is_decoupled = is_decoupled
        self.if_dropped = DROPPED % self.name
        self.loop = None
        control.set_model_dir(version_directory)
        self.model = load(path, module, paths)()
        self.execute = getattr(self.model, "execute", None)
        if self.execute is None:
            raise NotImplementedError("Python model %s does not implement `execute` method." % path)
        if hasattr(self.model, "initialize"):
            self.model.initialize(self.arguments)
            # The model may have set another one.
            self.execute = self.model.execute
        calls.allow(True)

    def watch_readiness(self):
        """Starts the thread that answers readiness queries; returns its slot, or None if the model has no
        `is_ready`."""
        if not hasattr(self.model, "is_ready"):
            return None
        slot = link.open_slot()
        threading.Thread(target=self.answer_readiness, args=(slot,), name="is-ready", daemon=True).start()
        return slot.number

    def answer_readiness(self, slot):
        while True:
            number = slot.wait()
            try:
                is_ready, wrong = self.model.is_ready(), None
                if isinstance(is_ready, Coroutine):
                    import asyncio

                    is_ready = asyncio.run(is_ready)
                if not isinstance(is_ready, bool):
                    is_ready, wrong = None, "is_ready() must return a boolean value"
            except BaseException as error:
                is_ready, wrong = None, describe(error)
            try:
                link.send(wire.READY, (number, is_ready, wrong))
            except BaseException:
                # Without this thread no query would be answered any more.
                wire.fail()

    def run(self):
        receive = link.receive
        while True:
            kind, value = receive()
            if kind == wire.BATCH:
                if value[0]:
                    link.take_back(value[0])
                # No reference to the message is left here, because references are counted after the execution.
                self.received = value[1]
                value = None
                self.batch()
            elif kind == wire.SWEEP:
                link.take_back(value[0])
                link.send(wire.DONE, ([], link.sweep(sys.maxsize)))
            elif kind == wire.FREED:
                link.forget(value[0])
            elif kind == wire.FINALIZE:
                self.finalize()
                leave(0)

    def batch(self):
        """Executes the requests of one batch and sends their results."""
        is_decoupled = self.is_decoupled
        make = self.InferenceRequest.received
        requests = [make(values, is_decoupled) for values in self.received]
        self.received = None
        request_id = requests[0].request_id() if len(requests) == 1 else ""
        if request_id:
            logger.executing = (threading.get_ident(), request_id)
        try:
            # The model may change its list.
            kind, said = wire.DONE, (self.results(requests, self.call(requests[:])),)
        except BaseException as error:
            kind, said = wire.BATCH_FAILED, self.failure(requests, error)
        if request_id:
            logger.executing = None
        # Before references are counted: drops the requests; with an error, its traceback is dropped already.
        requests = None
        link.conclude(kind, said + (link.sweep() if link.held or link.kept or link.released else (),))

    def failure(self, requests, error):
        """The result of a batch with a failed execution: the unanswered requests fail with it."""
        text = "Failed to process the request(s) for model '%s', message: %s" % (self.name, describe(error))
        if isinstance(error, _Unsendable):
            # The model has finished.
            text = "Failed to process the request(s) for model instance '%s', message: %s" % (self.name, error)
        failed = []
        for at, request in enumerate(requests):
            if request.close():
                failed.append(at)
                request.follow()
        return text, failed

    def call(self, requests):
        returned = self.execute(requests)
        if returned is None or type(returned) is list or not isinstance(returned, Coroutine):
            return returned
        # Imported late: most models never need it, and its import is slow.
        import asyncio

        if self.is_decoupled:
            asyncio.run_coroutine_threadsafe(self.watch(returned), self.background())
            return None
        result, error = asyncio.run_coroutine_threadsafe(outcome(returned), self.background()).result()
        if error is not None:
            raise error
        return result

    async def watch(self, coroutine):
        """A decoupled model's coroutine: execute does not wait for it, so its error is only logged."""
        _, error = await outcome(coroutine)
        if error is not None:
            from .logger import Logger

            Logger.log_error("the coroutine of '%s' failed: %s" % (self.name, describe(error)))

    def background(self):
        """The loop of coroutines, on a thread of its own: tasks that they start continue between executions."""
        if self.loop is None:
            from asyncio import new_event_loop

            self.loop = new_event_loop()
            threading.Thread(target=run_for_good, args=(self.loop,), name="event-loop", daemon=True).start()
        return self.loop

    def results(self, requests, returned):
        """One result for each request: a packed response, None if the sender answers, True to execute once more."""
        if self.is_decoupled:
            if returned is not None:
                text = "Python model '%s' is using the decoupled mode and the execute function must return None."
                raise Unfit(text % self.arguments["model_name"])
            return [self.rescheduled(request) for request in requests]
        if returned is None:
            returned = [None] * len(requests)
        elif not isinstance(returned, list):
            raise Unfit("Expected a list in the execute return, found type '%s'." % type(returned))
        elif len(returned) != len(requests):
            text = "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            text += "InferenceRequest(s) size is:%d, and InferenceResponse(s) size is:%d\n"
            raise Unfit(text % (len(requests), len(returned)))
        results = []
        try:
            self.pack(requests, returned, results)
        except BaseException:
            for result in results:
                if type(result) is tuple:
                    link.discard(result[0])
            raise
        return results

    def rescheduled(self, request):
        """The result of a decoupled model's request."""
        if not request.is_rescheduled():
            request.leave_to_sender(self.if_dropped)
            return None
        # The server gets it back as one without further responses.
        request.follow()
        return True

    def pack(self, requests, returned, results):
        """Appends the results for the value of `execute`. The first wrong one fails all of them."""
        response_class = self.InferenceResponse
        for request, response in zip(requests, returned):
            if type(response) is response_class and request.is_plain():
                results.append(packed(response, request))
            elif request.is_rescheduled():
                if response is not None:
                    text = "Expected a None object in the execute function return list for reschduled request, "
                    text += "found type '%s'."
                    raise Unfit(text % type(response))
                results.append(True)
            elif response is None:
                request.leave_to_sender(self.if_dropped)
                results.append(None)
            elif isinstance(response, response_class):
                request.answer(response)
                results.append(packed(response, request))
            else:
                text = "Expected an 'InferenceResponse' object in the execute function return list, found type '%s'."
                raise Unfit(text % type(response))

    def finalize(self):
        from . import calls, control

        # Calls under way continue, but no new calls of other models are allowed.
        calls.allow(False)
        control.close()
        if hasattr(self.model, "finalize"):
            try:
                self.model.finalize()
            except BaseException as error:
                from .logger import Logger

                Logger.log_error("Failed to finalize '%s': %s" % (self.name, describe(error)))
        # The model's destructors and exit functions may still write to the log and delete metrics.
        self.model = self.execute = None
        run_exit_functions()
        link.send(wire.FINALIZED, ())
