#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does PyPI's model-signing accept what `nibble sign` signs with a key in PEM, and `nibble verify` what model-signing signs?

usage: tools/oracle/signed_bundles.py NIBBLE MODEL    (in a Python with model-signing, of 1.1.1; needs openssl)
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

from model_signing import signing, verifying

CURVES = ["prime256v1", "secp384r1", "secp521r1"]


def run(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True)


def accepts(model, public):
    try:
        verifying.Config().use_elliptic_key_verifier(public_key=public).verify(model, model / "model.sig")
    except Exception as why:  # of many kinds
        return str(why)
    return ""


def main():
    nibble, source = sys.argv[1:]
    wrong = []

    def need(condition, what):
        print("ok  " if condition else "FAIL", what)
        if not condition:
            wrong.append(what)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for curve in CURVES:
            private, public, model = folder / f"{curve}.pem", folder / f"{curve}.pub", folder / curve
            run("openssl", "ecparam", "-name", curve, "-genkey", "-noout", "-out", private)
            run("openssl", "pkey", "-in", private, "-pubout", "-out", public)
            shutil.copytree(source, model)
            need(run(nibble, "sign", model, "--key", private).returncode == 0, f"{curve}: nibble signs")
            need(accepts(model, public) == "", f"{curve}: model-signing accepts it")
            config = (model / "config.json").read_text()
            (model / "config.json").write_text(config + "\n")
            need("config.json" in accepts(model, public), f"{curve}: model-signing names a changed file")
            (model / "config.json").write_text(config)
            (model / "model.sig").unlink()
            signing.Config().use_elliptic_key_signer(private_key=private).sign(model, model / "model.sig")
            report = run(nibble, "verify", model, "--signers", public)
            need(report.returncode == 0 and "model.sig: signed by" in report.stdout, f"{curve}: nibble accepts model-signing's")
            (model / "config.json").write_text(config + "\n")
            report = run(nibble, "verify", model, "--signers", public)
            need(report.returncode == 8 and "signed-file: config.json" in report.stdout, f"{curve}: nibble names a changed file")
    return len(wrong) != 0


if __name__ == "__main__":
    sys.exit(main())
