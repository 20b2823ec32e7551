// SPDX-License-Identifier: Apache-2.0
//
// The plan: totals, predicted and measured time per token, and every layer as a bar with the colour and letter of its
// kernel and its reasons on hover and focus; the same as a table.

import { askJson, askMetrics } from "./api.js";
import { byId, make, sayBytes, sayCount, saySeconds } from "./dom.js";

const REFRESH_MS = 5000;
const COLOURS = 8; // --kernel-0 to --kernel-7 in style.css
// The uses of a layer are ordered from one token to the longest steps.
const MEASURES = {
    bytes: { use: layer => layer.uses[0], value: layer => layer.bytes, say: sayBytes },
    token: { use: layer => layer.uses[0], value: layer => layer.uses[0]?.predicted_us ?? 0, say: us => saySeconds(us * 1e-6) },
    prompt: { use: layer => layer.uses.at(-1), value: layer => layer.uses.at(-1)?.predicted_us ?? 0,
              say: us => saySeconds(us * 1e-6) },
};
const RUNGS = {
    none: "as asked", kernel: "as asked, with another kernel", device: "on another device",
    dequant: "computed in floats", unquantized: "left as floats",
};

let plan = null;
let timer = 0;

const isAsAsked = layer => layer.rung === "none" && !layer.denied;
const sayDone = layer => layer.denied ? "denied" : layer.done;
const sayRung = layer => layer.denied ? "no allowed kernel" : RUNGS[layer.rung] ?? layer.rung;

function sayTokens(use) {
    return use.m_max === null ? `${use.m_min} or more tokens`
         : use.m_max === use.m_min ? sayCount(use.m_min, "token") : `${use.m_min} to ${use.m_max} tokens`;
}

// One line per kernel of a layer, with its times.
function sayUses(layer) {
    const lines = new Map();
    for (const use of layer.uses) {
        const kernel = `${use.kernel} on ${use.device}${use.quant ? `, its input by ${use.quant}` : ""}`;
        lines.set(kernel, [...lines.get(kernel) ?? [], `${saySeconds(use.predicted_us * 1e-6)} for ${sayTokens(use)}`]);
    }
    return [...lines].map(([kernel, times]) => `${kernel}: ${times.join(", ")}`);
}

// ---- kernels: letters and colours ----

function nameKernel(use) {
    return use ? `${use.kernel} on ${use.device}` : "no kernel";
}

// Map of name to {letter, colour, count}, in the order of the layers. Includes the kernels of every use, so that a kernel
// keeps its colour when the measure changes. count: layers that use it for this measure.
function findKernels(measure) {
    const kernels = new Map();
    for (const layer of plan.layers)
        for (const use of layer.uses.length > 0 ? layer.uses : [undefined])
            if (!kernels.has(nameKernel(use)))
                kernels.set(nameKernel(use), { letter: letterOf(kernels.size), colour: kernels.size % COLOURS, count: 0 });
    for (const layer of plan.layers)
        kernels.get(nameKernel(measure.use(layer))).count++;
    return kernels;
}

function letterOf(index) {
    return (index < 26 ? "" : letterOf(Math.floor(index / 26) - 1)) + String.fromCharCode(65 + index % 26);
}

function showLegend(kernels) {
    const items = [];
    for (const [name, { letter, colour, count }] of kernels) {
        if (count === 0)
            continue;
        const swatch = make("span", { className: "swatch" }, letter);
        swatch.style.setProperty("--colour", `var(--kernel-${colour})`);
        items.push(make("li", {}, swatch, `${name}, ${sayCount(count, "layer")}`));
    }
    const others = plan.layers.filter(layer => !isAsAsked(layer)).length;
    if (others > 0)
        items.push(make("li", {}, make("span", { className: "swatch other" }), `not as asked, ${sayCount(others, "layer")}`));
    byId("legend").replaceChildren(...items);
}

// ---- bars ----

// "model.layers.3.mlp.up_proj" is in the row "model.layers.3"; a layer without a number has its own row.
function rowOf(name) {
    return /^(.*?\.\d+)\./.exec(name)?.[1] ?? name;
}

