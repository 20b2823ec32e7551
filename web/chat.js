// SPDX-License-Identifier: Apache-2.0
//
// Chats and completions: the turns, an answer as it streams in, why it ended and its statistics. One answer runs at a
// time; each mode keeps its turns and the draft of its input.

import { stream } from "./api.js";
import { byId, make, sayCount, saySeconds } from "./dom.js";
import { clearErrors, emptyFields, makeFields, parameterMembers, placeError, systemPrompt } from "./fields.js";

const MODES = {
    chat: {
        path: "v1/chat/completions", title: "Chat", input: "Message", more: "New chat", asked: "You", answered: "Model",
        nothing: "No messages yet.",
        say: prompt => ["messages", messagesOf(prompt)],
        textOf: choice => choice.delta.content ?? "",
    },
    complete: {
        path: "v1/completions", title: "Complete a text", input: "Text for the model to continue", more: "Remove all",
        asked: "Text", answered: "Continuation", nothing: "No text yet.",
        say: prompt => ["prompt", prompt],
        textOf: choice => choice.text,
    },
};
const state = {
    mode: MODES.chat,
    running: null, // the AbortController of the running answer
    context: Infinity,
};
for (const mode of Object.values(MODES)) {
    mode.turns = []; // {prompt, text, node, body, foot}
    mode.draft = "";
}

function messagesOf(prompt) {
    const system = systemPrompt();
    const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
    for (const turn of MODES.chat.turns)
        messages.push({ role: "user", content: turn.prompt }, { role: "assistant", content: turn.text });
    return [...messages, { role: "user", content: prompt }];
}

function bodyOf(mode, prompt) {
    const [name, value] = mode.say(prompt);
    return `{${[`"${name}": ${JSON.stringify(value)}`, '"stream": true', '"stream_options": {"include_usage": true}',
                ...parameterMembers()].join(", ")}}`;
}

// ---- display ----

function makeTurn(mode, prompt) {
    const body = make("div", { className: "text", "aria-busy": "true" });
    const foot = make("p", { className: "quiet foot" });
    const node = make("li", {},
                      make("article", { className: "asked" }, make("h3", {}, mode.asked),
                           make("div", { className: "text" }, prompt)),
                      make("article", { className: "answered" }, make("h3", {}, mode.answered), body, foot));
    return { prompt, text: "", node, body, foot };
}

function show() {
    const { mode, running } = state;
    const turns = byId("turns");
    if (turns.children.length !== mode.turns.length || turns.lastChild !== (mode.turns.at(-1)?.node ?? null))
        turns.replaceChildren(...mode.turns.map(turn => turn.node));
    turns.hidden = mode.turns.length === 0;
    byId("nothing").textContent = mode.turns.length === 0 ? mode.nothing : "";
    byId("send").disabled = running !== null;
    byId("again").disabled = running !== null || mode.turns.length === 0;
    byId("new").disabled = running !== null;
    if (running === null && document.activeElement === byId("stop"))
        byId("input").focus();
    byId("stop").hidden = running === null;
}

// Applies a change and keeps the end in view, unless the user has scrolled up.
function follow(change) {
    const turns = byId("turns");
    const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
    change();
    if (follows)
        turns.scrollTop = turns.scrollHeight;
}

