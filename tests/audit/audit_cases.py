# SPDX-License-Identifier: Apache-2.0
"""The cases: a random model for each turn, and what is asked of it, class by class."""
import dataclasses
import pathlib
import random
import subprocess
import tempfile

import ask_checkpoints
import ask_filters
import ask_mixtures
import ask_options
import ask_recipes
import ask_training
import ask_values
import models

MODULES = [ask_values, ask_recipes, ask_filters, ask_checkpoints, ask_options, ask_training, ask_mixtures]


@dataclasses.dataclass
class Answer:
    klass: str
    asked: str
    verdict: str
    words: str


def answers(judge, seed, turn, klass="", modules=None):
    """An Answer for each thing asked of the model of this turn. klass: a part of the classes' names; modules: some of MODULES."""
    r = random.Random(seed * 100003 + turn)
    model = models.random_model(r, aligned=r.random() < 0.4)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        source = model.write(folder / "model")
        for module in modules or MODULES:
            for ask in module.make_asks(judge, r, model, source, folder, turn):
                if klass not in ask.klass:
                    continue
                asked = f"{ask.words}, {model.shape_words()}"
                try:
                    verdict, words = judge.judge(ask)
                except (KeyError, ValueError, IndexError, OSError, StopIteration, subprocess.TimeoutExpired) as error:
                    verdict, words = "died", f"{type(error).__name__}: {error}"
                yield Answer(ask.klass, asked, verdict, words.replace(str(folder) + "/", ""))
