"""A headless Chromium that a test drives over the DevTools protocol, through two pipes: nothing has to be installed."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

# Longer than any step takes; it only turns a hang into a failure.
PATIENCE_SECS = 300


class Browser:
    """One page. Messages are objects of JSON, each ended by a byte 0 (--remote-debugging-pipe)."""

    def __init__(self, program):
        self.profile = tempfile.mkdtemp(prefix="nereid-browser-")
        to_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += ["--no-first-run", "--disable-background-networking", "--disable-extensions", "--mute-audio"]
        flags += [f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"]

        def pipes():
            # The browser reads commands from descriptor 3 and writes to 4. Copies first: either may be 3 or 4 here.
            read, write = os.dup(to_browser), os.dup(from_browser)
            high = [os.dup2(read, 200, True), os.dup2(write, 201, True)]
            os.dup2(high[0], 3, True)
            os.dup2(high[1], 4, True)

        self.process = subprocess.Popen(
            [program, *flags],
            preexec_fn=pipes,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        # The answer to requests whose URL contains the first text: status, type and body.
        self.fixtures = {}
        self.problems = []
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        shutil.rmtree(self.profile, ignore_errors=True)

    def read(self):
        """The next message."""
        while b"\0" not in self.buffer:
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def post(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data) :]
        return self.number

    def send(self, method, **parameters):
        """The result of a command. Events that come before it are handled."""
        number = self.post(method, **parameters)
        while True:
            message = self.read()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.handle(message)

    def handle(self, message):
        method, given = message.get("method"), message.get("params", {})
        if method == "Fetch.requestPaused":
            url, request = given["request"]["url"], given["requestId"]
            found = next((answer for part, answer in self.fixtures.items() if part in url), None)
            if found is None:
                self.post("Fetch.continueRequest", requestId=request)
            elif found[0] == 0:
                self.post("Fetch.failRequest", requestId=request, errorReason="ConnectionRefused")
            else:
                status, kind, body = found
                headers = [{"name": "Content-Type", "value": kind}]
                body = base64.b64encode(body.encode()).decode()
                self.post("Fetch.fulfillRequest", requestId=request, responseCode=status, responseHeaders=headers, body=body)
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(given["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and given["entry"]["level"] == "error" and given["entry"]["source"] != "network":
            self.problems.append(given["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append("a dialog: " + given["message"])
            self.post("Page.handleJavaScriptDialog", accept=True)

    def replace(self, part, status, kind, body):
        """Answers requests whose URL contains `part` without the server; status 0: as if it were not there."""
        if not self.fixtures:
            self.send("Fetch.enable", patterns=[{"urlPattern": "*/ui/data*"}])
        self.fixtures[part] = (status, kind, body)

    def restore(self):
        self.fixtures = {}
        self.send("Fetch.disable")

    def open(self, url):
        self.send("Page.navigate", url=url)

    def size(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        """`light` or `dark`."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, expression):
        """The value of an expression of JavaScript; promises are waited for."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{expression}: {json.dumps(done['exceptionDetails'])[:1000]}")
        return done["result"].get("value")

    def wait(self, expression):
        """Waits until an expression is true."""
        until = time.monotonic() + PATIENCE_SECS
        while True:
            try:
                value = self.run(f"!!({expression})")
            except RuntimeError:
                # The document is being replaced.
                value = None
            if value:
                return
            if time.monotonic() > until:
                shown = self.run("document.body.innerText.slice(0, 3000)")
                raise AssertionError(f"never true: {expression}\n{self.problems}\nthe page shows:\n{shown}")
            time.sleep(0.1)

    def text(self):
        return self.run("document.body.innerText")

    def type(self, selector, value):
        """Types into a field as a person does: it gets the events of that."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=value)

    def key(self, name, code=0):
        for kind in ["keyDown", "keyUp"]:
            more = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **more)

    def picture(self, path, whole=False):
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def check_layout(self, what):
        """Nothing is wider than the window, and no text is cut by its own box."""
        wide = self.run(
            """(() => {
              const width = document.documentElement.clientWidth, found = [];
              if (document.documentElement.scrollWidth > width) found.push("the page: " + document.documentElement.scrollWidth);
              for (const node of document.querySelectorAll("body *")) {
                if (node.closest(".scroll, nav, .skip, thead, svg")) continue;
                const box = node.getBoundingClientRect();
                if (box.width && (box.right > width + 1 || box.left < -1)) found.push(node.tagName + "." + node.className + " " + box.left + ".." + box.right);
              }
              for (const node of document.querySelectorAll(".scroll"))
                if (node.scrollWidth > node.clientWidth + 1) found.push("a table: " + node.scrollWidth + " in " + node.clientWidth);
              for (const node of document.querySelectorAll(".badge, .tile b, button, nav a, h2"))
                if (node.clientWidth && node.scrollWidth > node.clientWidth + 1) found.push("cut: " + node.textContent);
              return found.slice(0, 5);
            })()"""
        )
        assert not wide, f"{what}: {wide}"
