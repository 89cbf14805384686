"""Requests to other models: what is told, in all forms of calling, and what becomes of calls that are left."""

import asyncio
import gc
import os
import threading
import unittest
import unittest.mock

import fake
import numpy as np
from nereid_python import calls, kinds, wire

import triton_python_backend_utils as pb_utils


def answer(*values):
    """A response with one output."""
    return ((fake.tensor("OUT", np.array(values, np.int32)),), (), None)


def request(**changes):
    arguments = dict(
        inputs=[pb_utils.Tensor("IN", np.arange(2, dtype=np.int8))], requested_output_names=["OUT"], model_name="m"
    )
    arguments.update(changes)
    return pb_utils.InferenceRequest(**arguments)


def values(response):
    return [output.as_numpy().tolist() for output in response.output_tensors()]


class Interrupt(BaseException):
    pass


async def again():
    return values(await request().async_exec())


class Calls(unittest.TestCase):
    def setUp(self):
        # What an earlier test left does not drop its things here.
        gc.collect()
        self.server = fake.Server()
        calls._left.clear()

    def answering(self, *answers):
        self.server.called = lambda slot, message: slot.put(*answers)

    def told(self, name):
        return [told[1:] for told in self.server.told if told[0] == name]

    def test_the_message(self):
        self.answering((answer(1), True))
        outer = fake.request(token=77, trace="{}")
        memory = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
        made = request(
            request_id="i",
            correlation_id="seq",
            model_version=2,
            flags=1,
            timeout=9,
            preferred_memory=memory,
            trace=outer.trace(),
            parameters={"p": True},
        )
        made.set_flags(3)
        made.exec()
        request().exec(decoupled=True)
        inputs = (("IN", 6, (2,), b"\0\1"),)
        first, second = self.told("CALL")
        self.assertEqual(first[1:], (0, "m", 2, "i", "seq", 3, 9, (("p", True),), ("OUT",), inputs, 77, False, (2, 1)))
        self.assertEqual(second[1:], (1, "m", -1, "", 0, 0, 0, (), ("OUT",), inputs, None, True, None))
        self.assertEqual(second[0], first[0] + 1)

    def test_one_response(self):
        self.answering((answer(1, 2), True))
        self.assertEqual(values(request().exec()), [[1, 2]])
        self.assertEqual((self.server.closed, [told[0] for told in self.server.told]), ([0], ["CALL"]))

    def test_all_errors_are_responses(self):
        for given, code, text in (
            ((((), (), (3, "bad")), True), pb_utils.TritonError.INVALID_ARG, "bad"),
            (wire.Refused(4, "no memory"), pb_utils.TritonError.UNAVAILABLE, "no memory"),
            ((None, True), pb_utils.TritonError.INTERNAL, "Unexpected empty response."),
        ):
            self.answering(given)
            response = request().exec()
            self.assertEqual((response.error().code(), response.error().message()), (code, text))
        self.answering(wire.Refused(4, "no memory"))
        self.assertEqual([one.error().message() for one in request().exec(decoupled=True)], ["no memory"])
        self.assertEqual(self.server.closed, [0, 1, 2, 3])

    def test_when_models_may_be_called(self):
        calls.allow(False)
        expected = ("TritonModelException", "BLS is only supported during the 'execute' function.")
        self.assertEqual(fake.outcome(lambda: request().exec()), expected)
        self.assertEqual(fake.outcome(lambda: request().exec(decoupled=True)), expected)
        self.assertEqual(self.server.told, [])
        for decoupled in (None, "yes", 1.5):
            self.assertEqual(fake.outcome(lambda: request().exec(decoupled))[0], "TypeError")

    def test_what_cannot_be_sent_is_not_called(self):
        bad = pb_utils.Tensor("IN", np.array(["\ud800"], dtype=object))
        self.assertEqual(fake.outcome(lambda: request(inputs=[bad]).exec())[0], "TritonModelException")
        self.assertEqual((self.server.slots, self.server.told), ([], []))

        def refuse():
            raise wire.Refused(4, "a worker may wait for 4096 answers at a time")

        fake.link.open_slot = refuse
        kind, text = fake.outcome(lambda: request().exec())
        self.assertEqual(kind, "TritonModelException")
        self.assertTrue(text.startswith("An error occurred while performing BLS request. a worker may wait"), text)

    def test_the_iterator(self):
        for last in ((answer(3), True), (None, True)):
            self.answering((answer(1), False), (answer(2), False), last)
            responses = request().exec(decoupled=True)
            expected = [[[1]], [[2]], [[3]] if last[0] else []]
            self.assertEqual([values(response) for response in responses], expected)
            outcome = fake.outcome(lambda: next(responses))
            self.assertEqual(outcome, ("StopIteration", "Iteration is done for the responses."))
            # Again from the start, as often as one likes.
            for _ in range(2):
                self.assertEqual([values(response) for response in responses], expected)
            self.assertFalse(list(responses)[-1].has_error())
        self.assertEqual(self.server.closed, [0, 1])

    def test_iterating_anew_before_the_end_goes_on(self):
        self.answering((answer(1), False), (answer(2), False), (answer(3), True))
        responses = request().exec(decoupled=True)
        self.assertEqual(values(next(iter(responses))), [[1]])
        self.assertEqual([values(response) for response in responses], [[[2]], [[3]]])
        self.assertEqual(len(list(responses)), 3)

    def test_one_response_of_a_model_that_is_not_decoupled(self):
        self.answering((answer(5), True))
        self.assertEqual([values(response) for response in request().exec(decoupled=True)], [[[5]]])

    def test_cancel(self):
        self.answering((answer(1), False))
        responses = request().exec(decoupled=True)
        next(responses)
        responses.cancel()
        (call,) = self.told("CALL")
        self.assertEqual(self.told("CALL_CANCEL"), [(call[0],)])
        self.server.slots[0].put((((), (), (7, "cancelled")), True))
        self.assertEqual(next(responses).error().code(), pb_utils.TritonError.CANCELLED)
        responses.cancel()
        self.assertEqual(len(self.told("CALL_CANCEL")), 1)

    def test_what_is_taken_is_told(self):
        count = 3 * kinds.WINDOW
        self.answering(*[(answer(at), False) for at in range(count)])
        responses = request().exec(decoupled=True)
        for _ in range(count):
            next(responses)
        self.assertEqual(sum(taken for _, taken in self.told("CALL_TOOK")), count)
        self.assertTrue(all(taken <= kinds.WINDOW // 2 for _, taken in self.told("CALL_TOOK")))

    def test_what_is_taken_is_told_before_waiting(self):
        self.answering((answer(1), False))
        responses = request().exec(decoupled=True)
        next(responses)
        self.assertEqual(self.told("CALL_TOOK"), [])
        slot = self.server.slots[0]
        waited = slot.wait

        def wait():
            self.assertEqual([taken for _, taken in self.told("CALL_TOOK")], [1])
            slot.put((None, True))
            return waited()

        slot.wait = wait
        self.assertEqual(values(next(responses)), [])

    def test_who_drops_an_iterator_leaves_the_rest_to_the_server(self):
        self.answering((answer(1), False), (answer(2), False))
        responses = request().exec(decoupled=True)
        next(responses)
        del responses
        gc.collect()
        (call,) = self.told("CALL")
        self.assertEqual((self.told("CALL_DROPPED"), self.server.closed), ([(call[0],)], []))
        # Its slot serves nobody before the last answer is there.
        self.answering((answer(9), True))
        request().exec()
        self.assertEqual(self.server.closed, [1])
        self.server.slots[0].put((None, True))
        request().exec()
        self.assertEqual(self.server.closed, [1, 0, 2])
        self.assertEqual(len(self.told("CALL_DROPPED")), 1)

    def test_memory_of_the_servers_is_kept_until_the_call_is_over(self):
        data = self.server.share(b"\1" * 8000)
        made = request(inputs=fake.request([("IN", 2, (8000,), data)]).inputs())
        self.answering((answer(1), False))
        for drop in (False, True):
            responses = made.exec(decoupled=True)
            inputs = responses._call._inputs
            self.assertIs(inputs[0][3], data)
            if drop:
                del responses
                self.assertIs(calls._left[0][1], inputs)
            else:
                self.server.slots[0].put((None, True))
                list(responses)
                self.assertIsNone(responses._call._inputs)

    def test_an_iterator_that_ended_drops_nothing(self):
        self.answering((answer(1), True))
        list(request().exec(decoupled=True))
        unread = request().exec(decoupled=True)
        del unread
        gc.collect()
        self.assertEqual(len(self.told("CALL_DROPPED")), 1)

    def test_hundreds_at_a_time_from_threads(self):
        lock = threading.Lock()
        waiting = []

        def called(slot, message):
            with lock:
                waiting.append((slot, message[10][0][3]))
                if len(waiting) == 200:
                    for other, data in reversed(waiting):
                        other.put((((("OUT", 6, (1,), data),), (), None), True))

        self.server.called = called
        results = {}

        def call(number):
            tensor = pb_utils.Tensor("IN", np.array([number], np.uint8).view(np.int8))
            results[number] = values(request(inputs=[tensor]).exec())[0][0] % 256

        threads = [threading.Thread(target=call, args=(number,)) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, {number: number for number in range(200)})
        self.assertEqual(sorted(self.server.closed), list(range(200)))


class Awaited(unittest.TestCase):
    def setUp(self):
        # What an earlier test left does not drop its things here.
        gc.collect()
        self.server = fake.Server()
        calls._left.clear()

    def told(self, name):
        return [told[1:] for told in self.server.told if told[0] == name]

    def test_it_needs_a_running_loop(self):
        self.assertEqual(fake.outcome(lambda: request().async_exec()), ("RuntimeError", "no running event loop"))
        self.assertEqual(self.server.told, [])

    def test_the_request_is_on_its_way_at_once(self):
        async def run():
            future = request().async_exec()
            self.assertEqual(len(self.told("CALL")), 1)
            await asyncio.sleep(0)
            self.assertFalse(future.done())
            self.server.calling[0].put((answer(4), True))
            return values(await future)

        self.assertEqual(asyncio.run(run()), [[4]])
        # That of the call, then that of the loop's bell.
        self.assertEqual(self.server.closed, [1, 0])

    def test_many_at_a_time(self):
        def called(slot, message):
            if len(self.server.calling) == 300:
                for at, other in reversed(list(enumerate(self.server.calling))):
                    other.put((answer(at), True))

        self.server.called = called

        async def run():
            responses = await asyncio.gather(*[request().async_exec() for _ in range(300)])
            return [values(response)[0][0] for response in responses]

        self.assertEqual(asyncio.run(run()), list(range(300)))
        self.assertEqual(sorted(self.server.closed), list(range(301)))
        # The loop did not run meanwhile.
        self.assertEqual([slot.rings for slot in self.server.slots], [1] + 300 * [0])

    def test_answers_that_come_one_by_one_wake_the_loop_each_time(self):
        async def run():
            futures = [request().async_exec() for _ in range(3)]
            for at in (2, 0, 1):
                self.server.calling[at].put((answer(at), True))
                self.assertEqual(values(await futures[at]), [[at]])
            return self.server.slots[0].rings

        self.assertEqual(asyncio.run(run()), 3)

    def test_an_answer_that_comes_while_others_are_taken_is_not_lost(self):
        async def run():
            first, second = request().async_exec(), request().async_exec()
            bell, taken = self.server.slots[0], self.server.calling[0].poll

            def poll():
                # The server sees that the loop does not sleep.
                self.assertFalse(bell.is_wanted)
                self.server.calling[1].put((answer(2), True))
                return taken()

            self.server.calling[0].poll = poll
            self.server.calling[0].put((answer(1), True))
            said = [values(response) for response in await asyncio.gather(first, second)]
            return said, bell.rings

        self.assertEqual(asyncio.run(run()), ([[[1]], [[2]]], 1))

    def test_loops_on_threads_of_their_own_have_a_bell_each(self):
        self.server.called = lambda slot, message: slot.put((answer(message[0]), True))
        results = {}

        async def run():
            return [values(await request().async_exec())[0][0] for _ in range(20)]

        threads = [threading.Thread(target=lambda at=at: results.update({at: asyncio.run(run())})) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = sorted(number for at in results for number in results[at])
        self.assertEqual(numbers, sorted(call[0] for call in self.told("CALL")))
        self.assertEqual(sorted(self.server.closed), list(range(8 * 21)))

    def test_a_loop_that_runs_again_keeps_its_bell(self):
        self.server.called = lambda slot, message: slot.put((answer(1), True))

        async def run():
            return values(await request().async_exec())

        loop = asyncio.new_event_loop()
        for _ in range(3):
            self.assertEqual(loop.run_until_complete(run()), [[1]])
        self.assertEqual((len(self.server.slots), len(calls._bells)), (4, 1))
        loop.close()
        self.assertEqual((sorted(self.server.closed), len(calls._bells)), ([0, 1, 2, 3], 0))

    def test_an_iterator_comes_with_its_first_response(self):
        async def run():
            future = request().async_exec(decoupled=True)
            self.server.calling[0].put((answer(1), False))
            responses = await future
            self.assertEqual(values(responses._responses[0]), [[1]])
            # Its other responses are waited for by a thread.
            self.assertIsNone(self.server.calling[0].rings_at)
            self.server.calling[0].put((answer(2), True))
            return [values(response) for response in responses]

        self.assertEqual(asyncio.run(run()), [[[1]], [[2]]])
        self.assertEqual(self.server.closed, [1, 0])

    def test_bells_without_an_answer(self):
        async def run():
            future = request().async_exec()
            slot = self.server.calling[0]
            self.server.slots[0].ring(is_due=True)
            await asyncio.sleep(0.01)
            self.assertFalse(future.done())
            slot.put((answer(4), True))
            return values(await future)

        self.assertEqual(asyncio.run(run()), [[4]])

    def test_a_loop_that_a_task_stops_may_call_the_bell_twice(self):
        events, wrong = asyncio.new_event_loop(), []
        self.addCleanup(events.close)
        events.set_exception_handler(lambda _, context: wrong.append(context))

        async def stops():
            raise SystemExit(3)

        async def asks():
            future = request().async_exec()
            # A read that would block raises.
            os.set_blocking(self.server.slots[0].fd, False)
            stopping = asyncio.ensure_future(stops())
            # It rings before the loop runs again: the loop stops with the bell's callback in line, and adds it once
            # more when it runs again.
            self.server.calling[0].put((answer(1), True))
            said = values(await future)
            return said, type(stopping.exception())

        task = events.create_task(asks())
        with self.assertRaises(SystemExit):
            events.run_forever()
        self.assertFalse(task.done())
        self.assertEqual(events.run_until_complete(task), ([[1]], SystemExit))
        self.server.called = lambda slot, message: slot.put((answer(2), True))
        self.assertEqual(events.run_until_complete(again()), [[2]])
        self.assertEqual((wrong, self.server.slots[0].rings), ([], 2))

    def test_what_interrupts_the_bell_leaves_no_call_waiting(self):
        for name in ("_answered", "_take_answers"):
            for error in (MemoryError, Interrupt):
                self.interrupted(name, error)

    def interrupted(self, name, error):
        """The bell's callback is interrupted once, where it calls this."""
        server = self.server = fake.Server()
        done, wrong, usual = [], [], getattr(calls._LoopBell, name)

        def once(bell):
            if not done:
                done.append(True)
                # As if the server had found the loop awake.
                bell.slot.refuse_bell()
                server.calling[1].put((answer(2), True))
                raise error
            return usual(bell)

        events = asyncio.new_event_loop()
        events.set_exception_handler(lambda _, context: wrong.append(type(context["exception"])))
        self.addCleanup(events.close)

        async def run():
            futures = [request().async_exec() for _ in range(2)]
            # A read that would block raises.
            os.set_blocking(server.slots[0].fd, False)
            server.calling[0].put((answer(1), True))
            said = [values(response) for response in await asyncio.gather(*futures)]
            server.called = lambda slot, message: slot.put((answer(3), True))
            return said, await again()

        task = events.create_task(run())
        with unittest.mock.patch.object(calls._LoopBell, name, once):
            try:
                said = events.run_until_complete(asyncio.wait_for(task, 60))
            except Interrupt:
                wrong.append(Interrupt)
                said = events.run_until_complete(asyncio.wait_for(task, 60))
        self.assertEqual((wrong, said), ([error], ([[[1]], [[2]]], [[3]])))

    def test_errors_are_responses(self):
        async def run():
            future = request().async_exec()
            self.server.calling[0].put(wire.Refused(4, "no memory"))
            return (await future).error().message()

        self.assertEqual(asyncio.run(run()), "no memory")

    def test_who_cancels_leaves_the_call(self):
        async def run():
            future = request().async_exec()
            await asyncio.sleep(0)
            future.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await future
            await asyncio.sleep(0)
            gc.collect()
            # Nobody listens to its slot any more.
            self.server.calling[0].put((None, True))
            await asyncio.sleep(0.01)

        asyncio.run(run())
        gc.collect()
        self.assertEqual(len(self.told("CALL_DROPPED")), 1)
        self.assertEqual(self.server.closed, [0])
        self.server.called = lambda slot, message: slot.put((answer(1), True))
        request().exec()
        self.assertEqual(self.server.closed, [0, 1, 2])

    def test_a_loop_that_ends_leaves_its_calls(self):
        async def run():
            request().async_exec()

        asyncio.run(run())
        gc.collect()
        self.assertEqual(len(self.told("CALL_DROPPED")), 1)

    def test_a_timeout(self):
        async def run():
            try:
                await asyncio.wait_for(request().async_exec(), 0.01)
            except asyncio.TimeoutError:
                return "late"

        self.assertEqual(asyncio.run(run()), "late")
        gc.collect()
        self.assertEqual(len(self.told("CALL_DROPPED")), 1)


if __name__ == "__main__":
    unittest.main()
