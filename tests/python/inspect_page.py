"""The inspect page in a browser: inspect_page.py CHROMIUM UI_URL HTTP_URL KEY [PICTURES].

The server has the models `plain` and `<img …>`, a model that cannot be loaded, and a key in the header `admin`.
"""

import json
import sys
import threading
import time
import urllib.request

from browser import Browser

ROWS = 'document.querySelectorAll("main tbody tr").length'
ODD = '<img src=x onerror=alert(1)>'


def body_of(rows):
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [rows, 4], "data": [1, 2, 3, 4] * rows}
    return json.dumps({"inputs": [tensor]}).encode()


class Traffic:
    """Requests to a model, one after the other, until it is closed."""

    def __init__(self, url):
        self.url, self.is_over = url + "/v2/models/plain/infer", False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.is_over:
            request = urllib.request.Request(self.url, body_of(2), {"Content-Type": "application/json"})
            urllib.request.urlopen(request).read()
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()


def cell(model, title):
    """An expression: the text of a cell of the table of models."""
    return (
        '[...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a").textContent === '
        f'{json.dumps(model)}).map((row) => row.querySelector(`td[data-label="{title}"]`).innerText)[0]'
    )


def rates(browser):
    """Live traffic shows rates and latencies, on the overview and in the charts of the model."""
    browser.wait(f'parseFloat({cell("plain", "Requests/s")}) > 0')
    browser.wait(f'/[0-9] (µs|ms|s)$/.test({cell("plain", "Latency")})')
    browser.wait('parseFloat(document.querySelector(".tile b").textContent) > 0')
    browser.run('location.hash = "model/plain"')
    browser.wait('document.querySelectorAll("svg.chart").length === 3')
    # Two points make a line.
    browser.wait('document.querySelector("svg.chart path.line.a").getAttribute("d").includes("L")')
    browser.wait('document.querySelector(".bars").textContent.includes("2 rows")')
    browser.wait('/p50.*[0-9] (ns|µs|ms|s)/.test(document.querySelectorAll(".cards .legend")[1].textContent)')
    text = browser.text()
    for part in ["plain_0", "INPUT0", "max_batch_size", "config.pbtxt:", "default: the latest version", "IDLE"]:
        assert part in text or (part == "IDLE" and "EXECUTING" in text), f"{part} in {text}"


def slow(browser):
    browser.run('location.hash = "slow"')
    browser.wait(f'{ROWS} > 0 && document.querySelector(".stack").getAttribute("aria-label").includes("Queue")')
    widths = browser.run('[...document.querySelector(".stack").children].map((part) => parseFloat(part.style.width))')
    assert len(widths) == 5 and 99 < sum(widths) < 101, widths


def escaping(browser):
    """Names and texts with tags are shown letter by letter, and make no element."""
    browser.run('location.hash = "models"')
    browser.wait(f'{cell(ODD, "State")} === "READY"')
    browser.wait(f'({cell("broken", "Model")} || "").includes("<b>nothing</b>")')
    browser.run('location.hash = "messages"')
    browser.wait('document.querySelector("main").innerText.includes("<b>nothing</b>")')
    browser.run(f'location.hash = "model/" + encodeURIComponent({json.dumps(ODD)})')
    browser.wait(f'document.querySelector("h2").textContent === {json.dumps(ODD)}')
    browser.wait('document.querySelectorAll("svg.chart").length === 3')
    assert browser.run('document.querySelectorAll("main img, main b:not(.tile b, .legend b), main script").length') == 0


def buttons(browser, http):
    """Unloads and loads a model by the buttons; they work once the key is there."""
    browser.run('location.hash = "model/plain"')
    browser.wait('document.querySelector("#unload") && document.querySelector("#unload").disabled')
    browser.type("#model-key", "wrong")
    browser.wait('!document.querySelector("#unload").disabled')
    browser.run('document.querySelector("#unload").click()')
    browser.wait('document.querySelector(".note").textContent.startsWith("403: This API is restricted")')
    browser.type("#model-key", sys.argv[4])
    browser.run('document.querySelector("#unload").click()')
    browser.wait('document.querySelector(".heading .badge").textContent === "UNLOADED"')
    browser.run('document.querySelector("#load").focus()')
    browser.key("Enter", 13)
    browser.wait('document.querySelector(".heading .badge").textContent === "READY"')
    browser.run('location.hash = "server"')
    browser.wait('document.querySelector("#verbose")')
    browser.type("#verbose", "1")
    browser.type("#log-key", sys.argv[4])
    browser.wait('!document.querySelector("form button").disabled')
    browser.run('document.querySelector("form button").click()')
    browser.wait('[...document.querySelectorAll("dt")].some((name) => name.textContent === "Verbose level" && '
                 'name.nextSibling.textContent === "1")')
    text = browser.text()
    assert "admin=<hidden>" in text and sys.argv[4] not in text, text
    assert "environment: AIP_STORAGE_URI" not in text and "flag" in text, text


