// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a request, one row each: their form, their members in the request's body, and the server's errors
// beside the fields that they name. The server checks values; nothing is corrected here.

import { byId, make } from "./dom.js";

const FIELDS = [
    { name: "system", label: "System prompt", lines: 3, hint: "the first message of a chat", chat: true },
    { name: "temperature", label: "Temperature", hint: "0 to 2; 0: greedy" },
    { name: "top_p", label: "Top p", hint: "0 to 1" },
    { name: "top_k", label: "Top k", hint: "a whole number; 0: all tokens" },
    { name: "min_p", label: "Min p", hint: "0 to 1" },
    { name: "max_tokens", label: "Max tokens", hint: "a whole number of 1 or more" },
    { name: "seed", label: "Seed", hint: "a whole number; the same seed gives the same text" },
    { name: "presence_penalty", label: "Presence penalty", hint: "-2 to 2" },
    { name: "frequency_penalty", label: "Frequency penalty", hint: "-2 to 2" },
    { name: "repetition_penalty", label: "Repetition penalty", hint: "0.01 to 100; 1: off" },
    { name: "stop", label: "Stop", lines: 2, hint: "up to 4 strings, one per line; \\n is a line break" },
];
const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/;

const idOf = name => `field-${name}`;
const valueOf = name => byId(idOf(name)).value;

export function makeFields(parent) {
    for (const { name, label, hint, lines, chat } of FIELDS) {
        const id = idOf(name);
        const about = { id, name, autocomplete: "off", "aria-describedby": `${id}-hint ${id}-error` };
        const control = lines ? make("textarea", { ...about, rows: lines })
                              : make("input", { ...about, type: "text", inputMode: "decimal" });
        const field = make("div", { className: chat ? "field chat-only" : "field" },
                           make("label", { htmlFor: id }, label), control,
                           make("p", { id: `${id}-hint`, className: "quiet" }, hint),
                           make("p", { id: `${id}-error`, className: "error", role: "alert" }));
        control.addEventListener("input", () => showError(name, ""));
        parent.append(field);
    }
}

export function emptyFields() {
    for (const { name } of FIELDS) {
        byId(idOf(name)).value = "";
        showError(name, "");
    }
}

export const systemPrompt = () => valueOf("system");

// The parameters as members of a JSON object. Numbers keep their digits, because JavaScript would round a large seed.
// What is not a number is sent as a string, and the server says what is wrong.
export function parameterMembers() {
    const members = [];
    for (const { name } of FIELDS) {
        const text = name === "stop" ? valueOf(name) : valueOf(name).trim();
        if (name === "system" || text === "")
            continue;
        const json = name === "stop" ? JSON.stringify(stopsOf(text)) : NUMBER.test(text) ? text : JSON.stringify(text);
        members.push(`${JSON.stringify(name)}: ${json}`);
    }
    return members;
}

function stopsOf(text) {
    return text.split("\n").filter(line => line !== "").map(line => line.replaceAll("\\n", "\n"));
}

function showError(name, text) {
    byId(`${idOf(name)}-error`).textContent = text;
    if (text)
        byId(idOf(name)).setAttribute("aria-invalid", "true");
    else
        byId(idOf(name)).removeAttribute("aria-invalid");
}

export function clearErrors() {
    for (const { name } of FIELDS)
        showError(name, "");
}

// Shows an error beside its field; false: no field has this name.
export function placeError(param, text) {
    if (!FIELDS.some(field => field.name === param))
        return false;
    byId("settings").open = true;
    showError(param, text);
    byId(idOf(param)).focus();
    return true;
}