function describe(layer, measure) {
    const reasons = layer.reasons.map(reason => reason.text).join("; ");
    return `${layer.name}: asked ${layer.asked}, done ${sayDone(layer)}, ${sayRung(layer)}, ` +
           `${nameKernel(measure.use(layer))}, ${measure.say(measure.value(layer))}${reasons && `. Reasons: ${reasons}`}`;
}

function makeBar(layer, kernels, measure) {
    const { letter, colour } = kernels.get(nameKernel(measure.use(layer)));
    const bar = make("button", { type: "button", className: isAsAsked(layer) ? "bar" : "bar other", tabIndex: -1,
                                 "aria-label": describe(layer, measure) },
                     make("b", {}, letter), make("span", {}, layer.role ?? ""));
    bar.style.setProperty("--colour", `var(--kernel-${colour})`);
    bar.style.setProperty("--part", measure.value(layer));
    for (const event of ["mouseenter", "focus", "click"])
        bar.addEventListener(event, () => choose(bar, layer));
    return bar;
}

function showBars() {
    const measure = MEASURES[byId("measure").value];
    const kernels = findKernels(measure);
    const rows = new Map();
    for (const layer of plan.layers) {
        const name = rowOf(layer.name);
        rows.set(name, [...rows.get(name) ?? [], layer]);
    }
    const sum = layers => layers.reduce((total, layer) => total + measure.value(layer), 0);
    const most = Math.max(...[...rows.values()].map(sum), 1e-9);
    const nodes = [];
    for (const [name, layers] of rows) {
        const bars = make("div", { className: "row" }, ...layers.map(layer => makeBar(layer, kernels, measure)));
        bars.style.setProperty("--width", sum(layers) / most);
        nodes.push(make("span", { className: "name", title: name }, name.replace(/^model\./, "")), bars,
                   make("span", { className: "value" }, measure.say(sum(layers))));
    }
    showLegend(kernels);
    byId("bars").replaceChildren(...nodes);
    const first = byId("bars").querySelector("button");
    if (first) {
        first.tabIndex = 0;
        choose(first, plan.layers[0]);
    }
}

// Tab reaches one bar, arrow keys the others.
function walk(event) {
    const bars = [...byId("bars").querySelectorAll("button")];
    const at = bars.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: bars.length - 1 }[event.key];
    if (to === undefined || at < 0)
        return;
    event.preventDefault();
    bars[Math.min(Math.max(to, 0), bars.length - 1)].focus();
}

function choose(bar, layer) {
    for (const other of byId("bars").querySelectorAll(".chosen, [tabindex='0']")) {
        other.classList.remove("chosen");
        other.tabIndex = -1;
    }
    bar.classList.add("chosen");
    bar.tabIndex = 0;
    showDetail(layer);
}

function makeList(name, items) {
    return items.length === 0 ? [] : [make("h4", {}, name), make("ul", {}, ...items.map(item => make("li", {}, item)))];
}

function showDetail(layer) {
    const facts = [["Role", layer.role ?? "none"], ["Asked", layer.asked], ["Done", `${sayDone(layer)} (${sayRung(layer)})`],
                   ["Decided by", layer.rule ?? "no rule"], ["Memory", sayBytes(layer.bytes)]];
    if (layer.n > 0)
        facts.push(["Shape", `${layer.n} × ${layer.k}${layer.bias ? ", with a bias" : ""}`]);
    if (layer.allowed)
        facts.push(["Allowed", layer.allowed]);
    byId("detail").replaceChildren(
        make("h3", {}, layer.name),
        make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
        ...makeList("Runs on, predicted", sayUses(layer)),
        ...makeList("Reasons", layer.reasons.map(reason => reason.text)),
        ...makeList("Alternatives", (layer.advice ?? []).map(advice => advice.option ? `${advice.option}: ${advice.text}` : advice.text)));
}

// ---- the table ----

