#!/usr/bin/env python3
"""Runs the server as a library in this process: `hosting.py <library> <repository>`. It loads the models and ends."""

import ctypes
import sys


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.TRITONSERVER_ErrorMessage.restype = ctypes.c_char_p

    def call(name, *arguments):
        function = getattr(library, name)
        function.restype = ctypes.c_void_p
        error = function(*arguments)
        if error:
            raise SystemExit("%s: %s" % (name, library.TRITONSERVER_ErrorMessage(ctypes.c_void_p(error)).decode()))

    options, server = ctypes.c_void_p(), ctypes.c_void_p()
    call("TRITONSERVER_ServerOptionsNew", ctypes.byref(options))
    call("TRITONSERVER_ServerOptionsSetModelRepositoryPath", options, sys.argv[2].encode())
    call("TRITONSERVER_ServerNew", ctypes.byref(server), options)
    call("TRITONSERVER_ServerOptionsDelete", options)
    call("TRITONSERVER_ServerStop", server)
    call("TRITONSERVER_ServerDelete", server)


if __name__ == "__main__":
    main()
