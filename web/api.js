// SPDX-License-Identifier: Apache-2.0
//
// Requests to the server: key, errors and the events of a stream.

import { openStorage } from "./dom.js";

const KEY = "nibble-key";
const tab = openStorage("sessionStorage");

// The server's refusal of a request; param names the member at fault.
export class Refused extends Error {
    constructor(http, error) {
        super(error.message);
        this.http = http;
        this.param = error.param ?? "";
        this.code = error.code ?? "";
    }
}

// Asks the user for the key; waiting requests share one question.
let askKey = null;
let asked = null;

export function onKeyWanted(ask) {
    askKey = ask;
}

async function refusal(response) {
    const text = await response.text();
    try {
        return new Refused(response.status, JSON.parse(text).error);
    } catch {
        return new Refused(response.status, { message: `the server answered ${response.status}: ${text.slice(0, 200)}` });
    }
}

// Returns a successful response; throws anything else as Refused.
export async function ask(path, options = {}) {
    for (;;) {
        const key = tab.get(KEY);
        const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
        let response;
        try {
            response = await fetch(path, { ...options, headers });
        } catch (error) {
            if (error.name === "AbortError")
                throw error;
            throw new Refused(0, { message: "the server does not answer; is it still running?" });
        }
        if (response.ok)
            return response;
        const refused = await refusal(response);
        if (refused.http !== 401)
            throw refused;
        if (tab.get(KEY) !== key)
            continue; // another request got a new key meanwhile
        asked ??= askKey(refused.message).finally(() => { asked = null; });
        const given = await asked;
        if (given === null)
            throw refused;
        tab.set(KEY, given);
    }
}

export async function askJson(path) {
    return (await ask(path)).json();
}

// Splits a stream into events {name, data}. A part may end anywhere.
export class EventReader {
    #rest = "";

    read(part) {
        const events = (this.#rest + part).split(/\r?\n\r?\n/);
        this.#rest = events.pop();
        return events.map(parseEvent).filter(event => event.data !== "");
    }
}

function parseEvent(text) {
    const event = { name: "message", data: "" };
    for (const line of text.split(/\r?\n/)) {
        if (line.startsWith("event:"))
            event.name = line.slice(6).trim();
        else if (line.startsWith("data:"))
            event.data += (event.data && "\n") + line.slice(5).trim();
    }
    return event;
}

// Yields the chunks of an answer as they arrive. body: JSON text.
export async function* stream(path, body, signal) {
    const response = await ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal });
    const parts = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const events = new EventReader();
    for (;;) {
        const { done, value } = await parts.read();
        if (done)
            throw new Refused(0, { message: "the connection ended before the answer did" });
        for (const event of events.read(value)) {
            if (event.data === "[DONE]")
                return;
            const chunk = JSON.parse(event.data);
            if (event.name === "error" || chunk.error)
                throw new Refused(200, chunk.error);
            yield chunk;
        }
    }
}

// The Prometheus metrics without labels, as {name: value}.
export async function askMetrics() {
    const text = await (await ask("metrics")).text();
    return Object.fromEntries([...text.matchAll(/^(\w+) (\S+)$/gm)].map(([, name, value]) => [name, Number(value)]));
}
