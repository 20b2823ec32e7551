# SPDX-License-Identifier: Apache-2.0
"""A server under test, and requests by hand: whole ones, streams, and bytes of a socket."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NIBBLE = os.environ.get("NIBBLE", os.path.join(REPO, "build/release/nibble"))
MODEL = os.path.join(REPO, "models/nibble-tales")
TEMPLATE = ("{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
            "{{ raise_exception('no role ' + m.role) }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")

HERMES = os.path.join(REPO, "examples/tools.jinja")  # one that has tools


def chat_model(folder):
    """The shipped model, with a template for chats."""
    to = os.path.join(folder, "tales")
    shutil.copytree(MODEL, to)
    with open(os.path.join(to, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    return to


class Server:
    """`nibble serve MODEL ARGUMENTS`, on a port of its own. slow: a step takes milliseconds, so that there is a middle."""

    def __init__(self, model, *arguments, slow=False, **how):
        arguments = [NIBBLE, "serve", model, "--port", "0", *arguments]
        if slow:
            arguments += ["--isa", "ref", "--threads", "1", "--dtype", "f32"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        errors="replace", **how)
        self.lines = []
        self.port = None
        self.headers = {}  # of requests of its own: a key, where there are keys
        while self.port is None:
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError("the server ended: " + " ".join(self.lines))
            self.lines.append(line.rstrip("\n"))
            found = re.search(r"at http://.*:(\d+)/$", line.rstrip("\n"))
            if found:
                self.port = int(found.group(1))
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)
        return self.process.returncode

    def connect(self, timeout=30, address="127.0.0.1"):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout, source_address=(address, 0))

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, text)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read().decode("utf-8")
        finally:
            c.close()

    def post(self, path, body, headers=None, timeout=60):
        """(status, what the JSON says)"""
        status, _, text = self.ask("POST", path, body, headers, timeout)
        return status, json.loads(text)

    def complete(self, body, **how):
        return self.post("/v1/completions", body, **how)

    def chat(self, body, **how):
        return self.post("/v1/chat/completions", body, **how)

    def stream(self, path, body, timeout=60):
        """The data of a stream's events, but for [DONE], which must come last."""
        status, headers, text = self.ask("POST", path, dict(body, stream=True), timeout=timeout)
        assert status == 200, text
        assert headers["Content-Type"] == "text/event-stream", headers
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert events[-1] == "data: [DONE]", events[-1]
        return [json.loads(e[len("data: "):]) for e in events[:-1]]

    def raw(self, data, timeout=5):
        """What comes back for bytes, until the end or the timeout."""
        with self.connect(timeout) as s:
            s.sendall(data)
            return drain(s)

    def metrics(self, *names):
        """Of one reading: the sum of each."""
        lines = self.ask("GET", "/metrics", headers=self.headers)[2].split("\n")
        return [sum(float(line.split()[-1]) for line in lines if re.match(re.escape(name) + r"[ {]", line)) for name in names]

    def metric(self, name):
        return self.metrics(name)[0]

    def wait_for(self, name, value, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric(name) == value:
                return True
            time.sleep(0.01)
        return False

    def lines_with(self, text, begin, seconds=10):
        """The log's lines from `begin` on, with one that has the text if it comes: a place is free before its line is written."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(text in line for line in self.lines[begin:]):
            time.sleep(0.01)
        return self.lines[begin:]

    def wait_for_nobody(self, seconds=10):
        """Neither running nor waiting: between two requests one alone of these can be 0."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metrics("nibble_sequences_running", "nibble_requests_waiting") == [0, 0]:
                return True
            time.sleep(0.01)
        return False


def drain(s):
    out = b""
    try:
        while True:
            part = s.recv(65536)
            if not part:
                return out
            out += part
    except (TimeoutError, ConnectionError):
        return out


def request_bytes(path, body, *headers):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    head = ["POST %s HTTP/1.1" % path, "Host: localhost", "Content-Length: %d" % len(body), *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


class Checks:
    """Counts; each check names what it shows."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, what, good, *seen):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print("FAIL", what, *(str(s)[:300] for s in seen), flush=True)

    def end(self):
        print("%d passed, %d failed" % (self.passed, self.failed))
        return 1 if self.failed else 0


def scratch():
    return tempfile.TemporaryDirectory(prefix="nibble-serve-")
