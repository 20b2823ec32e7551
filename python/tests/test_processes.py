# SPDX-License-Identifier: Apache-2.0
"""Signals, forks, threads and the end of the interpreter. Each case is a process of its own: it must end as said, never crash."""
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import nibble

TALES = "models/nibble-tales"

# Sends this process a signal when a callback of the library has run `after` times.
INTERRUPT = """
import nibble, os, signal, sys, threading
count = 0
def progress(what, done, total):
    global count
    count += 1
    if count == {after}:
        os.kill(os.getpid(), signal.{name})
"""
CALLS = {
    "load": "nibble.Model('models/nibble-tales', '8da4w', progress=progress).session()",
    "quantize": "nibble.quantize('models/nibble-tales', OUT, '8da4w', progress=progress)",
    "verify": "nibble.verify('models/nibble-tales', progress=progress)",
    "eval": "nibble.eval('models/nibble-tales', 'models/nibble-tales/heldout.txt', progress=progress)",
    "prompt": "list(nibble.Model('models/nibble-tales', progress=progress).generate('wolf ' * 400, max_tokens=4))",
}


def run(code, **options):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=600, **options)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [1, 2])
def test_ctrl_c(call, after, tmp_path):
    done = run(INTERRUPT.format(after=after, name="SIGINT") + f"""
OUT = {str(tmp_path / 'out')!r}
try:
    {CALLS[call]}
except KeyboardInterrupt:
    assert nibble.Model('models/nibble-tales').complete('Once', max_tokens=2)
    print('interrupted after', count)
else:
    print('not interrupted', count)
""")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("interrupted after") or (after > 1 and "not interrupted 1" in done.stdout)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_from_outside():
    """During tokens, without a progress function."""
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent("""
        import nibble
        model = nibble.Model("models/nibble-tales")
        print("ready", flush=True)
        try:
            while True:
                model.complete("Once upon", max_tokens=400, ignore_eos=True)
        except KeyboardInterrupt:
            print(len(model.complete("Once", max_tokens=4, ignore_eos=True)) > 0)
        """)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (0, "True\n", "")


def test_after_ctrl_c_at_a_prompt():
    """There, the traceback of the last exception holds the generation that was interrupted."""
    done = run("""
        import nibble, os, signal
        model = nibble.Model("models/nibble-tales")
        made = nibble._generate._piece_of
        def interrupted(piece):
            os.kill(os.getpid(), signal.SIGINT)
            return made(piece)
        nibble._generate._piece_of = interrupted
        try:
            for piece in model.generate("Once", max_tokens=40):
                assert False, "not interrupted"
        except KeyboardInterrupt as e:
            kept = e
        nibble._generate._piece_of = made
        assert model.complete("Once", max_tokens=2, ignore_eos=True)
        pieces = model.generate("Once", max_tokens=40)
        nibble._generate._piece_of = interrupted
        try:
            next(pieces)
        except KeyboardInterrupt:
            assert pieces.finish == "cancelled" and pieces.stats.new_tokens >= 1
            assert len(list(pieces)) == 1  # the token that was drawn is not lost
        """)
    assert done.returncode == 0, done.stderr


def test_other_signals():
    done = run(INTERRUPT.format(after=1, name="SIGTERM") + """
noted = []
signal.signal(signal.SIGTERM, lambda *_: noted.append(threading.current_thread()))
nibble.verify('models/nibble-tales', progress=progress)  # a handler that does not raise cancels nothing
assert noted == [threading.main_thread()]
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
def leave(*_):
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
count = 0
nibble.verify('models/nibble-tales', progress=progress)
""")
    assert done.returncode == 7 and done.stderr == "", done.stderr


def test_threads_leave_signals_alone():
    done = run("""
        import nibble, threading
        found = []
        def work():
            found.append(nibble.Model('models/nibble-tales').complete('Once', max_tokens=3, temperature=0))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [nibble.Model('models/nibble-tales').complete('Once', max_tokens=3, temperature=0)]
        """)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork():
    done = run("""
        import gc, nibble, os, sys
        model = nibble.Model("models/nibble-tales")
        pieces = model.generate("Once", max_tokens=8, temperature=0)
        first = next(pieces)
        tokenizer = model.tokenizer
        view = model.session().step([(0, 0, 1)], copy=False)
        child = os.fork()
        if child == 0:
            assert tokenizer.decode(tokenizer.encode("Once")) == "Once"  # it needs no threads
            for call in (lambda: next(pieces), lambda: model.plan(layer="lm_head"), lambda: model.generate("x")):
                try:
                    call()
                except nibble.Usage as e:
                    assert "forked" in str(e), e
                else:
                    os._exit(1)
            model.close()
            del pieces, model, view
            gc.collect()
            text = nibble.Model("models/nibble-tales").complete("Once", max_tokens=8, temperature=0)
            sys.exit(0 if text else 2)  # runs the finalizers of the parent's objects, too
        assert os.waitpid(child, 0)[1] == 0
        text = first + "".join(pieces)
        assert text == model.complete("Once", max_tokens=8, temperature=0)
        """)
    assert done.returncode == 0, done.stderr


