/* What runs in a sandbox, and who listens. */

import {get, poll} from "./api.js";
import {h, setText} from "./dom.js";
import {bytes, commandLine, since, span, took} from "./format.js";

const EVERY_MS = 2000;

export class ProcessesTab {
    constructor(session, record) {
        this.id = record.id;
        this.body = h("tbody");
        this.ports = h("p", {class: "summary"});
        const names = ["PID", "Command", "Exec", "State", "CPU time", "Memory", "Running"];
        this.element = h("div", {}, this.ports, h("table", {class: "table"}, h("caption", {class: "hidden"}, "Processes"),
            h("thead", {}, h("tr", {}, ...names.map((name) => h("th", {scope: "col"}, name)))), this.body));
    }

    start() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
    }

    stop() {
        this.poll.stop();
    }

    async look(signal) {
        const reply = await get(["sandboxes", this.id, "ps"], undefined, {signal});
        const ports = reply.ports?.map((one) => `${one.port} on ${one.address}`).join(" · ");
        setText(this.ports, ports ? `Listening: ${ports}` : "Nothing listens.");
        const rows = reply.processes.map((one) => h("tr", {},
            h("td", {class: "number", "data-label": "PID"}, String(one.pid)),
            h("td", {class: "mono cut", title: commandLine(one.cmd)}, one.cmd.length ? commandLine(one.cmd) : `[${one.name}]`),
            h("td", {class: "number", "data-label": "Exec"}, one.exec === null ? "–" : String(one.exec)), h("td", {"data-label": "State"}, one.state),
            h("td", {class: "number", "data-label": "CPU time"}, took(one.cpu_time)), h("td", {class: "number", "data-label": "Memory"}, bytes(one.rss)),
            h("td", {class: "number", "data-label": "Running"}, span(since(one.started)))));
        this.body.replaceChildren(...(rows.length ? rows : [h("tr", {}, h("td", {colspan: 7, class: "quiet"}, "No process runs."))]));
    }
}
