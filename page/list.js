/* All sandboxes, live. */

import {get, poll} from "./api.js";
import {button, h, icon, iconButton, setClass, setText} from "./dom.js";
import {bytes, fullTime, since, span, tone, until} from "./format.js";
import {askCreate} from "./create.js";
import {askDelete} from "./remove.js";
import {Usage, memoryLimit} from "./usage.js";

const EVERY_MS = 2000;
const USAGE_MS = 5000;
const PAGE = 100;

const sandboxLink = (record) => `#/sandboxes/${encodeURIComponent(record.id)}`;

/* One row; its cells are kept, so that focus and selection outlive an update. */
class Row {
    constructor(page) {
        this.page = page;
        this.link = h("a", {class: "mono row-link"});
        this.labels = h("span", {class: "row-labels"});
        this.badge = h("span", {class: "badge"});
        this.reason = h("span", {class: "row-reason"});
        this.owner = h("td", {"data-label": "Owner"});
        this.image = h("span", {class: "mono cut"});
        this.age = h("td", {"data-label": "Age", class: "number"});
        this.ends = h("td", {"data-label": "Ends", class: "number"});
        this.usage = h("span");
        this.meter = h("meter", {min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0, "aria-label": "Memory used of its limit"});
        this.remove = iconButton("Delete", "trash", {kind: "quiet", onclick: () => askDelete(this.record)});
        this.element = h("tr", {},
            h("td", {class: "row-id"}, this.link, this.labels),
            h("td", {"data-label": "State"}, this.badge, this.reason),
            page.admin && this.owner,
            h("td", {"data-label": "Image"}, this.image), this.age, this.ends,
            h("td", {"data-label": "Usage", class: "row-usage"}, this.usage, this.meter),
            h("td", {class: "row-actions"}, this.remove));
    }

    show(record) {
        this.record = record;
        setText(this.link, record.id);
        this.link.href = sandboxLink(record);
        setText(this.labels, Object.entries(record.labels ?? {}).map(([name, value]) => `${name}=${value}`).join("  "));
        setClass(this.badge, `badge ${tone(record.state)}`);
        setText(this.badge, record.state);
        const reason = [record.reason, record.message].filter(Boolean).join(": ");
        setText(this.reason, reason);
        this.reason.title = reason;
        setText(this.owner, record.owner);
        setText(this.image, record.image || "–");
        this.image.title = record.image;
        this.age.title = `Created ${fullTime(record.created)}`;
        this.ends.title = record.ended ? `Ended ${fullTime(record.ended)}` : record.expires ? `Ends ${fullTime(record.expires)}` : "";
        this.remove.hidden = record.state === "gone";
        this.remove.setAttribute("aria-label", `Delete ${record.id}`);
        this.tick();
    }

    tick() {
        const {record} = this;
        const over = record.state === "gone" || record.state === "failed";
        setText(this.age, span(since(record.created)));
        setText(this.ends, record.ended ? `${span(since(record.ended))} ago` : over || !record.expires ? "–" : `in ${span(until(record.expires))}`);
        const use = this.page.usage.of(record);
        const limit = memoryLimit(record);
        this.meter.hidden = !use?.count || !limit;
        if (use && limit) this.meter.value = Math.min(1, use.rss / limit);
        setText(this.usage, use?.count === 0 ? "idle" : use ? `${bytes(use.rss)}${use.cpu === null ? "" : ` · ${Math.round(use.cpu * 100)} %`}` : "–");
        this.usage.title = use ? `${use.count} processes, ${record.running_execs} commands running` : "";
    }
}

export class ListView {
    title = "Sandboxes";

    constructor(session) {
        this.session = session;
        this.admin = session.admin;
        this.usage = new Usage();
        this.rows = new Map(); // uid → Row
        this.records = [];
        this.pages = 1;
        this.ended = false;
        this.filter = h("input", {type: "search", class: "filter", placeholder: "Filter", "aria-label": "Filter by id, label, image or owner", autocomplete: "off",
            oninput: () => this.draw()});
        this.summary = h("p", {class: "summary"});
        this.body = h("tbody");
        this.empty = h("div", {class: "empty"});
        this.more = button("Show more", {onclick: () => (this.pages++, this.poll.now()), hidden: true});
        this.table = h("table", {class: "table list"},
            h("caption", {class: "hidden"}, "Sandboxes"),
            h("thead", {}, h("tr", {}, ...this.columns().map((name) => h("th", {scope: "col"}, name)))), this.body);
        this.element = h("section", {class: "page", "aria-labelledby": "list-title"}, this.head(), this.summary, this.table, this.empty, h("div", {class: "more"}, this.more));
    }

    columns() {
        return ["Sandbox", "State", this.admin && "Owner", "Image", "Age", "Ends", "Memory, CPU", h("span", {class: "hidden"}, "Actions")].filter(Boolean);
    }

    head() {
        const choice = (label, ended) => button(label, {kind: "segment", "aria-pressed": this.ended === ended, onclick: (event) => this.choose(ended, event.currentTarget)});
        this.choices = h("div", {class: "segments", role: "group", "aria-label": "Which sandboxes"}, choice("Live", false), choice("Ended", true));
        return h("div", {class: "page-head"}, h("h1", {id: "list-title"}, "Sandboxes"), h("span", {class: "bar-gap"}), this.filter, this.choices,
            button("New sandbox", {symbol: "plus", kind: "primary", title: "New sandbox (n)", onclick: () => this.create()}));
    }

