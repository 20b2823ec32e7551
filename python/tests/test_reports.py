# SPDX-License-Identifier: Apache-2.0
"""What is done with models besides running them: the reports of the program, as dicts."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

import nibble

TALES = "models/nibble-tales"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    out = tmp_path_factory.mktemp("models") / "tales-8da4w"
    nibble.quantize(TALES, out, "8da4w")
    return out


def test_tables(program, program_json):
    for function, command in ((nibble.kernels, "kernels"), (nibble.recipes, "recipes"), (nibble.models, "models"),
                              (nibble.formats, "formats"), (nibble.explain, "explain")):
        assert function() == program_json(command)
        assert function(form="text") == program(command)
        assert function(form="markdown") == program(command, "--markdown")
    assert nibble.devices("h200") == program_json("devices", "h200")
    assert [d["name"] for d in nibble.devices()["devices"]] == [d["name"] for d in program_json("devices")["devices"]]
    assert nibble.explain("n%128", form="text") == program("explain", "n%128")
    with pytest.raises(nibble.Usage, match="did you mean"):
        nibble.explain("lookupp")
    with pytest.raises(ValueError, match="form 'html'"):
        nibble.recipes(form="html")
    with pytest.raises(nibble.Usage, match="form 'markdown' is not one of json, text"):
        nibble.info(TALES, form="markdown")
    with pytest.raises(TypeError, match="forms"):
        nibble.recipes(forms="text")


def test_info(program, program_json, quantized):
    for path in (TALES, quantized):
        assert nibble.info(path) == program_json("info", path)
    assert nibble.info(TALES, form="text") == program("info", TALES)


def test_quantize(program_json, quantized, tmp_path):
    out = tmp_path / "out"
    report = nibble.quantize(TALES, out, recipe="8da4w", format="nibble", skip="lm_head")
    wanted = program_json("quantize", TALES, tmp_path / "wanted", "--recipe", "8da4w", "--format", "nibble", "--skip", "lm_head")
    for name in sorted(os.listdir(tmp_path / "wanted")):
        assert (out / name).read_bytes() == (tmp_path / "wanted" / name).read_bytes(), name
    assert report.keys() == wanted.keys() and report["layers"] == wanted["layers"]
    with pytest.raises(nibble.Exists) as caught:
        nibble.quantize(TALES, out, "8da4w")
    assert isinstance(caught.value, FileExistsError) and caught.value.exit_status == 6
    nibble.quantize(TALES, out, "int8wo", force=True)
    assert nibble.plan(out)["lm_head"].asked.startswith("int8wo")
    dry = nibble.quantize(TALES, tmp_path / "dry", "8da4w", dry_run=True)
    assert dry["layers"] and not (tmp_path / "dry").exists()
    assert isinstance(nibble.quantize(TALES, tmp_path / "text", "8da4w", form="text"), str)
    with pytest.raises(nibble.Usage, match="8da4w"):
        nibble.quantize(TALES, tmp_path / "no", "8da4")


def test_convert(quantized, tmp_path):
    report = nibble.convert(quantized, tmp_path / "ct", "compressed-tensors")
    assert {layer["kept"] for layer in report["layers"]} <= {"lossless", "exact after a change of layout"}
    assert (tmp_path / "ct" / "model.safetensors").exists() and nibble.verify(tmp_path / "ct", quantized)["problems"] == 0
    with nibble.Model(tmp_path / "ct") as a, nibble.Model(quantized) as b:
        assert a.complete("Once", max_tokens=8, temperature=0) == b.complete("Once", max_tokens=8, temperature=0)
    with pytest.raises(nibble.Usage):
        nibble.convert(quantized, tmp_path / "x", "no-such-format")


def test_imatrix(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a fox. " * 20)
    report = nibble.imatrix(TALES, tmp_path / "im.gguf", text)
    assert report["entries"] == report["matrices"] == 36 and report["chunks"] == 1
    with pytest.raises(nibble.Exists):
        nibble.imatrix(TALES, tmp_path / "im.gguf", text)
    for out, options in (("a", {"imatrix": tmp_path / "im.gguf"}), ("b", {"calibrate": text})):
        nibble.quantize(TALES, tmp_path / out, "int4wo-sym", method="search", **options)
    a, b = ((tmp_path / out / "model.safetensors").read_bytes() for out in "ab")
    assert a == b


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_sign(quantized, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    (tmp_path / "signers").write_text("alice " + (tmp_path / "key.pub").read_text())
    signed = tmp_path / "signed"
    shutil.copytree(quantized, signed)
    with pytest.raises(nibble.CheckFailed):
        nibble.verify(signed, signers=tmp_path / "signers")
    report = nibble.sign(signed, tmp_path / "key")
    assert report["files"] == len(list(quantized.iterdir()))
    notes = nibble.verify(signed, signers=tmp_path / "signers", signer="alice")["notes"]
    assert "signed by alice" in [note["text"] for note in notes if note["code"] == "signature"][0]
    with pytest.raises(nibble.Exists):
        nibble.sign(signed, tmp_path / "key")


def test_verify(program_json, quantized, tmp_path):
    assert nibble.verify(quantized) == program_json("verify", quantized, "--sandbox", "off")
    broken = tmp_path / "broken"
    shutil.copytree(quantized, broken)
    weights = broken / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    with pytest.raises(nibble.CheckFailed) as caught:
        nibble.verify(broken)
    assert caught.value.report["findings"] and caught.value.status == "CHECK_FAILED" and caught.value.exit_status == 8


def test_verify_from(program_json, quantized):
    report = nibble.verify_from(quantized, TALES)
    assert report == program_json("verify", quantized, "--from", TALES)
    assert report["problems"] == 0 and report["made_again"]
    with pytest.raises(nibble.BadInput):
        nibble.verify_from(TALES, quantized)


def same_comparison(found, wanted):
    """What `nibble eval --json` prints of a comparison, in nine digits."""
    told, at = found.comparison, wanted["kl_largest_at"]
    for name in ("against_loss", "loss_difference", "perplexity_ratio", "kl_median", "kl_p99", "kl_p999", "kl_largest"):
        assert getattr(told, name) == pytest.approx(wanted[name], rel=1e-7), name
    assert (told.kl_largest_unit, told.kl_largest_position, told.kl_largest_token) == (at["window"], at["position"], at["token"])
    positions = {p["from"]: (p["predicted"], pytest.approx(p["kl"], rel=1e-7)) for p in wanted["kl_by_position"] if p["predicted"]}
    assert told.kl_by_position == positions and told.units == wanted["intervals"]["units"]
    for name in ("kl", "loss_difference", "perplexity_ratio", "top1_agreement"):
        assert getattr(told, f"{name}_interval") == pytest.approx(tuple(wanted["intervals"][name]), rel=1e-7), name


def test_eval(program_json, quantized, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(open(f"{TALES}/heldout.txt", encoding="utf-8").read()[:3000], encoding="utf-8")
    for recipe, arguments in ((None, []), ("int8wo", ["--recipe", "int8wo"])):
        found = nibble.eval(TALES, text, recipe, window=128)
        wanted = program_json("eval", TALES, "--text", text, "--window", 128, *arguments)
        assert (found.loss, found.predicted) == (pytest.approx(wanted["loss"], rel=1e-8), wanted["predicted"])
        assert found.kl is None and found.top1_agreement is None and found.plan.counts == wanted["counts"]
    found = nibble.eval(quantized, text, window=128, against=TALES)
    wanted = program_json("eval", quantized, "--text", text, "--window", 128, "--against", TALES)
    assert found.kl == pytest.approx(wanted["kl"], rel=1e-8) and found.top1_agreement == pytest.approx(wanted["top1_agreement"])
    assert found.comparison.kl_interval is None and wanted["intervals"]["absent"] == "few_units" and found.comparison.units > 1
    logits = tmp_path / "tales.logits"
    alone = nibble.eval(TALES, text, window=32, save_logits=logits)
    assert alone.comparison is None and alone.first_scored == 0
    found = nibble.eval(quantized, text, against=logits)
    wanted = program_json("eval", quantized, "--text", text, "--against", logits)
    same_comparison(found, wanted)
    assert found.against_plan is None and found.comparison.against_loss == alone.loss
    with pytest.raises(nibble.Exists):
        nibble.eval(TALES, text, window=32, save_logits=logits)
    with pytest.raises(nibble.Usage, match="unknown format of logits"):
        nibble.eval(TALES, text, save_logits=tmp_path / "other.logits", logits_format="f8")
    with pytest.raises(nibble.IOFailed):
        nibble.eval(TALES, tmp_path / "no-such-text")


def test_advise(program_json):
    found = nibble.advise("configs/shapes/llama-3.2-1b/config.json", ["int8wo", "8da4w"], device="h200", memory=2 * 10**9)
    wanted = program_json("advise", "configs/shapes/llama-3.2-1b/config.json", "int8wo", "8da4w", "--device", "h200", "--memory", "2GB")
    assert found == wanted
    with pytest.raises(nibble.NoMemory) as caught:
        nibble.advise("configs/shapes/llama-3.2-1b/config.json", "int8wo", device="h200", memory=1000)
    assert isinstance(caught.value.report, dict) and caught.value.report["settings"] is not None


def test_progress(tmp_path):
    seen = []
    nibble.quantize(TALES, tmp_path / "a", "8da4w", progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen and all(isinstance(w, str) and 0 <= d <= t for w, d, t in seen)
    with pytest.raises(nibble.Cancelled) as caught:
        nibble.quantize(TALES, tmp_path / "b", "8da4w", progress=lambda *_: False)
    assert caught.value.exit_status == 130 and not (tmp_path / "b").exists()

    class Own(Exception):
        pass

    def fails(what, done, total):
        raise Own(what)

    with pytest.raises(Own) as raised:
        nibble.quantize(TALES, tmp_path / "c", "8da4w", progress=fails)
    assert raised.traceback[-1].name == "fails" and not (tmp_path / "c").exists()
    for call in (lambda p: nibble.verify(TALES, progress=p), lambda p: nibble.eval(TALES, f"{TALES}/heldout.txt", progress=p)):
        with pytest.raises(Own):
            call(fails)
    with pytest.raises(TypeError, match="progress"):
        nibble.verify(TALES, progress=3)


def test_callbacks_of_a_model():
    state = {}

    def progress(what, done, total):
        if state.get("call"):
            state.pop("call")()
        return state.get("go_on", True)

    with nibble.Model(TALES, progress=progress) as model:
        session = model.session()
        state["call"] = model.plan  # the engine is in use by this thread
        with pytest.raises(nibble.Usage, match="callback"):
            list(session.generate("wolf " * 300, max_tokens=2))
        state["go_on"] = False
        pieces = session.generate("wolf " * 300, max_tokens=2)
        with pytest.raises(nibble.Cancelled):
            next(pieces)
        assert pieces.finish == "cancelled"
        with pytest.raises(StopIteration):
            next(pieces)
        state["go_on"] = None
        assert len(list(session.generate("wolf " * 300, max_tokens=2))) == 2

    def log(line):
        raise RuntimeError(line)

    with nibble.Model(TALES, log=log) as model, pytest.raises(RuntimeError, match="--top-k 4"):
        model.generate("Once", temperature=0, top_k=4)


def test_errors_have_status_and_code(tmp_path):
    with pytest.raises(nibble.IOFailed, match="no-such-model") as caught:
        nibble.Model("no-such-model")
    error = caught.value
    assert isinstance(error, nibble.Error) and isinstance(error, OSError)
    assert (error.status, error.code, error.exit_status) == ("IO", 7, 6)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    shutil.copy(f"{TALES}/config.json", tmp_path)
    with pytest.raises(nibble.BadInput) as caught:
        nibble.Model(tmp_path)
    assert isinstance(caught.value, ValueError) and str(tmp_path) in str(caught.value)
    config = json.load(open(f"{TALES}/config.json"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Unknown"], "model_type": "unknown"}))
    with pytest.raises(nibble.Unsupported):
        nibble.Model(tmp_path / "config.json")
    for call in (nibble.Model, nibble.Tokenizer, nibble.info, nibble.devices):
        with pytest.raises(ValueError, match="path has a NUL character at 6"):
            call("models\0/nibble-tales")
        with pytest.raises(TypeError):
            call(3)
    assert repr(nibble.Model(os.fsencode(TALES))) == repr(nibble.Model(pathlib.Path(TALES))) == f"<nibble.Model {TALES}>"
    with pytest.raises(nibble.Usage, match="isa"):
        nibble.Model(TALES, isa="mmx")
    with pytest.raises(nibble.Usage, match="threads"):
        nibble.Model(TALES, threads=1 << 20)
    # the library would take the default for these
    for options in ({"context": 0}, {"context": -5}, {"memory": 0}, {"lookup": -1}):
        with pytest.raises(nibble.Usage, match="leave it out for the default"):
            nibble.Model(TALES, **options)
    for call in (nibble.advise, lambda path, **options: nibble.eval(path, "heldout.txt", **options)):
        with pytest.raises(nibble.Usage, match="window 0 is less than 1"):
            call(TALES, window=0)
    assert issubclass(nibble.NoMemory, MemoryError) and issubclass(nibble.Usage, ValueError)