def test_fork_while_a_thread_is_in_the_library():
    done = run("""
        import nibble, os, sys, threading
        model = nibble.Model("models/nibble-tales")
        thread = threading.Thread(target=lambda: [model.complete("Once", max_tokens=60, ignore_eos=True) for _ in range(4)])
        thread.start()
        children = []
        for _ in range(5):
            child = os.fork()
            if child == 0:
                try:
                    model.complete("Once")
                except nibble.Usage:
                    os._exit(0 if nibble.Model("models/nibble-tales", threads=1).complete("Once", max_tokens=2) else 2)
                os._exit(1)
            children.append(child)
        assert [os.waitpid(c, 0)[1] for c in children] == [0] * 5
        thread.join()
        """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["", "sys.exit(3)", "raise SystemExit(3)", "os._exit(3)", "1 / 0"])
def test_the_interpreter_ends_in_the_middle(how):
    """While daemon threads are in the library, with everything open."""
    done = run(f"""
        import nibble, os, sys, threading, time
        models = [nibble.Model("models/nibble-tales", progress=lambda *_: None) for _ in range(2)]
        def work(model):
            while True:
                model.complete("wolf " * 200, max_tokens=100, ignore_eos=True)
        for model in models:
            threading.Thread(target=work, args=(model,), daemon=True).start()
        other = nibble.Model("models/nibble-tales")
        pieces = other.generate("Once")
        next(pieces)
        view = other.session().step([(0, 0, 1)], copy=False)
        time.sleep(0.3)
        {how}
        """)
    wanted = {"": 0, "1 / 0": 1}.get(how, 3)
    assert done.returncode == wanted, (done.returncode, done.stderr)
    assert "Fatal" not in done.stderr and ("Error" not in done.stderr or how == "1 / 0"), done.stderr


def test_exit_without_closing():
    done = run("""
        import nibble
        model = nibble.Model("models/nibble-tales")
        loop = [model]
        loop.append(loop)
        session = model.session()
        next(session.generate("Once"))
        """)
    assert (done.returncode, done.stderr) == (0, "")


def test_models_are_freed():
    """Without a collection, so that memory does not pile up; and in cycles, by a collection."""
    done = run("""
        import gc, nibble
        from nibble._engine import Engine
        gc.disable()
        for _ in range(3):
            model = nibble.Model("models/nibble-tales", threads=1)
            model.complete("Once", max_tokens=2)
            roots = [model._root, model._handle, model._own._handle]
            model.tokenizer, model.facts
            del model
            assert [h.pointer for h in roots] == [None] * 3
        gc.enable()
        class Holder:
            def __init__(self):
                self.model = nibble.Model("models/nibble-tales", threads=1, progress=self.progress, log=self.progress)
            def progress(self, *_):
                pass
        holder = Holder()
        root = holder.model._root
        del holder
        gc.collect()
        assert root.pointer is None
        """)
    assert done.returncode == 0, done.stderr


def test_the_collector_runs_in_callbacks():
    """Objects that die while their engine is in use are closed when it is free."""
    done = run("""
        import gc, nibble
        kept = []
        def progress(what, *_):
            if what == "prompt":
                kept.clear()
                gc.collect()
        model = nibble.Model("models/nibble-tales", progress=progress)
        session = model.session()
        for _ in range(3):
            kept.append(model.session())
            kept.append(model.session().generate("Once"))
            handles = [kept[0]._handle, kept[1]._handle]
            list(session.generate("wolf " * 300, max_tokens=2))
            assert not kept and [h.pointer for h in handles] == [None, None], handles
        """)
    assert done.returncode == 0, done.stderr


def test_multiprocessing():
    done = run("""
        import multiprocessing, nibble
        def work(seed):
            return nibble.Model("models/nibble-tales", threads=1).complete("Once", max_tokens=4, seed=seed)
        if __name__ == "__main__":
            here = [work(s) for s in range(2)]
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(work, range(2)) == here
        """)
    assert done.returncode == 0, done.stderr


def test_a_truncated_model_is_an_error(tmp_path):
    """A file that another process writes to while it is mapped."""
    import shutil
    shutil.copytree(TALES, tmp_path / "model")
    with nibble.Model(tmp_path / "model") as model, model.session() as session:
        session.step([(0, 0, 1)])
        path = tmp_path / "model" / "model.safetensors"
        with open(path, "r+b") as f:
            f.seek(-2, os.SEEK_END)
            f.write(b"ab")
        with pytest.raises(nibble.IOFailed, match="model.safetensors"):
            session.step([(0, 1, 1)])