// Turns text between ``` lines into code blocks.
function setCode(turn) {
    const parts = turn.text.split(/^```.*\n?/m);
    if (parts.length > 1)
        turn.body.replaceChildren(...parts.map((part, i) => i % 2 ? make("pre", {}, make("code", {}, part)) : part));
}

function sayEnd(end) {
    if (end.stopped)
        return "stopped by you";
    if (end.reason === "length")
        return end.usage?.total_tokens >= state.context ? "cut off: the context is full" : "cut off at max tokens";
    return end.reason === "stop" ? "stopped: end of text or a stop string" : `ended: ${end.reason}`;
}

function sayStats(end) {
    const tokens = end.usage?.completion_tokens;
    const said = [end.error ?? sayEnd(end)];
    said.push(tokens === undefined ? sayCount(end.pieces, "piece") : sayCount(tokens, "token"));
    if (end.usage)
        said.push(`prompt ${end.usage.prompt_tokens}, ${end.usage.prompt_tokens_details.cached_tokens} of them cached`);
    if (tokens > 1 && end.last > end.first)
        said.push(`${((tokens - 1) * 1e3 / (end.last - end.first)).toFixed(1)} tokens per second`);
    if (end.first > 0)
        said.push(`first token after ${saySeconds((end.first - end.begun) * 1e-3)}`);
    return said.join(" · ");
}

// ---- an answer ----

// Appends the answer to the turn as it arrives; returns how it ended.
async function receive(mode, turn, body, signal) {
    const end = { begun: performance.now(), first: 0, last: 0, pieces: 0, usage: null, reason: null, stopped: false };
    try {
        for await (const chunk of stream(mode.path, body, signal)) {
            end.usage = chunk.usage ?? end.usage;
            for (const choice of chunk.choices) {
                end.reason = choice.finish_reason ?? end.reason;
                const text = mode.textOf(choice);
                if (text === "")
                    continue;
                end.last = performance.now();
                end.first ||= end.last;
                end.pieces++;
                turn.text += text;
                follow(() => turn.body.append(text));
            }
        }
    } catch (error) {
        end.stopped = error.name === "AbortError";
        end.error = end.stopped ? null : error.message;
        end.param = error.param;
        end.code = error.code;
    }
    return end;
}

// replaced: the turn to regenerate; restored if there is no new answer.
async function answer(prompt, replaced = null) {
    const { mode } = state;
    if (replaced !== null)
        mode.turns.pop();
    const body = bodyOf(mode, prompt);
    const turn = makeTurn(mode, prompt);
    clearErrors();
    showRefusal("", "", "");
    state.running = new AbortController();
    mode.turns.push(turn);
    show();
    byId("turns").scrollTop = byId("turns").scrollHeight;

    const end = await receive(mode, turn, body, state.running.signal);
    state.running = null;
    turn.body.removeAttribute("aria-busy");
    follow(() => {
        setCode(turn);
        turn.foot.textContent = sayStats(end);
    });
    if (turn.text === "" && (end.stopped || end.error)) {
        mode.turns.pop();
        if (replaced !== null)
            mode.turns.push(replaced);
        else if (state.mode === mode)
            byId("input").value ||= prompt;
        else
            mode.draft ||= prompt;
    }
    show();
    byId("status").textContent = end.error ? "" : `${mode.answered}: ${turn.text} — ${sayEnd(end)}`;
    if (end.error)
        showRefusal(end.param, end.error, end.code);
}

// An error of the messages without a code, such as a missing chat template, does not affect completions, so the page offers
// them. An error with a code, such as a chat that is too long, affects both.
function showRefusal(param, text, code) {
    const placed = text !== "" && placeError(param, text);
    byId("input-error").textContent = placed ? "" : text;
    byId("instead").hidden = !(state.mode === MODES.chat && param === "messages" && code === "");
}

// ---- user actions ----

function send() {
    const prompt = byId("input").value;
    if (state.running !== null || (state.mode === MODES.chat && prompt.trim() === ""))
        return;
    if (state.mode === MODES.chat)
        byId("input").value = "";
    answer(prompt);
}

export function stop() {
    state.running?.abort();
}

function remove() {
    state.mode.turns = [];
    show();
    byId("input").focus();
}

export function setMode(name) {
    state.mode.draft = byId("input").value;
    state.mode = MODES[name];
    const { mode } = state;
    byId("write-title").textContent = mode.title;
    byId("input-label").textContent = mode.input;
    byId("input").value = mode.draft;
    byId("new").textContent = mode.more;
    for (const field of document.querySelectorAll(".chat-only"))
        field.hidden = mode !== MODES.chat;
    showRefusal("", "", "");
    show();
}

export function setContext(length) {
    state.context = length;
}

export function startChat() {
    makeFields(byId("parameters"));
    byId("settings").open = matchMedia("(min-width: 60rem)").matches;
    byId("clear").addEventListener("click", emptyFields);
    byId("composer").addEventListener("submit", event => { event.preventDefault(); send(); });
    byId("input").addEventListener("keydown", event => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
        }
    });
    byId("stop").addEventListener("click", stop);
    byId("again").addEventListener("click", () => answer(state.mode.turns.at(-1).prompt, state.mode.turns.at(-1)));
    byId("new").addEventListener("click", remove);
    byId("instead").addEventListener("click", () => { MODES.complete.draft ||= byId("input").value; });
}
