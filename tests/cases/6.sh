#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# llama.cpp, echo and logprobs: a log-probability for every token of a prompt, equal to the loss of nibble eval; the rest refused.
. "$(dirname "$0")/lib.sh"
section 6

# lm-eval's request: an entry for each token of the prompt and for the new one, null for the first
for word in of and if eyes; do
    holds $word.json 'd["usage"]["completion_tokens"] == 1 and d["usage"]["prompt_tokens"] > 8'
    holds $word.json 'all(len(v) == d["usage"]["prompt_tokens"] + 1 for v in d["choices"][0]["logprobs"].values())'
    holds $word.json 'd["choices"][0]["logprobs"]["token_logprobs"][0] is None and d["choices"][0]["logprobs"]["top_logprobs"][0] is None'
    holds $word.json 'all(-50 < v < 0 for v in d["choices"][0]["logprobs"]["token_logprobs"][1:])'
    holds $word.json '"".join(d["choices"][0]["logprobs"]["tokens"]) == d["choices"][0]["text"]'
    # what lm-eval reads as "greedy": the token's value is the largest beside it
    holds $word.json 'all(v == d["choices"][0]["logprobs"]["top_logprobs"][i + 1][d["choices"][0]["logprobs"]["tokens"][i + 1]]
        for i, v in enumerate(d["choices"][0]["logprobs"]["token_logprobs"][1:]))'
    lacks $word.json '"settings"'
done
holds of.json 'd["choices"][0]["logprobs"]["token_logprobs"][-2] > -1'
for word in and if eyes; do
    holds $word.json 'd["choices"][0]["logprobs"]["token_logprobs"][-2] < -3'
done

# the beginning that all four have in common has the same bits each time, whatever came before
for word in and if eyes; do
    python3 - $word << 'END' || fail "$word has other log-probabilities in the context"
import json, sys
a, b = (json.load(open(name + ".json"))["choices"][0]["logprobs"]["token_logprobs"][:-2] for name in ("of", sys.argv[1]))
sys.exit(a != b or len(a) < 8)
END
    checked=$((checked + 1))
done

# without a new token
holds prompt.json 'd["usage"]["completion_tokens"] == 0'
holds prompt.json 'len(d["choices"][0]["logprobs"]["token_logprobs"]) == d["usage"]["prompt_tokens"]'
says 3.out 'True True'

# five requests, five refusals
[ "$(grep -c '^400$' 4.out)" = 5 ] || fail 'not every request was refused'
says 4.out 'logprobs is 6, but must be between 0 and 5'
says 4.out 'the prompt has 601 tokens'
finish
