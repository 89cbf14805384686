"""The worker's process: signals, and what runs at its end."""

import subprocess
import sys
import unittest

from fake import ROOT

WORKER = str(ROOT / "src/backend/python/worker")


def said(program):
    """The lines that a process of its own prints."""
    head = "import os, signal, subprocess, sys\nsys.path.insert(0, %r)\nfrom nereid_python import loop\n" % WORKER
    ran = subprocess.run([sys.executable, "-B", "-c", head + program], capture_output=True, text=True, timeout=300)
    return ran.returncode, ran.stdout.splitlines(), ran.stderr


class Process(unittest.TestCase):
    def test_it_ignores_signals_that_end_the_processes_it_starts(self):
        status, lines, _ = said(
            "loop.watch_signals()\n"
            "for number in (signal.SIGTERM, signal.SIGINT):\n"
            "    os.kill(os.getpid(), number)\n"
            "program = subprocess.Popen(['sleep', '60'])\n"
            "program.terminate()\n"
            "print(program.wait())\n"
            "forked = os.fork()\n"
            "if forked == 0:\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    os._exit(0)\n"
            "print(os.WTERMSIG(os.waitpid(forked, 0)[1]))\n"
        )
        self.assertEqual((status, lines), (0, ["-15", "15"]))

    def test_a_forked_process_keeps_the_handlers_of_the_model(self):
        status, lines, _ = said(
            "loop.watch_signals()\n"
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n"
            "forked = os.fork()\n"
            "if forked == 0:\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    os._exit(0)\n"
            "print(os.WEXITSTATUS(os.waitpid(forked, 0)[1]))\n"
        )
        self.assertEqual((status, lines), (0, ["7"]))

    def test_exit_functions_run_at_its_end_and_threads_do_not_delay_it(self):
        status, lines, errors = said(
            "import atexit, threading, time\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "atexit.register(print, 'registered first')\n"
            "atexit.register(lambda: 1 / 0)\n"
            "atexit.register(print, 'registered last')\n"
            "ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.05), print('submitted')))\n"
            "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
            "loop.run_exit_functions()\n"
            "loop.leave(3)\n"
        )
        self.assertEqual((status, lines), (3, ["submitted", "registered last", "registered first"]))
        self.assertIn("ZeroDivisionError", errors)


if __name__ == "__main__":
    unittest.main()
