/* Who is signed in, which view the address names, and what holds for all views. */

import {Problem, events, get, key} from "./api.js";
import {button, field, h, iconButton, openDialog, problemBox} from "./dom.js";
import {DetailView} from "./detail.js";
import {ListView} from "./list.js";

const SHORTCUTS = [
    ["n", "New sandbox"],
    ["/", "Filter the list"],
    ["j, k or the arrows", "Next and previous sandbox; Enter opens it"],
    ["1 … 9", "Open a tab of a sandbox"],
    ["Esc", "Close, clear the filter, or go back to the list"],
    ["Ctrl+S", "Save the file that is edited"],
    ["Ctrl+Shift+↑", "Leave the terminal, for its tab"],
    ["Ctrl+C, Ctrl+Shift+V", "In the terminal: copy what is selected, paste"],
    ["t", "Light or dark"],
    ["?", "These shortcuts"],
];

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const linkState = document.getElementById("link-state");

let session = null; // what /v1/capabilities said
let view = null;

/* --- views -------------------------------------------------------------------------------------------------- */

function leaveView() {
    view?.stop();
    view = null;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

function enterView(next) {
    leaveView();
    view = next;
    document.title = `${view.title} · podsandbox`;
    main.replaceChildren(view.element);
    view.start();
}

/* "#/sandboxes/ID/TAB" */
function route() {
    if (!session) return;
    const [, what, id, tab] = location.hash.slice(1).split("/").map((part) => {
        try {
            return decodeURIComponent(part);
        } catch {
            return "";
        }
    });
    if (what !== "sandboxes" || !id) return view instanceof ListView || enterView(new ListView(session));
    if (view instanceof DetailView && view.id === id) return view.open(tab);
    enterView(new DetailView(session, id, tab));
}

/* --- the key ------------------------------------------------------------------------------------------------ */

function signIn(why) {
    leaveView();
    session = null;
    drawTools();
    document.title = "Sign in · podsandbox";
    const input = h("input", {type: "password", class: "mono", required: true, autocomplete: "off", spellcheck: "false", autofocus: true});
    const submit = button("Sign in", {kind: "primary", type: "submit"});
    const problem = h("div", {}, why);
    const form = h("form", {class: "card sign-in"}, h("h1", {}, "Sign in"), h("p", {class: "quiet"}, "This server asks for an API key."),
        field("API key", input, "Kept in this tab until it is closed, and sent to this server only."), problem, submit);
    form.addEventListener("submit", async (event) => {
        event.preventDefault();
        submit.disabled = true;
        problem.replaceChildren();
        key.set(input.value.trim());
        try {
            await begin();
        } catch (error) {
            key.clear();
            if (error.status === 401) error.remediation = "Check that it is whole, and the key of this server.";
            problem.replaceChildren(problemBox(error));
            input.select();
            submit.disabled = false;
        }
    });
    main.replaceChildren(form);
    input.focus();
}

function signOut() {
    key.clear();
    history.replaceState(null, "", "#/");
    signIn(h("p", {class: "quiet"}, "Signed out. The key is no longer kept here."));
}

events.addEventListener("signed-out", (event) => {
    if (!session) return; // the form says it
    key.clear();
    signIn(problemBox(event.detail));
});

/* --- connection --------------------------------------------------------------------------------------------- */

let reachable = null;

function showReachable(now) {
    if (reachable === now) return;
    reachable = now;
    linkState.className = `link-state ${now ? "good" : "bad"}`;
    linkState.textContent = now ? "Live" : "Reconnecting…";
    banner.hidden = now;
    banner.textContent = now ? "" : "The server does not answer. What you see is how it was; it goes on by itself.";
}
events.addEventListener("answered", () => showReachable(true));
events.addEventListener("unreachable", () => showReachable(false));

/* --- the bar ------------------------------------------------------------------------------------------------ */

function drawTools() {
    const dark = window.podsandboxTheme.isDark();
    const theme = iconButton(dark ? "Light theme" : "Dark theme", dark ? "sun" : "moon", {id: "theme", onclick: toggleTheme});
    document.getElementById("who").textContent = session ? [session.driver, key.get() && session.owner, key.get() && session.admin && "admin"].filter(Boolean).join(" · ") : "";
    document.getElementById("tools").replaceChildren(theme, iconButton("Shortcuts", "help", {onclick: showShortcuts}),
        ...(key.get() && session ? [button("Sign out", {symbol: "leave", kind: "quiet", onclick: signOut})] : []));
}

function toggleTheme() {
    window.podsandboxTheme.toggle();
    drawTools();
    document.getElementById("theme").focus();
}

function showShortcuts() {
    openDialog("Shortcuts", h("dl", {class: "shortcuts"}, ...SHORTCUTS.flatMap(([keys, what]) => [h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)])));
}

/* --- the keyboard ------------------------------------------------------------------------------------------- */

const shared = {"?": showShortcuts, t: toggleTheme};

document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input, textarea, select, .xterm");
    if (event.key === "Escape" && view && !event.target.closest(".xterm, textarea")) {
        if (typing) event.target.blur();
        view.escape?.();
        return;
    }
    if (typing) return;
    const action = view?.keys?.[event.key] ?? shared[event.key];
    if (!action) return;
    if (event.key.startsWith("Arrow") && event.target.closest("[role=tablist], [role=tree]")) return;
    event.preventDefault();
    action();
});

/* --- start -------------------------------------------------------------------------------------------------- */

async function begin() {
    const told = await get(["capabilities"]);
    session = {driver: told.driver, features: told.features, promises: told.promises, networks: told.networks ?? [], limits: told.limits,
        owner: told.caller.owner, admin: told.caller.role === "admin"};
    drawTools();
    route();
}

async function start() {
    for (let wait = 500; ; wait = Math.min(5000, wait * 2)) {
        try {
            return await begin();
        } catch (error) {
            if (!(error instanceof Problem)) throw error;
            if (error.status === 401) return signIn(key.get() ? problemBox(error) : null);
            if (error.status && !error.retryable) return main.replaceChildren(h("div", {class: "card"}, problemBox(error)));
            main.replaceChildren(h("p", {class: "quiet"}, "Waiting for the server…"));
            await new Promise((resolve) => setTimeout(resolve, wait));
        }
    }
}

document.querySelector(".skip").addEventListener("click", (event) => (event.preventDefault(), main.focus()));
window.addEventListener("hashchange", route);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawTools);
drawTools();
start();
