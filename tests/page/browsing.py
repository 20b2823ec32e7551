# SPDX-License-Identifier: Apache-2.0
"""The page under test: a browser that may ask its server alone, and what it complains of."""
import json
import os
import sys
import time

from playwright.sync_api import sync_playwright

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../serve"))
from serving import MODEL, Checks, Server, chat_model, scratch  # noqa: E402,F401

check = Checks()
WATCH_CSP = "addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective + ' ' + e.blockedURI))"


class Browser:
    """Chromium, for all tests."""

    def __enter__(self):
        self.playwright = sync_playwright().start()
        arguments = ["--disable-lcd-text"] + (["--no-sandbox"] if os.geteuid() == 0 else [])
        self.chromium = self.playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=arguments)
        return self

    def __exit__(self, *_):
        self.chromium.close()
        self.playwright.stop()

    def open(self, server, view="", script=None, **how):
        """script: runs before the page's own."""
        return Page(self.chromium, server, view, script, how)


class Page:
    """A tab of its own. Leaving it checks that nothing went elsewhere and that the console is clean: lines that hold one of
    `expected` are a refusal's, which Chromium logs."""

    def __init__(self, chromium, server, view, script, how):
        self.context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, "color_scheme": "light", **how})
        self.origin = "http://127.0.0.1:%d" % server.port
        self.elsewhere, self.complaints, self.bodies, self.expected = [], [], [], []
        for early in filter(None, (WATCH_CSP, script)):
            self.context.add_init_script(early)
        self.context.route("**/*", lambda route: self._pass(route))  # Playwright marks the object of a method
        self.page = self.context.new_page()
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.goto(self.origin + "/" + view)

    def _pass(self, route):
        request = route.request
        if not request.url.startswith((self.origin + "/", "data:")):
            self.elsewhere.append(request.url)
            route.abort()
            return
        if request.method == "POST":
            self.bodies.append(request.post_data)
        route.continue_()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            left = [c for c in self.complaints if not any(e in c for e in self.expected)]
            check("nothing in the console", not left, left)
            check("no request elsewhere", not self.elsewhere, self.elsewhere)
        self.context.close()

    def __getattr__(self, name):
        return getattr(self.page, name)

    def until(self, what, test, seconds=15):
        """Whether it comes true in time. (The page's policy forbids Playwright's own wait_for_function.)"""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if test():
                return True
            self.page.wait_for_timeout(20)
        check("in time: " + what, False)
        return False

    def text(self, selector):
        return self.page.locator(selector).first.text_content() or ""

    def set(self, **fields):
        for name, value in fields.items():
            self.page.fill("#field-" + name, value)

    def end_of_answer(self, turns):
        """The text of the last answer and what is said below it, once there are so many turns and none runs."""
        self.until("answer %d" % turns, lambda: self.page.locator("#turns > li").count() == turns and
                   self.text("#turns > li:last-child .foot") and not self.page.is_visible("#stop"))
        return self.text("#turns > li:last-child .answered .text"), self.text("#turns > li:last-child .foot")

    def say(self, text, turns=1):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        return self.end_of_answer(turns)

    def focused(self):
        return self.page.evaluate("document.activeElement.id")

    def body(self, index=-1):
        return json.loads(self.bodies[index])
