"""What the server does for models: the log, metrics, and control of other models."""

import contextlib
import gc
import io
import sys
import threading
import unittest

import fake
import numpy as np
from nereid_python import control, logger, metrics, wire

import c_python_backend_utils as native
import triton_python_backend_utils as pb_utils

Logger = pb_utils.Logger
Family = pb_utils.MetricFamily


def line():
    return sys._getframe(1).f_lineno


class Log(unittest.TestCase):
    def test_levels_and_places(self):
        server = fake.Server()
        Logger.log("a"), Logger.log("b", Logger.WARNING), Logger.log(message="c", level=Logger.ERROR); here = line()  # noqa
        Logger.log("d", Logger.LogLevel.VERBOSE)
        Logger.log_info("e")
        Logger.log_warn("f")
        Logger.log_error("g")
        Logger.log_verbose(message="h")
        levels = [0, 1, 2, 3, 0, 1, 2, 3]
        lines = [here, here, here] + [here + at for at in range(1, 6)]
        expected = [("LOG", level, __file__, at, text, "") for level, at, text in zip(levels, lines, "abcdefgh")]
        self.assertEqual(server.told, expected)

    def test_the_request_that_this_thread_executes(self):
        server = fake.Server()
        for thread, expected in ((threading.get_ident(), "r1"), (0, "")):
            logger.executing = (thread, "r1")
            try:
                Logger.log_info("x")
            finally:
                logger.executing = None
            self.assertEqual(server.told.pop()[-1], expected)

    def test_arguments(self):
        fake.Server()
        for call in (
            lambda: Logger.log(None),
            lambda: Logger.log("x", None),
            lambda: Logger.log("x", 1),
            lambda: Logger.log_info(5),
            lambda: Logger.log_warn(None),
            lambda: Logger.log_error([]),
            lambda: Logger.log_verbose(1.5),
            lambda: Logger.log(),
        ):
            self.assertEqual(fake.outcome(call)[0], "TypeError")
        self.assertTrue(Logger.INFO == Logger.LogLevel.INFO == 0)

    def test_where_there_is_no_server(self):
        server = fake.Server()
        for name, value in (("is_connected", False), ("is_lost", True)):
            before = getattr(fake.link, name)
            setattr(fake.link, name, value)
            told = io.StringIO()
            with contextlib.redirect_stderr(told):
                Logger.log_error("early")
            setattr(fake.link, name, before)
            self.assertIn("%s:%d] early" % (__file__, line() - 2), told.getvalue())
        self.assertEqual(server.told, [])


