#!/usr/bin/env python3
"""The log's settings, read and changed with the official client."""

import argparse

from tritonclient.utils import InferenceServerException

from connect import PROTOCOLS, connect, expect

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


def plain(connection, answer):
    """The settings as a dictionary, whichever client gave them."""
    if connection.is_http:
        return dict(answer)
    settings = {}
    for key, value in answer.settings.items():
        settings[key] = getattr(value, value.WhichOneof("parameter_choice"))
    return settings


def refused(what, call, settings, status, text):
    try:
        call(settings)
    except InferenceServerException as error:
        expect(f"{what}: status", error.status(), status)
        expect(f"{what}: text", error.message(), text)
        return
    raise SystemExit(f"{what}: taken")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as connection:
        update = connection.update_log_settings
        expect("settings", plain(connection, connection.get_log_settings()), DEFAULTS)
        changed = {"log_info": False, "log_warning": False, "log_error": False}
        changed |= {"log_verbose_level": 3, "log_format": "ISO8601"}
        expect("changed", plain(connection, update(changed)), DEFAULTS | changed)
        expect("read back", plain(connection, connection.get_log_settings()), DEFAULTS | changed)
        invalid, not_offered = ("400", "501") if connection.is_http else ("INVALID_ARGUMENT", "UNIMPLEMENTED")
        if connection.is_http:
            refused("level", update, {"log_verbose_level": -1}, "500", "attempt to access JSON non-unsigned-integer as unsigned-integer")
            refused("format", update, {"log_format": "x"}, "503", "invalid argument for --log_format, got: x")
        else:
            code = f"StatusCode.{invalid}"
            refused("info", update, {"log_info": "yes"}, code, "expect boolean for 'log_info'")
            refused("format", update, {"log_format": "x"}, code, "invalid argument for log_format, got: x")
            not_offered = f"StatusCode.{not_offered}"
        text = "log file location can not be updated through network protocol"
        refused("file", update, {"log_file": "/tmp/x"}, not_offered, text)
        back = {key: value for key, value in DEFAULTS.items() if key != "log_file"}
        expect("back", plain(connection, update(back)), DEFAULTS)
    print(f"{args.protocol}: ok")


if __name__ == "__main__":
    main()
