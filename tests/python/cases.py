"""Cases of one process, one behind the other: each is a function, and says on stdout that it held."""

import contextlib
import gc

_cases = []


def case(function):
    _cases.append(function)
    return function


def run(names):
    """Runs the cases of these names, or all."""
    chosen = [function for function in _cases if not names or function.__name__ in names]
    assert len(chosen) >= max(1, len(names)), names
    for function in chosen:
        function()
        # What a case left is collected while its server's messages are still known to be its own.
        gc.collect()
        print(f"held {function.__name__}", flush=True)


@contextlib.contextmanager
def raises(kind, part=""):
    try:
        yield
    except kind as error:
        assert part in str(error), f"{part!r} is not in {error!r}"
    else:
        raise AssertionError(f"no {kind.__name__} with {part!r}")
