#!/usr/bin/env python3
"""Versions by label, by header and by weight through one of the official clients."""

import argparse

import numpy as np

from connect import PROTOCOLS, connect, expect


def version(client, **options):
    """The version that answers."""
    one = client.tensors.InferInput("INPUT0", [1], "INT32")
    one.set_data_from_numpy(np.array([7], dtype=np.int32))
    response = client.infer("m", [one], **options).get_response()
    return response["model_version"] if isinstance(response, dict) else response.model_version


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PROTOCOLS, required=True)
    parser.add_argument("--url", required=True)
    args = parser.parse_args()
    with connect(args.protocol, args.url) as client:
        expect("by weight", version(client), "1")
        expect("by number", version(client, model_version="3"), "3")
        expect("by label", version(client, model_version="canary"), "2")
        expect("by header", version(client, headers={"x-canary": "canary"}), "2")
        expect("ready", client.is_model_ready("m", "canary"), True)
        metadata = client.get_model_metadata("m", "canary")
        versions = metadata["versions"] if isinstance(metadata, dict) else list(metadata.versions)
        expect("metadata", versions, ["2"])


if __name__ == "__main__":
    main()