const COLUMNS = [
    ["Layer", layer => layer.name], ["Role", layer => layer.role ?? ""], ["Asked", layer => layer.asked], ["Done", sayDone],
    ["As asked?", sayRung], ["Decided by", layer => layer.rule ?? ""], ["Memory", layer => sayBytes(layer.bytes)],
    ["Runs on, predicted", layer => sayUses(layer).join("; ")],
    ["Reasons", layer => layer.reasons.map(reason => reason.text).join("; ")],
];

function showTable() {
    const rows = plan.layers.map(layer => make("tr", {}, ...COLUMNS.map(([, say], i) =>
        i === 0 ? make("th", { scope: "row" }, say(layer)) : make("td", {}, say(layer)))));
    byId("table").replaceChildren(
        make("caption", {}, `${sayCount(plan.layers.length, "layer")} of ${plan.model}`),
        make("thead", {}, make("tr", {}, ...COLUMNS.map(([name]) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, ...rows));
}

// ---- totals and times ----

function showTotals() {
    const { counts } = plan;
    const totals = [
        ["Weights", sayBytes(plan.weight_bytes)],
        ["Keys and values", `${sayBytes(plan.cache_bytes)} in ${plan.cache_type}`],
        ["Linear layers asked", counts.asked], ["Done as asked", counts.done], ["Substituted", counts.substituted],
    ];
    if (counts.denied > 0)
        totals.push(["Denied", counts.denied]);
    byId("plan-head").textContent = `${plan.model}: recipe ${plan.recipe ?? "none"} on ${plan.device}, activations ${plan.dtype}, ` +
        `a context of ${plan.context} tokens.`;
    byId("totals").replaceChildren(...totals.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, `${value}`))));
    byId("settings-part").hidden = plan.settings.length === 0;
    byId("settings").replaceChildren(...plan.settings.map(s =>
        make("li", {}, `${s.relation}: ${s.name}${s.asked === null ? "" : ` ${s.asked}`} (${s.by}): ${s.text}`)));
    byId("notes").replaceChildren(...plan.notes.map(note => make("li", {}, note.text)));
}

function showTimes(metrics) {
    const mean = name => metrics[`nibble_${name}_sum`] / metrics[`nibble_${name}_count`];
    const measured = mean("next_token_seconds"), first = mean("first_token_seconds");
    const times = [["predicted", plan.predicted_token_s], ["measured", measured], ["predicted in bf16", plan.predicted_bf16_token_s]];
    const most = Math.max(...times.map(([, s]) => s || 0), 1e-12);
    byId("times").replaceChildren(...times.flatMap(([name, s]) => {
        const bar = make("span", { className: name === "measured" ? "time measured" : "time" });
        bar.style.setProperty("--width", (s || 0) / most);
        return [make("span", { className: "name" }, name), make("span", { className: "row" }, bar),
                make("span", { className: "value" }, s > 0 ? saySeconds(s) : "nothing yet")];
    }));
    byId("times-note").textContent = measured > 0
        ? `Measured: the mean of ${sayCount(metrics.nibble_next_token_seconds_count, "token")} since the server started, from ` +
          `one token of a request to the next, which takes longer if several requests share steps; mean time to first token ` +
          `${saySeconds(first)}.`
        : "Measured: no request has had a second token yet.";
}

async function refresh() {
    if (document.hidden || plan === null)
        return;
    try {
        showTimes(await askMetrics());
        byId("plan-error").textContent = "";
    } catch (error) {
        byId("plan-error").textContent = error.message;
    }
}

// ---- the view ----

export async function showPlan() {
    try {
        if (plan === null) {
            plan = await askJson("v1/plan");
            showTotals();
            showBars();
            showTable();
        }
        if (!byId("plan").hidden) { // the user may have left it meanwhile
            clearInterval(timer);
            timer = setInterval(refresh, REFRESH_MS);
            await refresh();
        }
    } catch (error) {
        byId("plan-error").textContent = error.message;
    }
}

export function hidePlan() {
    clearInterval(timer);
}

export function startPlan() {
    byId("measure").addEventListener("change", showBars);
    byId("bars").addEventListener("keydown", walk);
    document.addEventListener("visibilitychange", refreshIfShown);
}

function refreshIfShown() {
    if (!byId("plan").hidden)
        refresh();
}