def silence(browser):
    """A server that does not answer is seen as such, with the time; and that it answers again."""
    browser.replace("/ui/data", 0, "", "")
    browser.wait('/No answer from the server since [0-9]+:[0-9]+:[0-9]+/.test(document.querySelector("#alarm").innerText)')
    assert browser.run('document.querySelector("#state").textContent') == "NO ANSWER"
    browser.restore()
    browser.wait('document.querySelector("#alarm").hidden')


def layouts(browser):
    """Nothing runs over the window, light or dark, narrow or wide; the two schemes differ."""
    views = ["models", "model/plain", "slow", "messages", "server"]
    backs = set()
    for scheme in ["light", "dark"]:
        browser.scheme(scheme)
        backs.add(browser.run('getComputedStyle(document.body).backgroundColor'))
        for width in [360, 1600]:
            browser.size(width, 900)
            for view in views:
                browser.run(f'location.hash = "{view}"')
                wanted = 'document.querySelectorAll("svg.chart").length' if "/" in view else ROWS
                browser.wait(f'{wanted} > 0')
                browser.check_layout(f"{view}, {scheme}, {width}")
    assert len(backs) == 2, backs
    browser.scheme("light")
    browser.size(1280, 900)


def keyboard(browser):
    """The first key leads to the content, and a heading sorts."""
    browser.run('location.hash = "models"')
    browser.wait(f'{ROWS} > 1')
    browser.run('document.querySelector("th:nth-child(9) button").focus()')
    browser.key("Enter", 13)
    browser.wait('document.querySelector("th:nth-child(9)").getAttribute("aria-sort") === "descending"')
    browser.run('document.activeElement.blur()')
    for _ in range(3):
        browser.key("Tab", 9)
    assert browser.run('document.activeElement !== document.body')


def thousand(browser, ui):
    """A thousand models: pages, the filter, and the order; the answer is the server's with more models in it."""
    snapshot = json.loads(urllib.request.urlopen(ui + "/data").read())
    one = next(row for row in snapshot["models"] if row["name"] == "plain")
    snapshot["models"] = [{**one, "name": f"model_{at:04}", "success": at * 10} for at in range(1000)]
    browser.replace("/ui/data", 200, "application/json", json.dumps(snapshot))
    browser.run('location.hash = "models"')
    browser.wait('document.querySelector("main").innerText.includes("1–50 of 1000 versions")')
    assert browser.run(ROWS) == 50
    # The order by the number of requests is still that of the test above.
    browser.wait('document.querySelector("main tbody a").textContent === "model_0999"')
    browser.run('[...document.querySelectorAll("button")].find((one) => one.textContent === "Next").click()')
    browser.wait('document.querySelector("main").innerText.includes("51–100 of 1000")')
    browser.wait('document.querySelector("main tbody a").textContent === "model_0949"')
    browser.type("main input[type=search]", "model_012")
    browser.wait(f'{ROWS} === 10')
    took = browser.run('(() => { const begun = performance.now(); show(); return performance.now() - begun; })()')
    print(f"one update with a thousand models: {took:.1f} ms")
    for width in [360, 1600]:
        browser.size(width, 900)
        browser.check_layout(f"a thousand models, {width}")
    browser.type("main input[type=search]", "")
    browser.restore()


def main():
    chromium, ui, http = sys.argv[1:4]
    with Browser(chromium) as browser:
        browser.size(1280, 900)
        browser.scheme("light")
        browser.open(ui)
        browser.wait(f"{ROWS} >= 3")
        with Traffic(http):
            rates(browser)
            slow(browser)
        escaping(browser)
        layouts(browser)
        keyboard(browser)
        silence(browser)
        buttons(browser, http)
        thousand(browser, ui)
        if len(sys.argv) > 5:
            browser.size(1280, 860)
            browser.run('location.hash = "models"')
            browser.wait(f'{cell("plain", "State")} === "READY"')
            browser.picture(sys.argv[5] + "/inspect.png")
        assert not browser.problems, browser.problems
    print("the page is as it should be")


main()
