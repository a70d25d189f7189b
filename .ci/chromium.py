"""Drives a headless Chromium through a pipe, by the DevTools protocol. It needs no package of Python."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

# How long anything in a page may take. Only a failure takes as long.
HANG_SECONDS = 60


class Chromium:
    """A browser without a profile, which makes no requests of its own."""

    def __enter__(self):
        self._profile = tempfile.mkdtemp(prefix="steerage-chromium-")
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
        its_in, self._to, self._from, its_out = ends

        def give_ends():
            os.dup2(its_in, 3)
            os.dup2(its_out, 4)

        command = [shutil.which("chromium"), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]
        command += ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
        command += ["--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            command, preexec_fn=give_ends, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(its_in)
        os.close(its_out)
        self._last, self._read, self._pages = 0, b"", {}
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        """The result of a command of the protocol."""
        self._last += 1
        number = self._last
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self._to, text):]
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            message = self._message(deadline)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            if page := self._pages.get(message.get("sessionId")):
                page.event(message["method"], message["params"])

    def _message(self, deadline):
        while b"\0" not in self._read:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._from], [], [], left)[0], "Chromium does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._read += part
        message, self._read = self._read.split(b"\0", 1)
        return json.loads(message)

    def page(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        return page


class Page:
    """A tab: `errors` has what its console reported, and `requests` each address that it requested."""

    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.errors, self.requests, self._loaded = [], [], False

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def event(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(self, address):
        self._loaded = False
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'", lambda: self._loaded)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def until(self, expression, also=lambda: True):
        """Waits until an expression of JavaScript is true."""
        deadline = time.monotonic() + HANG_SECONDS
        while not (self.evaluate(expression) and also()):
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"not true within {HANG_SECONDS} s: {expression}\n{text}\n{self.errors}")
            time.sleep(0.05)

    def key(self, key, code=0, text=None):
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path):
        """Writes the whole page, and not only the part that fits into the window."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))
