// SPDX-License-Identifier: Apache-2.0
//
// Elements, readable numbers and browser storage. Text is inserted as text, never as HTML.

export const byId = id => document.getElementById(id);

// Makes an element with properties (attributes, if the name has a dash) and children: elements or text.
export function make(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
        if (name.includes("-"))
            node.setAttribute(name, value);
        else
            node[name] = value;
    }
    node.append(...children.filter(child => child !== null));
    return node;
}

function digits(value) {
    return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function sayBytes(bytes) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    while (bytes >= 1000 && unit < units.length - 1) {
        bytes /= 1000;
        unit++;
    }
    return `${unit === 0 ? bytes : bytes.toFixed(1)} ${units[unit]}`;
}

export function saySeconds(s) {
    return s >= 1 ? `${digits(s)} s` : s >= 1e-3 ? `${digits(s * 1e3)} ms` : `${digits(s * 1e6)} µs`;
}

export function sayCount(count, one) {
    return `${count} ${one}${count === 1 ? "" : "s"}`;
}

// The browser's "localStorage" or "sessionStorage"; if the browser forbids it, values last as long as the page.
export function openStorage(name) {
    const kept = new Map();
    return {
        get(key) {
            try {
                return window[name].getItem(key);
            } catch {
                return kept.get(key) ?? null;
            }
        },
        set(key, value) {
            kept.set(key, value);
            try {
                window[name].setItem(key, value);
            } catch {
                // kept only in `kept`
            }
        },
    };
}