class Metrics(unittest.TestCase):
    def setUp(self):
        # What an earlier test left does not drop its things here.
        gc.collect()
        self.server = fake.Server()
        self.values = {}
        self.numbers = iter(range(100, 10000))

        def answer(kind, payload):
            if kind == "METRIC_VALUE":
                return self.values.get(payload[0], (0.0, 1000))
            return next(self.numbers)

        self.server.answer = answer

    def families(self):
        return [Family("n", "d", kind) for kind in (Family.COUNTER, Family.GAUGE, Family.HISTOGRAM)]

    def test_families(self):
        kept = [Family("n", "d", Family.COUNTER), Family(name="g", description="", kind=native.MetricKind.GAUGE)]
        kept.append(Family("h", "d", Family.HISTOGRAM))
        expected = [("METRIC_FAMILY", "n", "d", 0), ("METRIC_FAMILY", "g", "", 1), ("METRIC_FAMILY", "h", "d", 2)]
        self.assertEqual(self.server.asked, expected)
        for arguments in ((None, "d", Family.COUNTER), ("n", None, Family.COUNTER), ("n", "d", 0), ("n", "d", None), ("n",)):
            self.assertEqual(fake.outcome(lambda: Family(*arguments))[0], "TypeError", arguments)
        self.server.answer = lambda kind, payload: wire.Refused(3, "Invalid metric name")
        text = "Error when creating MetricFamily: Invalid metric name"
        self.assertEqual(fake.outcome(lambda: Family("9", "", Family.COUNTER)), ("TritonModelException", text))
        gc.collect()
        self.assertEqual(self.server.told, [], "what was refused is not dropped")

    def test_metrics(self):
        counter, gauge, histogram = self.families()
        del self.server.asked[:]
        kept = [counter.Metric(), counter.Metric(labels={"a": "b", "c": "d"}), gauge.Metric(None, None)]
        kept.append(histogram.Metric({"x": "y"}, [1, 2.5]))
        kept.append(histogram.Metric(buckets=[]))
        self.assertEqual(
            self.server.asked,
            [
                ("METRIC", 100, (), None),
                ("METRIC", 100, (("a", "b"), ("c", "d")), None),
                ("METRIC", 101, (), None),
                ("METRIC", 102, (("x", "y"),), (1.0, 2.5)),
                ("METRIC", 102, (), ()),
            ],
        )
        failed = "Failed to create metric. "
        for family, arguments, text in (
            (counter, ([],), failed + "Labels must be a dictionary."),
            (counter, ([], 5), failed + "Labels must be a dictionary."),
            (counter, (None, 5), failed + "Buckets must be a list."),
            (gauge, (None, ()), failed + "Buckets must be a list."),
            (histogram, (None, (1.0,)), failed + "Buckets must be a list."),
            (counter, (None, []), failed + "Unexpected buckets found."),
            (gauge, (None, [1.0]), failed + "Unexpected buckets found."),
            (histogram, (), failed + "Missing required buckets."),
        ):
            self.assertEqual(fake.outcome(lambda: family.Metric(*arguments)), ("TritonModelException", text))
        self.assertEqual(fake.outcome(lambda: histogram.Metric(buckets=["x"]))[0], "TypeError")
        for labels in ({"a": 1}, {1: "a"}, {"a": None}):
            self.assertEqual(fake.outcome(lambda: counter.Metric(labels))[0], "TritonModelException")
        self.server.answer = lambda kind, payload: wire.Refused(3, "Invalid label name")
        text = "Error when creating Metric: Invalid label name"
        self.assertEqual(fake.outcome(lambda: counter.Metric({"a b": "c"})), ("TritonModelException", text))

    # By kind (the text says which): the operation, its argument, and what the core says of it.
    TABLE = [
        ("COUNTER", "increment", (2,), None),
        ("COUNTER", "increment", (0,), None),
        ("COUNTER", "increment", (True,), None),
        ("COUNTER", "increment", (-1,), "can only be incremented monotonically by non-negative values."),
        ("COUNTER", "set", (1,), "does not support Set"),
        ("COUNTER", "observe", (1,), "does not support Observe"),
        ("COUNTER", "value", (), None),
        ("GAUGE", "increment", (-2.5,), None),
        ("GAUGE", "set", (np.float32(3),), None),
        ("GAUGE", "observe", (1,), "does not support Observe"),
        ("GAUGE", "value", (), None),
        ("HISTOGRAM", "observe", (-1,), None),
        ("HISTOGRAM", "increment", (1,), "does not support Increment"),
        ("HISTOGRAM", "set", (1,), "does not support Set"),
        ("HISTOGRAM", "value", (), "does not support Value"),
    ]

    def test_operations(self):
        families = dict(zip(("COUNTER", "GAUGE", "HISTOGRAM"), self.families()))
        operations = {"increment": 0, "set": 1, "observe": 2}
        for kind, name, arguments, text in self.TABLE:
            metric = families[kind].Metric(buckets=[1.0] if kind == "HISTOGRAM" else None)
            del self.server.told[:]
            outcome = fake.outcome(lambda: getattr(metric, name)(*arguments))
            if text is not None:
                verb = "get" if name == "value" else name
                text = "Failed to %s metric value: TRITONSERVER_METRIC_KIND_%s %s" % (verb, kind, text)
                self.assertEqual(outcome, ("TritonModelException", text))
                self.assertEqual(self.server.told, [])
            elif name == "value":
                self.assertEqual(outcome, 0.0)
            else:
                changed = ("METRIC_CHANGE", metric._number, operations[name], float(arguments[0]))
                self.assertEqual((outcome, self.server.told), (None, [changed]))
        counter = families["COUNTER"].Metric()
        for value in ("x", None, "1", [], 1j):
            for name in operations:
                self.assertEqual(fake.outcome(lambda: getattr(counter, name)(value))[0], "TypeError", value)

    def test_a_value_waits_for_the_changes_before_it(self):
        gauge = Family("g", "", Family.GAUGE)
        metric = gauge.Metric()
        for value in (1, 2, 3):
            metric.set(value)
        applied = iter([(0.0, 0), (2.0, 2), (3.0, 3), (9.0, 9)])
        self.server.answer = lambda kind, payload: next(applied)
        self.assertEqual(metric.value(), 3.0)
        self.assertEqual(metric.value(), 9.0)
        self.server.answer = lambda kind, payload: (7.0, 0)
        self.assertEqual(metric.value(), 7.0, "changes that are lost do not hold anybody for ever")
        self.server.answer = lambda kind, payload: wire.Refused(1, "gone")
        self.assertEqual(fake.outcome(metric.value), ("TritonModelException", "Failed to get metric value: gone"))

    def test_lifetimes(self):
        family = Family("n", "d", Family.COUNTER)
        metric, other = family.Metric(), family.Metric()
        number = metric._number
        del metric
        gc.collect()
        self.assertEqual(self.server.told, [("METRIC_DROPPED", number)])
        family_number = family._number
        del family
        gc.collect()
        self.assertEqual(self.server.told[1:], [("FAMILY_DROPPED", family_number)])
        for name, verb, arguments in (("increment", "increment", (1,)), ("value", "get", ()), ("set", "set", (1,))):
            text = "Failed to %s metric value: %s" % (verb, metrics._GONE)
            self.assertEqual(fake.outcome(lambda: getattr(other, name)(*arguments)), ("TritonModelException", text))
        del other
        gc.collect()
        self.assertEqual(len(self.server.told), 2)

    def test_the_text_about_families_that_are_gone(self):
        text = "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object "
        self.assertEqual(
            metrics._GONE, text + "should be deleted AFTER its corresponding 'Metric' objects have been deleted."
        )


