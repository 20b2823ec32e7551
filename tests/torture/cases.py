# SPDX-License-Identifier: Apache-2.0
"""The commands that tests/torture/run disturbs, and the small model that they work on."""
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "serve"))
import serving  # noqa: E402

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 288,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 256, "eos_token_id": 257}
KINDS = ["open", "read", "write", "sync", "rename", "map", "resize", "close", "make", "list", "remove", "look", "lock", "thread",
         "memory"]
HAS_KEYGEN = shutil.which("ssh-keygen", path="/usr/bin:/bin") is not None
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
TEXT = "The thing in the garden is the thing that sings, and then the wind is in the trees. " * 4
TRAINING = {"model": {"name": "llama3", "dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "vocab_size": 288, "multiple_of": 16,
                      "tokenizer_path": "m"},
            "training": {"dataset_path": "text.txt", "local_batch_size": 1, "seq_len": 16, "steps": 4},
            "checkpoint": {"enable": True, "interval": 2, "keep_latest_k": 1}, "job": {"dump_folder": "out"},
            "metrics": {"path": "metrics.jsonl", "log_freq": 1}}


def environment(home):
    """Nothing of the caller's. Freed and new memory is filled, and there is no OpenCL, whose libraries are not tested here."""
    return {"PATH": "/usr/bin:/bin", "HOME": home, "LC_ALL": "C", "TERM": "dumb", "MALLOC_PERTURB_": "165",
            "OCL_ICD_VENDORS": "/nonexistent", "XDG_CACHE_HOME": home + "/in/cache"}


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def make_tokenizer(path):
    """Byte-level BPE with four merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    characters = [chr(b) if b in printable else chr(256 + rest.index(b)) for b in range(256)]
    vocabulary = {c: i for i, c in enumerate(characters)}
    merges = ["t h", "th e", "\u0120 a", "i n"]
    vocabulary.update({m.replace(" ", "", 1): 258 + i for i, m in enumerate(merges)})
    special = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i, c in ((256, "<s>"), (257, "</s>"))]
    write(path, json.dumps({
        "version": "1.0", "added_tokens": special, "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}))


def make_fixture(build, at):
    """m: a random model of 150 kB; q: quantized, with packed weights; q.gguf; a text; a training config."""
    os.makedirs(at + "/shape")
    os.makedirs(at + "/cache")
    write(at + "/shape/config.json", json.dumps(CONFIG))
    env = environment(os.path.dirname(at))

    def run(program, *arguments):
        subprocess.run([os.path.join(build, program), *arguments], cwd=at, env=env, check=True, capture_output=True)
    run("tools/random_checkpoint", "shape", "m")
    os.makedirs(at + "/cache/nibble")  # what is measured once need not be measured by every run
    run("tools/keep_machine", "cache/nibble/machine.json")
    make_tokenizer(at + "/m/tokenizer.json")
    write(at + "/m/chat_template.jinja", TEMPLATE)
    write(at + "/text.txt", TEXT)
    write(at + "/train.json", json.dumps(TRAINING))
    run("nibble", "train", "train.json", "-t", "1")
    shutil.copy(at + "/out/metrics.jsonl", at + "/metrics.jsonl")
    run("nibble", "quantize", "m", "q", "--recipe", "8da4w", "--pack", "-t", "1")
    if HAS_KEYGEN:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], cwd=at, env=env, check=True)
        with open(at + "/key.pub", encoding="utf-8") as f:
            write(at + "/signers", "alice " + f.read())
        shutil.copytree(at + "/q", at + "/signed")
        run("nibble", "sign", "signed", "--key", "key")
    run("nibble", "quantize", "m", "q.gguf", "--recipe", "int8wo-g32-ggml", "--allow", "activations", "--format", "gguf", "-t", "1")
    return at


# ---- what a run leaves ----

def snapshot(folder):
    """{path: digest} of every file under a folder; of a folder without files, None. Empty locks and the marks of unfinished
    output, which may stay where nothing can be removed, are left out."""
    found = {}
    for at, folders, files in os.walk(folder):
        for name in files:
            if name.endswith(".lock") or name == ".nibble-part":
                continue
            path = os.path.join(at, name)
            with open(path, "rb") as f:
                found[os.path.relpath(path, folder)] = hashlib.sha256(f.read()).hexdigest()
        if not files and not folders and at != folder:
            found[os.path.relpath(at, folder)] = None
    return found


def entries(tree):
    return sorted({path.split("/")[0] for path in tree})


def entry(tree, name):
    """The part of a snapshot under one name, without that name; empty where there is none."""
    return {path[len(name):]: digest for path, digest in tree.items() if path.split("/")[0] == name}


class Outcome:
    def __init__(self, status, output, errors):
        self.status, self.output, self.errors = status, output, errors
        self.tree = None


def without_times(text):
    return re.sub(r"[0-9.]+ s\b", "T s", text)


def without_numbers(line):
    return re.sub(r"[0-9]+([.,][0-9]+)*(e[-+]?[0-9]+)?", "N", line)


def without_speeds(text):
    """Without numbers, the line breaks that depend on their length, and where speeds are from: a machine that is busy or has no file
    of them is measured again."""
    return " ".join(without_numbers(re.sub(r'"[^"]*measured here[^"]*"|\(measured here[^)]*\)', "measured", text)).split())


class Case:
    """A command. kinds: the calls to fail; old: an output that it replaces; again: after a failure, the same command succeeds;
    reports: what begins lines of the output that report a failure; free: names that hold what the failure left of them; continues:
    an error does not end the command, which may report several; own_cache: measured speeds are kept in the run's folder;
    measured: the output has measured speeds, which are measured again where their file cannot be read, so its numbers are not
    compared."""

    def __init__(self, name, *arguments, text="", old=None, kinds=None, every=1, again=None, statuses=(), reports=None, free=(),
                 continues=False, own_cache=False, measured=False):
        self.reports, self.free, self.continues, self.own_cache = reports, free, continues, own_cache
        self.measured, self.shown = measured, without_speeds if measured else without_times
        self.name, self.arguments, self.text, self.replaced = name, arguments, text, old
        self.kinds = kinds or KINDS
        self.every, self.statuses = every, list(statuses)
        self.again = "out" in " ".join(arguments) if again is None else again
        self.undisturbed = []

    def before(self, nibble, folder, env):
        if self.measured and not self.own_cache:  # a copy, which the run may replace
            shutil.copytree(os.path.join(folder, "../in/cache"), folder + "/cache")
        if self.replaced:
            source = os.path.join(folder, "../in", self.replaced[0])
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, os.path.join(folder, self.replaced[1]))

    def run(self, nibble, folder, env, limit):
        if self.own_cache or self.measured:
            env = dict(env, XDG_CACHE_HOME=folder + "/cache")
        p = subprocess.run([nibble, *self.arguments], cwd=folder, env=env, input=self.text, capture_output=True, text=True,
                           errors="replace", timeout=limit)
        return Outcome(p.returncode, p.stdout, p.stderr)

    def stable(self):
        a, b = self.undisturbed
        return {path for path in a.tree if a.tree[path] == b.tree.get(path)}

    def difference(self, outcome, tree):
        """What differs from an undisturbed run, where two of those agree."""
        a, b = self.undisturbed
        if outcome is not None and self.shown(outcome.output) != self.shown(a.output):
            if self.shown(a.output) == self.shown(b.output):
                return "prints something else: " + first_difference(self.shown(a.output), self.shown(outcome.output))
        files = {path for path in set(tree) ^ set(a.tree) if path.split("/")[0] not in self.free}
        if files:
            return "the files differ: %s" % sorted(files)
        for path in sorted(self.stable()):
            if path in tree and tree[path] != a.tree[path] and path.split("/")[0] not in self.free:
                return path + " differs"
        return None

    def tells(self, line):
        """The line is not an error."""
        del line
        return False

    def may_differ(self, name):
        return name in self.free or any(
            path.split("/")[0] == name and path not in self.stable() for path in self.undisturbed[0].tree)

    def notes(self, outcome):
        """Lines that report something and that an undisturbed run does not print."""
        usual = {without_numbers(line) for line in self.undisturbed[0].errors.split("\n")}
        lines = outcome.errors.split("\n") + [line for line in outcome.output.split("\n")
                                              if self.reports and line.startswith(self.reports)]
        return [line for line in lines if without_numbers(line) not in usual]


class Serve(Case):
    """A server and six requests to it, two of them at the same time. One that cannot be answered is refused, or its connection
    is closed; the answers are those of an undisturbed server, and after the failure it goes on."""
    ONCE = {"prompt": "The thing", "max_tokens": 4, "seed": 3, "ignore_eos": True}
    CHAT = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 4, "seed": 3, "stream": True}

    def run(self, nibble, folder, env, limit):
        serving.NIBBLE = nibble
        server = serving.Server.__new__(serving.Server)
        answers = []
        watch = threading.Timer(limit, lambda: server.process.kill())
        watch.start()
        try:
            server.__init__(self.arguments[0], *self.arguments[1:], cwd=folder, env=env)
            answers = self.ask_all(server, limit)
            server.stop()
        except RuntimeError:  # it did not start
            server.process.wait()
        finally:
            watch.cancel()
        return Outcome(server.process.returncode, json.dumps(answers), "\n".join(server.lines))

    def ask_all(self, server, limit):
        answers = [None] * 6
        calls = [("POST", "/v1/completions", self.ONCE), ("POST", "/v1/chat/completions", self.CHAT),
                 ("POST", "/v1/completions", self.ONCE), ("POST", "/v1/completions", dict(self.ONCE, prompt="Then")),
                 ("GET", "/v1/models", None), ("POST", "/v1/completions", self.ONCE)]

        def ask(i):
            try:
                status, _, text = server.ask(*calls[i], timeout=limit)
                racing = r'"(id|created|cached_tokens|recomputed_tokens|recomputed_because)": ?("[^"]*"|[0-9]+),? ?|"notes": ?\[[^]]*\],? ?'
                answers[i] = [status, re.sub(racing, "", text) if status == 200 else ""]
            except (OSError, http.client.HTTPException):
                answers[i] = [0, ""]
        ask(0)
        ask(1)
        both = [threading.Thread(target=ask, args=(i,)) for i in (2, 3)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        ask(4)
        ask(5)
        return answers

    def tells(self, line):
        return line.startswith(("nibble: serving ", "nibble: stopping "))

    def difference(self, outcome, tree):
        usual, answers = json.loads(self.undisturbed[0].output), json.loads(outcome.output)
        for i, (a, b) in enumerate(zip(usual, answers)):
            if b != a and b[0] not in (0, 500, 503):
                return "answer %d is %s, not %s" % (i, b, a)
        return None


def first_difference(a, b):
    for x, y in zip(a.split("\n"), b.split("\n")):
        if x != y:
            return "%r, not %r" % (y, x)
    return "%d bytes, not %d" % (len(b), len(a))


def cases(fixture):
    del fixture
    one = ("-t", "1", "--isa", "ref")
    m, q = "../in/m", "../in/q"
    ggml = ("--recipe", "int8wo-g32-ggml", "--allow", "activations")
    quantize = [("torchao", "8da4w"), ("nibble", "int4wo"), ("8da4w", "8da4w"), ("compressed-tensors", "int8wo")]
    signatures = [
        Case("sign", "sign", "out", "--key", "../in/key", "--force", old=("q", "out"), free=("out",), statuses=[1]),
        Case("quantize-sign", "quantize", m, "out", "--recipe", "8da4w", "--sign", "../in/key", *one, free=("out",), statuses=[1],
             again=False),
        Case("verify-signed", "verify", "../in/signed", "--signers", "../in/signers", *one, statuses=[8])]
    if not HAS_KEYGEN:
        print("skipped: signatures: ssh-keygen is not installed")
        signatures = []
    return [
        *signatures,
        *(Case("quantize-" + f, "quantize", m, "out", "--recipe", r, "--format", f, *one) for f, r in quantize),
        Case("quantize-gguf", "quantize", m, "out.gguf", *ggml, "--format", "gguf", *one),
        Case("quantize-file", "quantize", m + "/model.safetensors", "out.safetensors", "--recipe", "int8wo", *one),
        Case("quantize-pack", "quantize", m, "out", "--recipe", "8da4w", "--pack", *one),
        Case("quantize-static", "quantize", m, "out", "--recipe", "int8dq-static", "--calibrate", "../in/text.txt", *one),
        Case("quantize-search", "quantize", m, "out", "--recipe", "8da4w", "--method", "search", "--calibrate", "../in/text.txt", *one),
        Case("quantize-gptq", "quantize", m, "out", "--recipe", "8da4w", "--method", "gptq", "--calibrate", "../in/text.txt", *one,
             free=("out.codes",), reports="note: gptq: "),
        Case("quantize-qronos", "quantize", m, "out", "--recipe", "8da4w", "--method", "qronos", "--calibrate", "../in/text.txt", *one,
             free=("out.codes",), reports="note: qronos: "),
        Case("quantize-replace", "quantize", m, "out", "--recipe", "int8wo", "--force", *one, old=("q", "out")),
        Case("quantize-replace-gguf", "quantize", m, "out.gguf", *ggml, "--format", "gguf", "--force", *one, old=("q.gguf", "out.gguf")),
        Case("quantize-threads", "quantize", m, "out", "--recipe", "8da4w", "-t", "3", kinds=["thread"]),
        Case("convert", "convert", q, "out", "--format", "nibble", *one),
        Case("convert-from-gguf", "convert", "../in/q.gguf", "out.safetensors", "--format", "nibble", *one),
        Case("verify", "verify", q, *one, statuses=[8]),
        Case("verify-against", "verify", q, "--against", m, *one, statuses=[8], reports="as models: not compared: "),
        Case("info", "info", q),
        Case("info-gguf", "info", "../in/q.gguf"),
        Case("plan", "plan", m, "--recipe", "8da4w", "--json", *one, measured=True, reports=('      "code": "packed"', '      "code": "tuned"'), free=("cache",)),
        Case("plan-packed", "plan", q, *one, measured=True, reports="note: ", free=("cache",)),
        Case("eval", "eval", q, "--text", "../in/text.txt", "--window", "32", *one),
        Case("generate", "generate", m, "-p", "The thing", "-n", "6", "-s", "1", *one),
        Case("generate-packed", "generate", q, "-p", "The thing", "-n", "6", "-s", "1", *one),
        Case("generate-threads", "generate", q, "-p", "The thing", "-n", "6", "-s", "1", "-t", "3", kinds=["thread"]),
        Case("generate-gguf", "generate", "../in/q.gguf", "-f", "../in/text.txt", "-n", "6", *one),
        Case("generate-cache", "generate", m, "--recipe", "8da4w", "-p", "The", "-n", "4", "--cache-dir", "out", *one, free=("out",)),
        Case("chat", "chat", m, "-n", "4", "-s", "1", *one, text="one\n/save out\ntwo\n/load out\n/stats\n", free=("out",), again=False,
             continues=True),
        Case("train", "train", "../in/train.json", "--export", "out.export", *one),
        Case("advise", "advise", m, "8da4w", "--dry-run", "--device", "h200", "--svg", "out.svg", *one),
        Case("advise-methods", "advise", m, "int4wo-sym", "--text", "../in/text.txt", "--method", "search,gptq", "--calibrate", "../in/text.txt",
             "--device", "h200", "--scratch", ".", *one, free=("nibble-advise.part", "nibble-advise.verify.codes"), reports="int4wo-sym"),
        Case("plot", "plot", "../in/metrics.jsonl", "-o", "out.svg"),
        Case("tune", "tune", m, *one, every=20, own_cache=True, free=("cache",), measured=True),
        Case("devices", "devices", "--json", "-t", "1", measured=True, free=("cache",)),
        Serve("serve", m, "-t", "1", "--isa", "ref", "--parallel", "2", every=5, kinds=[*KINDS, "socket"]),
    ]
