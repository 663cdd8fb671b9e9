/* What happened to a sandbox, newest first, as it happens. */

import {get, poll} from "./api.js";
import {h} from "./dom.js";
import {clockTime, commandLine, fullTime, tone} from "./format.js";

const EVERY_MS = 1500;
const MOST = 500; // shown at once

function words(detail) {
    return Object.entries(detail ?? {}).filter(([, value]) => value !== null && value !== "")
        .map(([name, value]) => `${name} ${Array.isArray(value) ? commandLine(value.map(String)) : typeof value === "object" ? JSON.stringify(value) : value}`).join(" · ");
}

export class EventsTab {
    constructor(session, record) {
        this.id = record.id;
        this.after = 0;
        this.list = h("ol", {class: "events card", "aria-label": "Events, newest first", reversed: true});
        this.element = h("div", {}, this.list);
    }

    start() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
    }

    stop() {
        this.poll.stop();
    }

    async look(signal) {
        for (let more = true; more; ) {
            const page = await get(["sandboxes", this.id, "events"], {after: this.after, limit: 100}, {signal});
            for (const event of page.items) this.add(event);
            more = page.next !== null && page.items.length > 0;
        }
        while (this.list.children.length > MOST) this.list.lastChild.remove();
    }

    add(event) {
        this.after = Math.max(this.after, event.id);
        this.list.prepend(h("li", {class: "event"}, h("time", {datetime: event.at, title: fullTime(event.at), class: "mono"}, clockTime(event.at)),
            h("span", {class: `dot ${tone(event.type)}`}), h("strong", {}, event.type), h("span", {class: "event-detail"}, words(event.detail))));
    }
}