class Control(unittest.TestCase):
    def setUp(self):
        # What an earlier test left does not drop its things here.
        gc.collect()
        self.server = fake.Server()

    def test_what_is_asked(self):
        self.server.answer = lambda kind, payload: True if kind == "MODEL_READY" else None
        big = b"x" * 10000
        pb_utils.load_model("m")
        pb_utils.load_model(model_name="m", config="{}", files={"file:1/a": b"abc", "file:1/b": big})
        pb_utils.unload_model("m")
        pb_utils.unload_model("m", unload_dependents=True)
        self.assertIs(pb_utils.is_model_ready("m"), True)
        pb_utils.is_model_ready(model_name="m", model_version="3")
        place = (9, 0, 10000)
        self.assertEqual(self.server.memory[place], big)
        self.assertEqual(
            self.server.asked,
            [
                ("MODEL_LOAD", "m", "", ()),
                ("MODEL_LOAD", "m", "{}", (("file:1/a", b"abc"), ("file:1/b", place))),
                ("MODEL_UNLOAD", "m", False),
                ("MODEL_UNLOAD", "m", True),
                ("MODEL_READY", "m", -1),
                ("MODEL_READY", "m", 3),
            ],
        )
        self.assertEqual(pb_utils.get_model_dir(), "/models/probe/1")

    def test_versions(self):
        # The official 2.51 reads these so.
        for text, version in (("", -1), ("0", 0), ("1x", 1), (" 1", 1), ("+7", 7), ("1.5", 1)):
            pb_utils.is_model_ready("m", text)
            self.assertEqual(self.server.asked[-1][2], version)
        start = "Failed to check model readiness: failed to get model version from specified version string "
        end = ", version should be an integral value > 0"
        for text, details in (("-1", ""), ("abc", " (details: stoll)"), ("9" * 30, " (details: stoll)"), ("-", " (details: stoll)")):
            expected = start + "'" + text + "'" + details + end
            outcome = fake.outcome(lambda: pb_utils.is_model_ready("m", text))
            self.assertEqual(outcome, ("TritonModelException", expected))

    def test_refusals(self):
        self.server.answer = lambda kind, payload: wire.Refused(4, "why")
        for call, text in (
            (lambda: pb_utils.load_model("m"), "Failed to load model: why"),
            (lambda: pb_utils.unload_model("m"), "Failed to unload model: why"),
            (lambda: pb_utils.is_model_ready("m"), "Failed to check model readiness: why"),
        ):
            self.assertEqual(fake.outcome(call), ("TritonModelException", text))

    def test_arguments(self):
        text = "failed to load model 'm', files should be a dictionary of file paths and file contents"
        for files in (5, [], "x"):
            outcome = fake.outcome(lambda: pb_utils.load_model("m", files=files))
            self.assertEqual(outcome, ("TritonModelException", text))
        for call in (
            lambda: pb_utils.load_model(None),
            lambda: pb_utils.load_model("m", None),
            lambda: pb_utils.load_model("m", {}),
            lambda: pb_utils.load_model("m", "{}", {"file:a": "text"}),
            lambda: pb_utils.load_model("m", "{}", {1: b""}),
            lambda: pb_utils.unload_model(None),
            lambda: pb_utils.unload_model("m", None),
            lambda: pb_utils.is_model_ready(None),
            lambda: pb_utils.is_model_ready("m", None),
            lambda: pb_utils.is_model_ready("m", 1),
        ):
            self.assertEqual(fake.outcome(call)[0], "TypeError")
        self.assertEqual(self.server.asked, [])

    def test_before_initialize_and_in_finalize(self):
        control.close()
        for call in (
            lambda: pb_utils.load_model("m", "{}", {"file:a": b"x" * 10000}),
            lambda: pb_utils.unload_model("m"),
            lambda: pb_utils.is_model_ready("m"),
        ):
            kind, text = fake.outcome(call)
            self.assertEqual(kind, "TritonModelException")
            self.assertIn("are not controlled from auto_complete_config and finalize", text)
        self.assertEqual((self.server.asked, self.server.memory), ([], {}))


if __name__ == "__main__":
    unittest.main()
