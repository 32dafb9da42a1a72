#!/usr/bin/env python3
"""Drives the server's page in headless Chromium, as a person would.

  scripts/page_check.py --program build/release/peregrine [--screenshot FILE [--dark]]

Types a question and sees the answer stream, stops one, asks a second turn, returns the result of a
tool call, and sees the engine's numbers change. Needs Debian's chromium-headless-shell (or
chromium); nothing else is installed: the browser is spoken to over its debugging pipe.
"""

import argparse
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium-headless-shell", "chromium")
LIMIT_S = 120  # far above any step's time; ends a check that hangs

TOOLS = [{"name": "search", "description": "Search the web.",
          "parameters": {"type": "object",
                         "properties": {"query": {"type": "string",
                                                  "description": "Search query"}},
                         "required": ["query"]}}]


def find_browser():
    for name in BROWSERS:
        if shutil.which(name):
            return name
    return None


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, width=1360, height=940, dark=False):
        program = find_browser()
        if program is None:
            raise RuntimeError("Chromium was not found; scripts/install_packages.sh test installs "
                               "chromium-headless-shell")
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def place_pipes():  # the browser reads descriptor 3 and writes descriptor 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}",
             f"--window-size={width},{height}", "about:blank"],
            close_fds=False, preexec_fn=place_pipes, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.pending, self.number, self.session = b"", 0, None
        self.problems = []  # what the page's console complained about
        page = next(t for t in self.send("Target.getTargets")["targetInfos"]
                    if t["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page["targetId"],
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(domain + ".enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme",
                             "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)  # with the processes of its own
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        self.profile.cleanup()

    def receive(self):
        while b"\0" not in self.pending:
            piece = os.read(self.read_end, 1 << 16)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self.pending += piece
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(answer["params"]["exceptionDetails"]["text"])
            elif answer.get("method") == "Log.entryAdded":
                entry = answer["params"]["entry"]
                if entry["level"] == "error" and "favicon" not in entry.get("url", ""):
                    self.problems.append(entry["text"])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def run(self, script):
        """The value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, script, what):
        end = time.monotonic() + LIMIT_S
        while not self.run(script):
            if time.monotonic() > end:
                raise RuntimeError(f"waited {LIMIT_S} s for {what}; the page says: "
                                   + self.run("document.body.innerText")[-2000:])
            time.sleep(0.05)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && !!document.getElementById('send')",
                      "the page")

    def type(self, text):
        self.run("document.getElementById('text').focus()")
        self.send("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                      windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "")

    def screenshot(self, file):
        picture = self.send("Page.captureScreenshot", format="png")["data"]
        Path(file).write_bytes(base64.b64decode(picture))


def expect(condition, sentence):
    if not condition:
        raise AssertionError(sentence)


IDLE = "document.getElementById('stop').classList.contains('hidden')"
LAST_BODY = "([...document.querySelectorAll('.assistant .body')].at(-1)?.innerText ?? '')"
LAST_META = "([...document.querySelectorAll('.assistant .meta')].at(-1)?.innerText ?? '')"
# Counts how often the text of the last answer grows (a busy machine lets several pieces arrive
# together, as records of one call), and presses Stop once `stop` says so.
WATCH = """(() => {
  window.growths = 0;
  window.watcher?.disconnect();
  window.watcher = new MutationObserver((records) => {
    window.growths += records.length;
    if (%s && (document.querySelectorAll('.assistant .body').length > 0)
        && [...document.querySelectorAll('.assistant .body')].at(-1).innerText.length > 10)
      document.getElementById('stop').click();
  });
  window.watcher.observe(document.getElementById('log'), {childList: true, subtree: true});
})()"""


def choose(page, setting, value):
    page.run(f"document.getElementById({setting!r}).value = {json.dumps(value)}")


def check_streaming(page):
    choose(page, "temperature", "0")
    page.run(WATCH % "false")
    page.type("What is 468 + 357?")
    page.wait_for(IDLE + " && " + LAST_META + ".includes('tokens/s')", "the first answer")
    expect("825" in page.run(LAST_BODY), "the answer to 468 + 357 does not hold 825")
    expect(page.run("window.growths") > 5, "the answer did not come in pieces")
    thinking = page.run("document.querySelector('details.thinking div').textContent")
    expect("digit by digit" in thinking, "the reasoning is not shown")
    expect(not page.run("document.querySelector('details.thinking').open"),
           "the reasoning is not folded")


def check_second_turn(page):
    turns = page.run("messages.length")
    page.type("Thanks")
    page.wait_for(f"{IDLE} && messages.length === {turns + 2}", "the second turn")
    expect(page.run(LAST_BODY), "the second turn has no answer")


def check_stop(page):
    choose(page, "effort", "none")
    page.run(WATCH % "true")
    page.type("Tell me a story about a brave fox named Ruby.")
    page.wait_for(f"{IDLE} && {LAST_META}.startsWith('stopped')", "the stopped answer")
    page.run("window.watcher.disconnect()")
    page.wait_for("last !== null && last.running === 0 && last.cancelled > 0",
                  "the engine to end the stopped request")


def check_tools(page):
    page.run("document.getElementById('fresh').click()")
    choose(page, "tools", json.dumps(TOOLS))
    page.type("Please search for the capital of Latvia.")
    page.wait_for(f"{IDLE} && !!document.querySelector('.call form')", "the tool call")
    shown = page.run("document.querySelector('.call').innerText")
    expect("search" in shown and "capital of Latvia" in shown, f"the call is shown as {shown}")
    page.run("document.querySelector('.call input').value = 'The capital of Latvia is Riga.'; "
             "document.querySelector('.call form').requestSubmit()")
    page.wait_for(f"{IDLE} && {LAST_BODY}.includes('Riga')", "the answer from the result")
    choose(page, "tools", "")


def check_dashboard(page, before):
    page.wait_for(f"last.output_tokens > {before['output_tokens']} && "
                  f"last.finished > {before['finished']} && last.steps > {before['steps']}",
                  "the engine's numbers to grow")
    page.wait_for("plots.step.values.some((v) => v > 0)", "a point of the step-time plot")
    expect(page.run("document.getElementById('output_tokens').innerText") not in ("–", "0"),
           "the output tokens are not shown")
    expect(page.run("document.querySelectorAll('#acceptance .fill').length") > 0,
           "no acceptance by position is shown")


# Asks for stories, three at a time, so that the plots have something to show.
LOAD = """(async () => {
  for (let i = 0; i < 50; i++)
    await Promise.all([1, 2, 3].map((seed) => fetch('v1/chat/completions', {
      method: 'POST', headers: headers(), body: JSON.stringify({
        messages: [{role: 'user', content: 'Tell me a story.'}], seed: i * 3 + seed,
        max_tokens: 120 + 20 * (i % 5), thinking: {type: 'disabled'}}) }).then((r) => r.text())));
  window.loaded = true;
})(); 0"""


def picture(page, file):
    page.run(LOAD)
    choose(page, "effort", "high")
    page.run("document.getElementById('fresh').click()")
    page.type("What is 468 + 357?")
    page.wait_for(f"{IDLE} && {LAST_BODY}.includes('825')", "the pictured answer")
    page.run("document.querySelector('details.thinking').open = true")
    choose(page, "effort", "none")
    choose(page, "tools", json.dumps(TOOLS))
    page.type("Please search for the capital of Latvia.")
    page.wait_for(f"{IDLE} && !!document.querySelector('.call form')", "the pictured call")
    choose(page, "tools", "")
    page.wait_for("window.loaded === true", "the pictured load")
    page.screenshot(file)


def drive(url, key="", screenshot=None, dark=False):
    """Raises with a sentence when the page does not do what it should."""
    with Browser(dark=dark) as page:
        page.open(url + "/")
        choose(page, "key", key)
        page.wait_for("last !== null", "the engine's numbers")
        page.problems.clear()  # the first poll had no key
        before = page.run("last")
        check_streaming(page)
        check_second_turn(page)
        check_stop(page)
        check_tools(page)
        check_dashboard(page, before)
        if screenshot:
            picture(page, screenshot)
        expect(not page.problems, "the browser's console says: " + "; ".join(page.problems))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--dark", action="store_true", help="the picture in dark colours")
    arguments = parser.parse_args()
    server = subprocess.Popen([arguments.program, "serve", "--port", "0", "--model",
                               ROOT / "models" / "tiny"], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", server.stdout.readline()).group()
        drive(url, screenshot=arguments.screenshot, dark=arguments.dark)
        print("the page works")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
