"""Tensor: its constructor, its views, and what of it goes into messages."""

import unittest

import fake
import numpy as np
from nereid_python import strings, tensor

import triton_python_backend_utils as pb_utils

Tensor = pb_utils.Tensor


def values(*shape, **kind):
    return np.arange(int(np.prod(shape)), **kind).reshape(shape)


class Constructor(unittest.TestCase):
    def test_every_type_has_its_number_and_stays_itself(self):
        for number in range(1, 13):
            array = values(2, 3).astype(pb_utils.triton_to_numpy_type(number))
            made = Tensor("x", array)
            self.assertEqual((made.name(), made.shape(), made.triton_dtype(), made.is_cpu()), ("x", [2, 3], number, True))
            self.assertIs(made.as_numpy(), array)
            self.assertIs(type(made.shape()), list)
            self.assertIs(type(made.triton_dtype()), int)
        for array in (np.array([b"a", "b"], dtype=object), np.array([b"ab"])):
            made = Tensor("x", array)
            self.assertEqual(made.triton_dtype(), 13)
            self.assertIs(made.as_numpy(), array)

    def test_platform_names_of_the_same_types(self):
        for code, number in (("q", 9), ("l", 9), ("Q", 5), ("L", 5), ("i", 8), ("?", 1), ("e", 10)):
            self.assertEqual(Tensor("x", np.zeros(1, dtype=code)).triton_dtype(), number)

    def test_shapes(self):
        for shape in ((), (0,), (0, 3), (1,), (2, 1, 3)):
            self.assertEqual(Tensor("x", np.zeros(shape, np.int8)).shape(), list(shape))

    def test_what_is_not_in_c_order_is_copied(self):
        array = values(2, 3, dtype=np.float32)
        for other in (array.T, array[:, ::2], array[::-1], np.asfortranarray(array)):
            made = Tensor("x", other)
            self.assertIsNot(made.as_numpy(), other)
            self.assertTrue(made.as_numpy().flags.c_contiguous)
            self.assertEqual(made.as_numpy().tolist(), other.tolist())
        self.assertEqual(Tensor("x", np.broadcast_to(np.int8(7), (2, 2))).as_numpy().tolist(), [[7, 7], [7, 7]])

    def test_errors(self):
        array = values(2, dtype=np.float32)
        unsupported = ("TritonModelException", "NumPy dtype is not supported.")
        # Texts of fixed width too: Triton's stub takes arrays of objects, and of numpy's own strings bytes alone.
        for other in (np.complex64, ">f4", "datetime64[s]", "V4", "U4", "U0"):
            self.assertEqual(fake.outcome(lambda: Tensor("x", np.zeros(1, dtype=other))), unsupported, other)
        record = np.zeros(1, dtype=[("a", "i4")])
        self.assertEqual(fake.outcome(lambda: Tensor("x", record)), unsupported)
        self.assertEqual(
            fake.outcome(lambda: Tensor("", array)), ("TritonModelException", "Tensor name cannot be an empty string.")
        )
        for arguments in ((), ("x",), (None, array), ("x", None), ("x", [1, 2]), ("x", np.float32(3)), (5, array)):
            self.assertEqual(fake.outcome(lambda: Tensor(*arguments))[0], "TypeError", arguments)
        self.assertEqual(fake.outcome(lambda: Tensor("x", array, 3))[0], "TypeError")
        self.assertEqual(Tensor(b"x", array).name(), "x")