    create() {
        askCreate(this.session);
    }

    choose(ended, pressed) {
        this.ended = ended;
        this.pages = 1;
        for (const one of this.choices.children) one.setAttribute("aria-pressed", one === pressed);
        this.poll.stop();
        this.records = [];
        this.loaded = false;
        this.draw();
        this.watch();
    }

    start() {
        this.watch();
        if (this.session.features.ps) this.usagePoll = poll((signal) => this.usage.look(this.records, signal).then(() => this.tick()), USAGE_MS);
        this.timer = setInterval(() => this.tick(), 1000);
    }

    stop() {
        this.poll.stop();
        this.usagePoll?.stop();
        clearInterval(this.timer);
    }

    watch() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
    }

    async look(signal) {
        const path = this.admin ? ["admin", "sandboxes"] : ["sandboxes"];
        const records = [];
        let cursor;
        for (let page = 0; page < this.pages && cursor !== null; page++) {
            const reply = await get(path, {limit: PAGE, cursor, state: this.ended ? "gone" : undefined}, {signal});
            records.push(...reply.items);
            cursor = reply.next;
        }
        const stats = this.admin && !this.ended ? await get(["admin", "stats"], undefined, {signal}) : null;
        const first = !this.loaded;
        this.records = records;
        this.stats = stats;
        this.more.hidden = cursor === null;
        this.loaded = true;
        this.draw();
        if (first) this.usagePoll?.now();
    }

    /* The last word of the filter box, in any of what a row shows. */
    wanted() {
        const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
        const text = (record) => [record.id, record.state, record.reason, record.owner, record.image, ...Object.entries(record.labels ?? {}).map(([n, v]) => `${n}=${v}`)].join(" ").toLowerCase();
        return words.length ? this.records.filter((record) => words.every((word) => text(record).includes(word))) : this.records;
    }

    draw() {
        const wanted = this.wanted();
        const kept = new Set(wanted.map((record) => record.uid));
        for (const [uid, row] of this.rows) {
            if (kept.has(uid)) continue;
            row.element.remove();
            this.rows.delete(uid);
        }
        wanted.forEach((record, at) => {
            let row = this.rows.get(record.uid);
            if (!row) this.rows.set(record.uid, (row = new Row(this)));
            row.show(record);
            if (this.body.children[at] !== row.element) this.body.insertBefore(row.element, this.body.children[at] ?? null);
        });
        this.table.hidden = wanted.length === 0;
        this.drawEmpty(wanted.length);
        this.drawSummary();
    }

    drawEmpty(shown) {
        const kind = !this.loaded ? "loading" : shown ? "none" : this.filter.value ? "filter" : this.ended ? "ended" : "live";
        this.empty.hidden = kind === "none";
        if (this.empty.dataset.kind === kind) return;
        this.empty.dataset.kind = kind;
        const text = {loading: "Loading…", none: "", filter: "Nothing matches the filter.", ended: "No sandbox has ended lately."}[kind];
        this.empty.replaceChildren(...(text !== undefined ? [h("p", {class: "quiet"}, text)] : this.welcome()));
    }

    welcome() {
        return [h("div", {class: "welcome-box", "aria-hidden": "true"}, icon("plus")), h("h2", {}, "No sandbox yet"),
            h("p", {class: "quiet"}, "Make one here, or from a program:"),
            h("pre", {class: "code"}, `curl -X POST ${new URL("../v1/sandboxes", import.meta.url).href} \\\n  -H 'Content-Type: application/json' -d '{"ttl": 1800}'`),
            button("New sandbox", {symbol: "plus", kind: "primary", onclick: () => this.create()})];
    }

    drawSummary() {
        const counts = this.stats?.sandboxes ?? Object.groupBy(this.records, (record) => record.state);
        const words = ["running", "creating", "deleting", "failed"].map((state) => [state, counts[state]?.length ?? counts[state] ?? 0]);
        const parts = words.filter(([, count]) => count > 0).map(([state, count]) => `${count} ${state}`);
        if (this.stats) parts.push(`${this.stats.running_execs} ${this.stats.running_execs === 1 ? "command" : "commands"} running`);
        if (this.stats?.backend?.ready === false) parts.push(`${this.session.driver} does not answer: ${this.stats.backend.message ?? ""}`);
        setText(this.summary, this.ended ? `${this.records.length} ended` : parts.join(" · "));
    }

    tick() {
        for (const row of this.rows.values()) row.tick();
    }

    keys = {
        n: () => this.create(),
        "/": () => this.filter.focus(),
        j: () => this.move(1),
        k: () => this.move(-1),
        ArrowDown: () => this.move(1),
        ArrowUp: () => this.move(-1),
    };

    move(by) {
        const links = [...this.body.querySelectorAll(".row-link")];
        const at = links.indexOf(document.activeElement);
        links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
    }

    escape() {
        if (!this.filter.value) return;
        this.filter.value = "";
        this.draw();
    }
}
