/* The record, as the API gives it. */

import {h, setText} from "./dom.js";
import {bytes, fullTime} from "./format.js";

export class AboutTab {
    constructor(session, record) {
        this.list = h("dl", {class: "about card"});
        this.raw = h("pre", {class: "code"});
        this.element = h("div", {class: "columns"}, this.list, h("details", {class: "card"}, h("summary", {}, "As JSON"), this.raw));
        this.show(record);
    }

    start() {}
    stop() {}

    show(record) {
        const limits = Object.entries(record.limits ?? {}).map(([name, limit]) =>
            `${name} ${limit.value === null ? "none" : name === "memory" || name === "storage" ? bytes(limit.value) : limit.value}${limit.enforced ? "" : " (not enforced)"}`);
        const rows = [
            ["Id", record.id], ["Uid", record.uid], ["Owner", record.owner], ["Image", record.image], ["State since", fullTime(record.since)],
            ["Created", fullTime(record.created)], ["Ready", fullTime(record.ready)], ["Ends", fullTime(record.expires)], ["Ended", fullTime(record.ended)],
            ["Working directory", record.workdir], ["Network", record.network], ["Limits", limits.join(", ")],
            ["User, group", `${record.run_as_user}, ${record.run_as_group}`], ["Root", record.read_only_root ? "read-only" : "writable"], ["Runtime class", record.runtime_class],
            ["Driver", record.backend?.driver], ["Node", record.backend?.node], ["Container", record.backend?.container_id],
            ["Labels", Object.entries(record.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ")],
        ].filter(([, value]) => value);
        const text = JSON.stringify(rows);
        if (this.shown !== text) this.list.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
        this.shown = text;
        setText(this.raw, JSON.stringify(record, null, 2));
    }
}