class Received(unittest.TestCase):
    def setUp(self):
        self.server = fake.Server()

    def test_small_numbers_are_a_copy_to_write_to(self):
        array = values(2, 3, dtype=np.int16)
        wire = fake.tensor("x", array)
        made = fake.received(wire)
        self.assertEqual((made.name(), made.shape(), made.triton_dtype()), ("x", [2, 3], 7))
        view = made.as_numpy()
        self.assertEqual(view.tolist(), array.tolist())
        self.assertIs(made.as_numpy(), view)
        view[0, 0] = 77
        self.assertEqual(tensor.outgoing(made)[3], view.tobytes())
        self.assertEqual(wire[3], array.tobytes())

    def test_shared_numbers_are_a_view(self):
        array = values(500, 3, dtype=np.float64)
        data = self.server.share(array.tobytes())
        made = fake.received(("x", 12, (500, 3), data))
        self.assertEqual(self.server.held, [data])
        made.as_numpy()[0, 0] = 5.5
        self.assertEqual(self.server.memory[data].view(np.float64)[0], 5.5)
        # What is passed on is where it was, with what was written to it.
        self.assertEqual(tensor.outgoing(made), ("x", 12, (500, 3), data))

    def test_every_type_of_every_shape(self):
        for number in range(1, 13):
            kind = np.dtype(pb_utils.triton_to_numpy_type(number))
            for shape in ((), (0,), (3, 0, 2), (2, 2)):
                array = np.ones(shape, kind)
                for data in (array.tobytes(), self.server.share(array.tobytes())):
                    view = fake.received(("x", number, shape, data)).as_numpy()
                    self.assertEqual((view.dtype, view.shape, view.tolist()), (kind, shape, array.tolist()))

    def test_strings_are_read_when_they_are_asked_for(self):
        elements = np.array([[b"a", b""], [b"\xff", b"long" * 50]], dtype=object)
        encoded = strings.encode(elements)
        for data in (encoded, self.server.share(encoded)):
            made = fake.received(("x", 13, (2, 2), data))
            self.assertIs(tensor.outgoing(made)[3], data)
            view = made.as_numpy()
            self.assertEqual(view.tolist(), elements.tolist())
            self.assertIs(made.as_numpy(), view)
            self.assertEqual(made.shape(), [2, 2])
            view[0, 1] = "changed"
            self.assertEqual(strings.decode(tensor.outgoing(made)[3], (2, 2)).tolist()[0], [b"a", "changed"])

    def test_what_is_untouched_goes_on_as_it_came(self):
        wire = fake.tensor("x", values(3, dtype=np.int8))
        self.assertIs(tensor.outgoing(fake.received(wire)), wire)

    def test_bf16_has_no_view(self):
        made = fake.received(("x", 14, (2,), b"\x80\x3f\0\0"))
        text = "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
        for _ in range(2):
            self.assertEqual(fake.outcome(made.as_numpy), ("TritonModelException", text))
            made.to_dlpack()
        self.assertEqual(tensor.outgoing(made), ("x", 14, (2,), b"\x80\x3f\0\0"))


class Sent(unittest.TestCase):
    def setUp(self):
        self.server = fake.Server()

    def test_numbers(self):
        for array in (values(3, dtype=np.int8), np.array(2.5), np.zeros((0, 2)), values(2, 3).T, np.array([True])):
            name, number, shape, data = tensor.outgoing(Tensor("x", array))
            self.assertEqual((name, number, shape), ("x", pb_utils.numpy_to_triton_type(array.dtype), array.shape))
            self.assertEqual(data, array.tobytes())

    def test_many_numbers_lie_in_shared_memory(self):
        array = values(1000, dtype=np.int64)
        data = tensor.outgoing(Tensor("x", array))[3]
        self.assertEqual((len(data), self.server.memory[data]), (3, array.tobytes()))

    def test_strings(self):
        for array in (np.array([b"a", "b", 3], dtype=object), np.array([[b"ab"], [b"c"]])):
            name, number, shape, data = tensor.outgoing(Tensor("x", array))
            self.assertEqual((name, number, shape), ("x", 13, array.shape))
            self.assertEqual(data, strings.encode(array))
        many = np.array([b"some text"] * 1000, dtype=object)
        self.assertEqual(self.server.memory[tensor.outgoing(Tensor("x", many))[3]], strings.encode(many))

    def test_what_was_placed_for_a_response_that_fails_is_given_back(self):
        many = Tensor("many", values(1000, dtype=np.int64))
        bad = Tensor("bad", np.array(["\ud800"], dtype=object))
        response = pb_utils.InferenceResponse([many, bad])
        self.assertEqual(fake.outcome(lambda: response.pack(("many", "bad")))[0], "TritonModelException")
        self.assertEqual(self.server.memory, {})

    def test_the_model_may_change_its_array_until_then(self):
        array = values(3, dtype=np.int8)
        made = Tensor("x", array)
        array[1] = 9
        self.assertEqual(tensor.outgoing(made)[3], b"\0\x09\x02")


if __name__ == "__main__":
    unittest.main()
