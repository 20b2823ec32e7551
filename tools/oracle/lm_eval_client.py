#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyPI's lm-eval as a client of `nibble serve` and compares its loglikelihoods with `nibble eval` and with direct requests.

usage: lm_eval_client.py PROGRAM     Last line: N passed, N failed

The tasks are made from the shipped model's held-out text: beginnings of sentences with the real ending and three
others (multiple_choice), paragraphs after their first token (loglikelihood), whole texts (loglikelihood_rolling), and
beginnings to continue (generate_until).
"""
import collections
import json
import logging
import math
import os
import random
import re
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/serve"))
NIBBLE = os.environ["NIBBLE"] = os.path.abspath(sys.argv[1])
import lm_eval  # noqa: E402
import tokenizers  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from serving import MODEL, Checks, Server, chat_model, scratch  # noqa: E402

check = Checks()
CONTEXT = 512
RECIPE = ["--recipe", "8da4w"]
TASK = """task: %s
dataset_path: json
dataset_kwargs: {data_files: {test: %s}, cache_dir: %s}
test_split: test
output_type: %s
doc_to_text: "{{%s}}"
doc_to_target: "{{%s}}"
metadata: {version: 1}
%s"""


def write_tasks(folder, ids_of):
    """Writes the tasks; returns the documents of each."""
    text = open(os.path.join(MODEL, "heldout.txt"), encoding="utf-8").read()
    chance = random.Random(1)
    sentences = [x for x in re.findall(r"[A-Z][^.!?\"\n]{60,180}[.!?]", text) if x.count(" ") > 12]
    chance.shuffle(sentences)
    halves = [(" ".join(w[:len(w) // 2]), " " + " ".join(w[len(w) // 2:])) for w in (x.split(" ") for x in sentences[:40])]
    choices = []
    for i, (begin, end) in enumerate(halves):
        ends = [end] + [halves[j][1] for j in chance.sample([j for j in range(len(halves)) if j != i], 3)]
        chance.shuffle(ends)
        choices.append({"begin": begin, "ends": ends, "right": ends.index(end)})
    paragraphs = [p for p in text.split("\n\n") if len(p) > 200]
    firsts = [(p.split(" ")[0], p) for p in paragraphs if len(ids_of(p.split(" ")[0])) == 1 and len(ids_of(p)) < CONTEXT]
    documents = {"ends": choices, "paragraphs": [{"begin": w, "end": p[len(w):]} for w, p in firsts[:8]],
                 "texts": [{"text": p, "none": ""} for p in chance.sample(paragraphs, 6) + [text[:6000]]],
                 "goes_on": [{"begin": begin, "end": end} for begin, end in halves[:6]]}
    for name, kind, asks, target, more in (
            ("ends", "multiple_choice", "begin", "right", 'doc_to_choice: ends\ntarget_delimiter: ""\n'
             "metric_list: [{metric: acc}, {metric: acc_norm}]\n"),
            ("paragraphs", "loglikelihood", "begin", "end", 'target_delimiter: ""\nmetric_list: [{metric: perplexity}]\n'),
            ("texts", "loglikelihood_rolling", "none", "text", "metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, "
             "{metric: bits_per_byte}]\n"),
            ("goes_on", "generate_until", "begin", "end", "generation_kwargs: {until: ['.', '!'], max_gen_toks: 24, do_sample: false}\n"
             "metric_list: [{metric: exact_match}]\n")):
        data = os.path.join(folder, name + ".json")
        with open(data, "w", encoding="utf-8") as f:
            json.dump(documents[name], f)
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as f:
            f.write(TASK % (name, data, os.path.join(folder, "cache"), kind, asks, target, more))
    return documents


def evaluate(s, folder, tasks, chat=False, **how):
    """{task: (metrics, samples in the order of the documents)}"""
    route = "chat-completions" if chat else "completions"
    settings = {"model": "tales", "base_url": "http://127.0.0.1:%d/v1/%s" % (s.port, route.replace("-", "/")),
                "max_length": CONTEXT, "max_retries": 1, **how}
    made = lm_eval.simple_evaluate(model="local-" + route, model_args=settings, tasks=tasks, log_samples=True, bootstrap_iters=0,
                                   apply_chat_template=chat, task_manager=TaskManager(include_path=folder, include_defaults=False))
    return {t: (made["results"][t], sorted(made["samples"][t], key=lambda x: x["doc_id"])) for t in tasks}


def loglikelihoods(samples):
    return [[(float(r[0]), bool(r[1])) for r in x["filtered_resps"]] for x in samples]


def by_hand(s, encode, before, behind):
    """The loglikelihood of `behind` after `before`, and whether greedy decoding gives it, from a request with echo."""
    a = s.complete({"prompt": before + behind, "echo": True, "logprobs": 1, "max_tokens": 0})[1]["choices"][0]["logprobs"]
    count = len(encode(before))
    values, tops = a["token_logprobs"][count:], a["top_logprobs"][count:]
    return math.fsum(values), all(v == max(t.values()) for v, t in zip(values, tops))


def test_choices(s, samples, metrics, documents, encode):
    right = right_norm = 0
    for sample, d in zip(samples, documents):
        got = loglikelihoods([sample])[0]
        own = [by_hand(s, encode, d["begin"], end) for end in d["ends"]]
        check("loglikelihoods of choices", all(math.isclose(a[0], b[0], rel_tol=1e-12) and a[1] == b[1] for a, b in zip(got, own)) and
              len(got) == len(own) == 4, got, own)
        right += max(range(4), key=lambda i: own[i][0]) == d["right"]
        right_norm += max(range(4), key=lambda i: own[i][0] / len(d["ends"][i])) == d["right"]
    check("accuracy", metrics["acc,none"] == right / len(documents), metrics, right)
    check("accuracy by length", metrics["acc_norm,none"] == right_norm / len(documents), metrics, right_norm)
    print("accuracy %.3f of %d" % (metrics["acc,none"], len(documents)))


def test_paragraphs(samples, metrics, documents, folder):
    """nibble eval predicts every token but the first, without a token before the text."""
    path, sums = os.path.join(folder, "text.txt"), []
    for sample, d in zip(samples, documents):
        with open(path, "w", encoding="utf-8") as f:
            f.write(d["begin"] + d["end"])
        run = subprocess.run([NIBBLE, "eval", MODEL, *RECIPE, "--text", path, "--json"], capture_output=True, text=True, check=True)
        told = json.loads(run.stdout)
        sums.append(-told["loss"] * told["predicted"])
        got = loglikelihoods([sample])[0][0][0]
        check("nibble eval's loss", math.isclose(sums[-1], got, rel_tol=1e-7), told, got)
    check("perplexity", len(sums) == 8 and math.isclose(metrics["perplexity,none"], math.exp(-sum(sums) / len(sums)), rel_tol=1e-5),
          metrics, sums)


def test_texts(s, samples, metrics, documents, ids_of):
    """lm-eval's windows: the end-of-text token, then CONTEXT - 2 tokens each, all but the first after one token of context."""
    total = words = 0
    for sample, d in zip(samples, documents):
        ids, window, own = ids_of(d["text"]), CONTEXT - 2, 0.0
        before = [ids_of("<|endoftext|>")[0], *ids]
        for at in range(0, len(ids), window):
            # earlier tokens fill up the last window, and do not count twice
            end = min(at + window, len(ids))
            begin = max(0, end - window) if at > 0 else 0
            a = s.complete({"prompt": before[begin:end + 1], "echo": True, "logprobs": 1, "max_tokens": 0})[1]["choices"][0]
            own += math.fsum(a["logprobs"]["token_logprobs"][1 + at - begin:])
        got = float(sample["filtered_resps"][0])
        check("a rolling loglikelihood of %d tokens" % len(ids), math.isclose(got, own, rel_tol=1e-9), got, own)
        total += own
        words += len(re.split(r"\s+", d["text"]))
    check("word_perplexity", math.isclose(metrics["word_perplexity,none"], math.exp(-total / words), rel_tol=1e-9), metrics, total, words)
    print("word_perplexity %.4f" % metrics["word_perplexity,none"])


