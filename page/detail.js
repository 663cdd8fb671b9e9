/* One sandbox: what it is, and tabs for what is in it. */

import {call, get, poll} from "./api.js";
import {button, field, h, icon, openDialog, problemBox, setClass, setText, toast} from "./dom.js";
import {bytes, fullTime, since, span, tone, until} from "./format.js";
import {AboutTab} from "./about.js";
import {CommandsTab} from "./commands.js";
import {EventsTab} from "./events.js";
import {FilesTab} from "./files.js";
import {PreviewsTab} from "./previews.js";
import {ProcessesTab} from "./processes.js";
import {TerminalTab} from "./terminal.js";
import {askDelete} from "./remove.js";
import {Usage, memoryLimit} from "./usage.js";

const EVERY_MS = 2000;

/* A tab: {start(), stop(), show(record)?, element}. `lives`: only while the sandbox runs. */
const TABS = [
    {name: "terminal", label: "Terminal", type: TerminalTab, lives: true},
    {name: "files", label: "Files", type: FilesTab, lives: true},
    {name: "previews", label: "Previews", type: PreviewsTab, lives: true},
    {name: "commands", label: "Commands", type: CommandsTab},
    {name: "processes", label: "Processes", type: ProcessesTab, lives: true, feature: "ps"},
    {name: "events", label: "Events", type: EventsTab},
    {name: "about", label: "About", type: AboutTab},
];

export class DetailView {
    constructor(session, id, tab) {
        this.session = session;
        this.id = id;
        this.title = id;
        this.wanted = tab;
        this.usage = new Usage();
        this.badge = h("span", {class: "badge"});
        this.facts = h("p", {class: "facts"});
        this.why = h("div");
        this.extend = button("Extend", {symbol: "clock", onclick: () => this.askExtend()});
        this.remove = button("Delete", {symbol: "trash", kind: "danger-quiet", onclick: () => this.askDelete()});
        this.tablist = h("div", {class: "tabs", role: "tablist", "aria-label": "Parts of the sandbox", onkeydown: (event) => this.arrows(event)});
        this.panel = h("div", {class: "panel", role: "tabpanel", id: "panel", "aria-labelledby": "tab-none"});
        this.element = h("section", {class: "page detail", "aria-labelledby": "detail-title"},
            h("div", {class: "page-head"},
                h("a", {class: "icon-button", href: "#/", "aria-label": "All sandboxes", title: "All sandboxes (Esc)"}, icon("back")),
                h("h1", {id: "detail-title", class: "mono"}, id), this.badge, h("span", {class: "bar-gap"}), this.extend, this.remove),
            this.facts, this.why, this.tablist, this.panel);
        this.tabs = TABS.filter((one) => !one.feature || session.features[one.feature]);
        this.keys = Object.fromEntries(this.tabs.map((one, at) => [String(at + 1), () => this.choose(one.name, true)]));
        this.drawTabs();
    }

