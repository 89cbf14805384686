"""BYTES: arrays of objects to and from marshalled lists, and the module's two functions for them."""

import struct
import unittest

import fake
import numpy as np
from nereid_python import strings

import triton_python_backend_utils as pb_utils


def array(*elements):
    made = np.empty(len(elements), dtype=object)
    made[:] = elements
    return made


def listed(data):
    """The elements of a marshalled list, read by hand: the letter and the bytes of each."""
    assert data[:1] == b"["
    (count,) = struct.unpack_from("<I", data, 1)
    at, elements = 5, []
    for _ in range(count):
        letter, (length,) = data[at : at + 1], struct.unpack_from("<I", data, at + 1)
        elements.append((letter, data[at + 5 : at + 5 + length]))
        at += 5 + length
    assert at == len(data)
    return elements


class Text:
    def __str__(self):
        return "an object"


class Strings(unittest.TestCase):
    # Elements, and the bytes that they are.
    TABLE = [
        ((), []),
        ((b"a", b"", b"\0\xff"), [b"a", b"", b"\0\xff"]),
        (("a", "gr\u00fc\u00df", "\U0001f600", ""), [b"a", "gr\u00fc\u00df".encode(), b"\xf0\x9f\x98\x80", b""]),
        ((b"\xed\xa0\x80", "\ud55c"), [b"\xed\xa0\x80", "\ud55c".encode()]),
        ((1, None, 2.5, True, Text()), [b"1", b"None", b"2.5", b"True", b"an object"]),
        ((np.float64(1.5), np.int32(-3), b"x"), [b"1.5", b"-3", b"x"]),
        ((np.bytes_(b"numpy"), np.str_("text"), b"x"), [b"numpy", b"text", b"x"]),
        ((b"x" * 100000,), [b"x" * 100000]),
    ]

    def test_every_kind_of_element_is_encoded(self):
        for elements, expected in self.TABLE:
            data = strings.encode(array(*elements))
            self.assertEqual([element for _, element in listed(data)], expected)
            self.assertLessEqual({letter for letter, _ in listed(data)}, {b"s", b"u"})

    def test_fixed_width_arrays_are_encoded(self):
        self.assertEqual([e for _, e in listed(strings.encode(np.array([b"ab\0", b"c"])))], [b"ab", b"c"])

    def test_elements_go_in_c_order(self):
        square = array(b"a", b"b", b"c", b"d").reshape(2, 2)
        tensor = pb_utils.Tensor("x", square.T)
        self.assertEqual([e for _, e in listed(strings.encode(tensor.as_numpy()))], [b"a", b"c", b"b", b"d"])

    def test_lone_surrogates_are_no_text(self):
        fake.Server()
        for element in ("\ud800", "a\udc80"):
            tensor = pb_utils.Tensor("x", array(b"\xed", element))
            outcome = fake.outcome(lambda: pb_utils.InferenceResponse([tensor]).pack(("x",)))
            self.assertEqual(outcome[0], "TritonModelException")
            self.assertIn("Tensor 'x' has a text that is not Unicode", outcome[1])

    def test_decoding_gives_bytes_of_the_shape(self):
        for shape in ((0,), (3, 0), (2, 3), (), (1, 1)):
            count = int(np.prod(shape))
            elements = [b"e%d" % at for at in range(count)]
            decoded = strings.decode(strings._plain_dumps(elements), shape)
            self.assertEqual((decoded.shape, decoded.dtype), (shape, np.dtype(object)))
            self.assertEqual(decoded.ravel().tolist(), elements)
            self.assertTrue(all(type(element) is bytes for element in decoded.ravel().tolist()))

    def test_elements_of_equal_length_do_not_become_a_dimension(self):
        self.assertEqual(strings.decode(strings._plain_dumps([b"ab", b"cd"]), (2,)).tolist(), [b"ab", b"cd"])

    def test_the_fallback_has_the_same_bytes(self):
        sample = [b"", b"a\0", "t\u00e9", b"long" * 100, "", "\U0001f600"]
        self.assertEqual(strings._plain_dumps(sample), strings._marshal_dumps(sample))
        self.assertEqual(strings._plain_loads(strings._marshal_dumps(sample)), sample)
        for broken in (b"", b"[", b"(\0\0\0\0", b"[\x01\0\0\0i\0\0\0\0", b"[\x01\0\0\0s\x05\0\0\0a", b"[\x02\0\0\0s\0\0\0\0"):
            with self.assertRaises((ValueError, struct.error)):
                strings._plain_loads(broken)

    def test_serialize(self):
        for elements, expected in self.TABLE[1:]:
            parts = b"".join(struct.pack("<I", len(element)) + element for element in expected)
            self.assertEqual(pb_utils.serialize_byte_tensor(array(*elements)), parts)
        self.assertEqual(pb_utils.serialize_byte_tensor(array()), ())
        self.assertEqual(pb_utils.serialize_byte_tensor(np.array([])), ())
        self.assertIsNone(pb_utils.serialize_byte_tensor(np.array([1])))
        self.assertIsNone(pb_utils.serialize_byte_tensor(np.array(["x"])))
        self.assertEqual(pb_utils.serialize_byte_tensor(np.array([b"abc", b"d"])), b"\3\0\0\0abc\1\0\0\0d")
        square = array(b"a", "\u00fc", 1, None).reshape(2, 2)
        self.assertEqual(pb_utils.serialize_byte_tensor(square), b"\1\0\0\0a\2\0\0\0\xc3\xbc\1\0\0\0001\4\0\0\0None")

    def test_deserialize(self):
        for elements in ([], [b""], [b"a", b"", b"\0" * 300]):
            encoded = b"".join(struct.pack("<I", len(element)) + element for element in elements)
            for form in (encoded, bytearray(encoded), np.frombuffer(encoded, np.uint8) if encoded else encoded):
                decoded = pb_utils.deserialize_bytes_tensor(form)
                self.assertEqual((decoded.tolist(), decoded.dtype, decoded.ndim), (elements, np.dtype(object), 1))
        for broken in (b"\5\0\0\0a", b"\5"):
            self.assertEqual(fake.outcome(lambda: pb_utils.deserialize_bytes_tensor(broken))[0], "error")


if __name__ == "__main__":
    unittest.main()