def test_generations(s, samples, documents):
    for sample, d in zip(samples, documents):
        own = s.complete({"prompt": d["begin"], "max_tokens": 24, "temperature": 0, "stop": [".", "!"]})[1]["choices"][0]["text"]
        check("a generation", sample["filtered_resps"] == [own] and len(own) > 0, sample["filtered_resps"], own)


def test_ends(folder, model, samples, documents, ids_of):
    """lm-eval requests a new token that it does not use; if that token ends the text, nothing must change."""
    with Server(model, *RECIPE) as s:
        texts = [d["begin"] + end for d in documents for end in d["ends"]][:100]
        asked = {"prompt": texts, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        likely = collections.Counter(ids_of(c["text"])[0] for c in s.complete(asked)[1]["choices"])
    ends = [token for token, _ in likely.most_common(3)]
    with open(os.path.join(model, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump({"eos_token_id": ends}, f)
    with Server(model, *RECIPE) as s:
        stopped = sum(c["finish_reason"] == "stop" for c in s.complete(dict(asked, ignore_eos=False))[1]["choices"])
        check("many new tokens end the text", stopped > len(texts) / 4, stopped, ends)
        again = evaluate(s, folder, ["ends"], tokenizer=model)["ends"][1]
    check("choices where they do", loglikelihoods(again) == loglikelihoods(samples))


def main():
    print("lm-eval %s" % lm_eval.__version__)
    logging.disable(logging.WARNING)
    with scratch() as folder:
        model = chat_model(folder)
        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))

        def ids_of(text):
            return tokenizer.encode(text).ids
        documents = write_tasks(folder, ids_of)
        with Server(model, *RECIPE, "--parallel", "4") as s:
            # asks the server for a tokenizer first, and uses the model's if there is none
            one = evaluate(s, folder, list(documents), tokenizer=model)
            test_choices(s, one["ends"][1], one["ends"][0], documents["ends"], ids_of)
            test_paragraphs(one["paragraphs"][1], one["paragraphs"][0], documents["paragraphs"], folder)
            test_texts(s, one["texts"][1], one["texts"][0], documents["texts"], ids_of)
            test_generations(s, one["goes_on"][1], documents["goes_on"])
            made = [x["filtered_resps"] for x in one["goes_on"][1]]
            for what, how in (("4 requests at once", {"num_concurrent": 4}), ("4 prompts in a request", {"batch_size": 4}),
                              ("prompts as text", {"tokenized_requests": False, "tokenizer_backend": "huggingface"})):
                again = evaluate(s, folder, ["ends", "goes_on"], tokenizer=model, **how)
                check("choices by %s" % what, loglikelihoods(again["ends"][1]) == loglikelihoods(one["ends"][1]))
                check("generations by %s" % what, [x["filtered_resps"] for x in again["goes_on"][1]] == made)
            bare = evaluate(s, folder, ["goes_on"], tokenizer_backend="None")
            check("generations without a tokenizer", [x["filtered_resps"] for x in bare["goes_on"][1]] == made)
            of_chat = evaluate(s, folder, ["goes_on"], chat=True)["goes_on"][1]
            for sample, d in zip(of_chat, documents["goes_on"]):
                own = s.chat({"messages": [{"role": "user", "content": d["begin"]}], "max_tokens": 24, "temperature": 0,
                              "stop": [".", "!"]})[1]["choices"][0]["message"]["content"]
                check("a generation of a chat", sample["filtered_resps"] == [own] and len(own) > 0, sample["filtered_resps"], own)
            check("no request was refused", all(s.metric('nibble_requests_total{route="%s",answer="4xx"}' % route) == 0
                                                for route in ("chat", "completions")))
        test_ends(folder, model, one["ends"][1], documents["ends"], ids_of)
    return check.end()


if __name__ == "__main__":
    sys.exit(main())
