// SPDX-License-Identifier: Apache-2.0
//
// The page: views, colours, the key, the model's name.

import { askJson, onKeyWanted } from "./api.js";
import { setContext, setMode, startChat, stop } from "./chat.js";
import { byId, openStorage } from "./dom.js";
import { hidePlan, showPlan, startPlan } from "./plan.js";

// ---- views: #chat, #complete, #plan ----

function showView() {
    const links = [...document.querySelectorAll("nav a")];
    const link = links.find(l => l.hash === location.hash) ?? links.find(l => l.getAttribute("aria-current")) ?? links[0];
    const view = link.hash.slice(1);
    for (const l of links)
        l.removeAttribute("aria-current");
    link.setAttribute("aria-current", "page");
    document.title = `${link.textContent} – Nibble`;
    byId("write").hidden = view === "plan";
    byId("plan").hidden = view !== "plan";
    if (view === "plan") {
        showPlan();
        return;
    }
    hidePlan();
    setMode(view);
}

// ---- colours ----

const settings = openStorage("localStorage");

function setTheme(theme) {
    if (theme)
        document.documentElement.dataset.theme = theme;
    else
        delete document.documentElement.dataset.theme;
    settings.set("nibble-theme", theme);
}

function startTheme() {
    const select = byId("theme");
    select.value = settings.get("nibble-theme") ?? "";
    setTheme(select.value);
    select.addEventListener("change", () => setTheme(select.value));
}

// ---- the key ----

// The characters that a header, and so a key, may have.
const KEY_FORM = /^[\x21-\x7e]+$/;

// Resolves to the typed key, or null.
function askForKey(reason) {
    const dialog = byId("ask-key");
    byId("key-error").textContent = reason;
    byId("key").value = "";
    dialog.showModal();
    return new Promise(resolve => {
        let given = null;
        byId("key-form").onsubmit = event => {
            event.preventDefault();
            const typed = byId("key").value.trim();
            if (typed !== "" && !KEY_FORM.test(typed)) {
                byId("key-error").textContent = "a key has only ASCII letters, digits and signs, and no blanks";
                byId("key").select();
                return;
            }
            given = typed || null;
            dialog.close();
        };
        byId("key-cancel").onclick = () => dialog.close();
        dialog.onclose = () => resolve(given);
    });
}

// ---- start ----

async function showModel() {
    try {
        const [model] = (await askJson("v1/models")).data;
        byId("model").textContent = model.id;
        setContext(model.context_length);
    } catch (error) {
        byId("model").textContent = `(${error.message})`;
    }
}

startTheme();
startChat();
startPlan();
onKeyWanted(askForKey);
addEventListener("hashchange", showView);
document.addEventListener("keydown", event => {
    if (event.key === "Escape" && !byId("ask-key").open)
        stop();
});
document.querySelector(".skip").addEventListener("click", event => {
    event.preventDefault(); // the address's fragment names the view
    byId("main").focus();
});
showView();
showModel();
