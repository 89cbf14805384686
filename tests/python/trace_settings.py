#!/usr/bin/env python3
"""The settings of traces, read and changed with the official client; the server started with a file and no level."""

import argparse

from tritonclient.utils import InferenceServerException

from connect import PROTOCOLS, connect, expect


def plain(connection, answer):
    """The settings as a dictionary, whichever client gave them; one value stands alone, levels in a list."""
    if connection.is_http:
        return dict(answer)
    settings = {key: list(value.value) for key, value in answer.settings.items()}
    return {key: value if key == "trace_level" else value[0] for key, value in settings.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--model", required=True)
    args = parser.parse_args()
    defaults = {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": args.file,
        "trace_mode": "triton",
    }
    changed = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "7", "trace_count": "9", "log_frequency": "2"}
    nothing = dict.fromkeys(changed)
    with connect(args.protocol, args.url) as connection:

        def get(model=None):
            return plain(connection, connection.get_trace_settings(model_name=model))

        def update(settings, model=None):
            return plain(connection, connection.update_trace_settings(model_name=model, settings=settings))

        expect("at the start", get(), defaults)
        expect("for a model", update(changed, args.model), defaults | changed)
        expect("for all", get(), defaults)
        expect("changed for all", update({"trace_rate": "5"}), defaults | {"trace_rate": "5"})
        expect("the model's own", get(args.model), defaults | changed)
        expect("cleared for the model", update(nothing, args.model), defaults | {"trace_rate": "5"})
        expect("cleared for all", update(nothing), defaults)
        try:
            get("absent")
        except InferenceServerException as error:
            expect("absent model", error.message(), "Request for unknown model : absent")
        else:
            raise SystemExit("settings of a model that is not there")
        try:
            update({"trace_file": "x"})
        except InferenceServerException as error:
            expect("file", error.message(), "trace file location can not be updated through network protocol")
        else:
            raise SystemExit("another file was taken")


if __name__ == "__main__":
    main()
