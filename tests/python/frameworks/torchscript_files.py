"""TorchScript archives, written without PyTorch: a zip file of the code, the pickled module and the bytes of its
tensors, as `torch.jit.save` writes them."""

import io
import struct
import zipfile

import network

HEAD = """class Module(Module):
  __parameters__ = []
  __buffers__ = [{buffers}]
  training : bool
{fields}  def forward(self: __torch__.Module,
    {arguments}) -> {result}:
"""


def text(word):
    word = word.encode()
    return b"X" + struct.pack("<I", len(word)) + word


def integer(number):
    return b"J" + struct.pack("<i", number)


def integers(numbers):
    return b"(" + b"".join(integer(number) for number in numbers) + b"t"


def strides(dims):
    """In elements, row by row."""
    found, size = [], 1
    for dim in reversed(dims):
        found.insert(0, size)
        size *= dim
    return found


def tensor(key, dims):
    """Opcodes of a tensor over the storage `key`."""
    count = strides([*dims])[0] * dims[0]
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(key)) + text("cpu") + integer(count) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    values = storage + integer(0) + integers(dims) + integers(strides(dims)) + b"\x89" + hooks
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + values + b"tR"


def archive(arguments, result, body, tensors=None):
    """The bytes of a file whose `forward` has these arguments, as texts of TorchScript, and this body."""
    tensors = tensors or {}
    buffers = "".join(f'"{name}", ' for name in tensors)
    fields = "".join(f"  {name} : Tensor\n" for name in tensors)
    code = HEAD.format(buffers=buffers, fields=fields, arguments=",\n    ".join(arguments), result=result)
    code += "".join(f"    {line}\n" for line in body)
    state = text("training") + b"\x89"
    for key, (name, (dims, _)) in enumerate(tensors.items()):
        state += text(name) + tensor(key, dims)
    module = b"\x80\x02c__torch__\nModule\n)\x81}(" + state + b"ub."
    written = io.BytesIO()
    # The reader maps the entries: they must not be compressed.
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as file:
        file.writestr("model/data.pkl", module)
        file.writestr("model/code/__torch__.py", code)
        file.writestr("model/constants.pkl", b"\x80\x02).")
        file.writestr("model/version", "3\n")
        file.writestr("model/byteorder", "little")
        for key, (_, numbers) in enumerate(tensors.values()):
            file.writestr(f"model/data/{key}", struct.pack(f"<{len(numbers)}f", *numbers))
    return written.getvalue()


def network_file():
    body = [
        "first = torch.matmul(INPUT__0, self.first_weights)",
        "hidden = torch.relu(torch.add(first, self.biases))",
        "return torch.matmul(hidden, self.second_weights)",
    ]
    return archive(["INPUT__0: Tensor"], "Tensor", body, network.tensors())


def add_sub_file():
    body = ["return (torch.add(INPUT__0, INPUT__1), torch.sub(INPUT__0, INPUT__1))"]
    return archive(["INPUT__0: Tensor", "INPUT__1: Tensor"], "Tuple[Tensor, Tensor]", body)


def in_place_file():
    """Zero in place of what is above it, written to the input."""
    body = ["negative = torch.neg_(INPUT__0)", "return torch.neg_(torch.relu_(negative))"]
    return archive(["INPUT__0: Tensor"], "Tensor", body)


def types_file(datatypes):
    """An identity for each of these datatypes, in this order."""
    kinds = ["List[str]" if datatype == "BYTES" else "Tensor" for datatype in datatypes]
    arguments = [f"INPUT__{at}: {kind}" for at, kind in enumerate(kinds)]
    names = ", ".join(f"INPUT__{at}" for at in range(len(kinds)))
    return archive(arguments, f"Tuple[{', '.join(kinds)}]", [f"return ({names})"])


def ragged_file():
    """Requests of different lengths joined flat; to each element the number of all elements of the batch is added."""
    body = ["return torch.add(INPUT__0, torch.sum(INPUT__1))"]
    return archive(["INPUT__0: Tensor", "INPUT__1: Tensor"], "Tensor", body)
