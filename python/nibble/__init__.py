# SPDX-License-Identifier: Apache-2.0
"""Low-bit language models: plan, run, quantize and check them, and say what is not done as asked.

>>> import nibble
>>> model = nibble.Model("models/nibble-tales", recipe="8da4w")
>>> for piece in model.generate("Once upon a time", max_tokens=8, temperature=0):
...     print(piece, end="")
, and the cook was to be

docs/python.md of the project is the guide.
"""
from ._api import VERSION as __version__
from ._errors import (BadInput, Cancelled, CheckFailed, Error, Exists, Failed, IOFailed, NoMemory,
                      NotAsAsked, Unsupported, Usage)
from ._generate import Generation, Piece, Stats, TokenLogprob
from ._model import Model, ModelFacts
from ._plan import (Plan, PlanAdvice, PlanCandidate, PlanLayer, PlanSetting, PlanUse, Reason)
from ._reports import (Comparison, EvalResult, advise, convert, devices, eval, explain, formats,
                       imatrix, info, kernels, models, plan, quantize, recipes, sign, verify,
                       verify_from)
from ._session import HIDDEN, LOGITS, Sampler, Session
from ._tokenizer import Tokenizer

__all__ = [
    "BadInput", "Cancelled", "CheckFailed", "Comparison", "Error", "EvalResult", "Exists", "Failed",
    "Generation", "HIDDEN", "IOFailed", "LOGITS", "Model", "ModelFacts", "NoMemory", "NotAsAsked", "Piece", "Plan",
    "PlanAdvice", "PlanCandidate", "PlanLayer", "PlanSetting", "PlanUse", "Reason", "Sampler",
    "Session", "Stats", "TokenLogprob", "Tokenizer", "Unsupported", "Usage", "__version__", "advise",
    "convert", "devices", "eval", "explain", "formats", "imatrix", "info", "kernels", "models", "plan",
    "quantize", "recipes", "sign", "verify", "verify_from",
]
