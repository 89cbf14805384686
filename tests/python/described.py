#!/usr/bin/env python3
"""Generates requests from an OpenAPI description and holds the answers to it; the arguments are those of schemathesis."""

from schemathesis.cli import schemathesis

if __name__ == "__main__":
    schemathesis()