    start() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
        if (this.session.features.ps) this.usagePoll = poll((signal) => this.usage.look(this.record ? [this.record] : [], signal).then(() => this.drawFacts()), EVERY_MS);
        this.timer = setInterval(() => this.drawFacts(), 1000);
    }

    stop() {
        this.poll.stop();
        this.usagePoll?.stop();
        clearInterval(this.timer);
        this.tab?.stop();
    }

    escape() {
        location.hash = "#/";
    }

    async look(signal) {
        try {
            this.show(await get(["sandboxes", this.id], undefined, {signal}));
        } catch (error) {
            if (error.status === 410 && error.sandbox) this.show(error.sandbox);
            else if (error.status === 404) this.showMissing(error);
            else throw error;
        }
    }

    showMissing(problem) {
        this.poll.stop();
        this.usagePoll?.stop();
        this.tab?.stop();
        this.tab = null;
        for (const one of [this.extend, this.remove, this.tablist]) one.hidden = true;
        this.panel.replaceChildren(problemBox(problem), h("a", {class: "button", href: "#/"}, "All sandboxes"));
    }

    show(record) {
        const first = !this.record;
        const lived = this.record && this.lives();
        const another = this.record && this.record.uid !== record.uid;
        this.record = record;
        setText(this.badge, record.state);
        setClass(this.badge, `badge ${tone(record.state)}`);
        this.extend.hidden = record.state !== "running";
        this.remove.hidden = record.state === "gone" || record.state === "deleting";
        this.drawFacts();
        this.drawWhy();
        this.drawTabs();
        if (record.state === "gone") this.usagePoll?.stop();
        if (first || another || lived !== this.lives()) this.choose(this.wanted);
        else this.tab?.show?.(record);
    }

    lives() {
        return this.record?.state === "running";
    }

    drawFacts() {
        const {record} = this;
        if (!record) return;
        const use = this.usage.of(record);
        const limit = memoryLimit(record);
        const parts = [record.image, this.session.admin && `owner ${record.owner}`, record.backend?.node && `on ${record.backend.node}`, record.ended ? `lived ${span(since(record.created) - since(record.ended))}` : `${span(since(record.created))} old`];
        if (this.lives() && record.expires) parts.push(`ends in ${span(until(record.expires))}`);
        if (record.state === "gone" && record.ended) parts.push(`ended ${fullTime(record.ended)}`);
        if (use?.count === 0) parts.push(limit ? `idle, ${bytes(limit)} at most` : "idle");
        else if (use) parts.push(`${bytes(use.rss)}${limit ? ` of ${bytes(limit)}` : ""}`, use.cpu === null ? null : `${Math.round(use.cpu * 100)} % CPU`, `${use.count} ${use.count === 1 ? "process" : "processes"}`);
        setText(this.facts, parts.filter(Boolean).join(" · "));
    }

    drawWhy() {
        const {record} = this;
        const text = record.reason || record.message ? [record.reason, record.message].filter(Boolean).join(": ") : "";
        const word = {creating: "Being made", deleting: "Being deleted", failed: "Failed", gone: "Gone"}[record.state];
        const all = [word, text].filter(Boolean).join(": ");
        if (this.why.textContent === all) return;
        this.why.replaceChildren(...(all ? [h("p", {class: `note ${tone(record.state)}`}, all)] : []));
    }

    /* --- tabs ----------------------------------------------------------------------------------------------- */

    usable(one) {
        return !one.lives || !this.record || this.lives();
    }

    drawTabs() {
        if (!this.tablist.children.length) {
            for (const one of this.tabs)
                this.tablist.append(h("button", {type: "button", role: "tab", id: `tab-${one.name}`, class: "tab", "aria-controls": "panel", "aria-selected": "false", tabindex: -1,
                    onclick: () => this.choose(one.name)}, one.label));
        }
        for (const one of this.tabs) document.getElementById(`tab-${one.name}`)?.toggleAttribute("disabled", !this.usable(one));
    }

    open(name) {
        if (this.record) this.choose(name);
        else this.wanted = name;
    }

    choose(name, focus = false) {
        const usable = this.tabs.filter((one) => this.usable(one));
        const one = usable.find((tab) => tab.name === name) ?? usable[0];
        if (name) this.wanted = name; // and is opened once it can be
        if (!this.record || (this.tab?.name === one.name && this.tab.uid === this.record.uid && this.tab.lived === this.lives())) return focus && this.focusTab(one);
        if (this.tab?.blocks?.()) return this.showAddress((this.wanted = this.tab.name));
        this.tab?.stop();
        this.tab = new one.type(this.session, this.record, this);
        Object.assign(this.tab, {name: one.name, uid: this.record.uid, lived: this.lives()});
        for (const button of this.tablist.children) {
            const chosen = button.id === `tab-${one.name}`;
            button.setAttribute("aria-selected", chosen);
            button.tabIndex = chosen ? 0 : -1;
        }
        this.panel.setAttribute("aria-labelledby", `tab-${one.name}`);
        this.panel.className = `panel panel-${one.name}`;
        this.panel.replaceChildren(this.tab.element);
        this.showAddress(this.wanted);
        this.tab.start();
        if (focus) this.focusTab(one);
    }

    showAddress(tab) {
        history.replaceState(null, "", `#/sandboxes/${encodeURIComponent(this.id)}${tab ? `/${tab}` : ""}`);
    }

    focusTab(one) {
        document.getElementById(`tab-${one.name}`).focus();
    }

    arrows(event) {
        const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        const usable = this.tabs.filter((one) => this.usable(one));
        const at = usable.findIndex((one) => one.name === this.tab?.name);
        const next = {Home: 0, End: usable.length - 1}[event.key] ?? (by ? (at + by + usable.length) % usable.length : -1);
        if (next < 0) return;
        event.preventDefault();
        this.choose(usable[next].name, true);
    }

    /* --- changes -------------------------------------------------------------------------------------------- */

    async askDelete() {
        if ((await askDelete(this.record)) && location.hash.startsWith(`#/sandboxes/${encodeURIComponent(this.id)}`)) location.hash = "#/";
    }

    askExtend() {
        const minutes = h("input", {type: "number", min: 1, step: "any", value: 60, required: true, autofocus: true});
        const problem = h("div");
        const form = h("form", {class: "dialog-body"}, field("Minutes from now", minutes, `It would end ${fullTime(this.record.expires)}.`), problem,
            h("div", {class: "dialog-foot"}, button("Set", {kind: "primary", type: "submit"})));
        const opened = openDialog("Lifetime", form);
        form.addEventListener("submit", async (event) => {
            event.preventDefault();
            try {
                const response = await call("PATCH", ["sandboxes", this.id], {json: {ttl: Number(minutes.value) * 60}});
                this.show(await response.json());
                opened.close();
                toast(`${this.id} ends in ${span(until(this.record.expires))}`);
            } catch (error) {
                problem.replaceChildren(problemBox(error));
            }
        });
    }
}
