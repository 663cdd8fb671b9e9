/* The ports of a sandbox that are published. */

import {call, get, poll, post} from "./api.js";
import {button, confirmed, copyText, field, h, iconButton, openDialog, pageAddress, problemBox, setClass, setText, toast, toastProblem} from "./dom.js";
import {fullTime, tone} from "./format.js";

const EVERY_MS = 2500;
const LINK_S = 3600;

class Preview {
    constructor(tab, preview) {
        this.tab = tab;
        this.link = h("a", {class: "mono cut", target: "_blank", rel: "noopener noreferrer"});
        this.badge = h("span", {class: "badge"});
        this.note = h("span", {class: "quiet"});
        this.open = button("Open", {symbol: "open", kind: "primary", onclick: () => this.visit()});
        this.copy = button("Copy link", {symbol: "copy", onclick: () => this.copyLink()});
        this.revoke = button("Revoke links", {onclick: () => this.revokeLinks()});
        this.element = h("li", {class: "preview card"},
            h("div", {class: "preview-what"}, h("strong", {class: "preview-port"}, String(preview.port)), this.badge, this.note),
            this.link,
            h("div", {class: "preview-tools"}, this.open, this.copy, this.revoke, button("Log", {symbol: "file", onclick: () => this.showLog()}), iconButton("Take it down", "trash", {kind: "quiet", onclick: () => this.askRemove()})));
        this.show(preview);
    }

    show(preview) {
        this.preview = preview;
        this.isPrivate = preview.visibility === "private";
        const href = pageAddress(preview.url);
        setText(this.link, preview.url);
        if (href && !this.isPrivate) this.link.href = href;
        else this.link.removeAttribute("href");
        this.open.disabled = !href;
        setText(this.badge, preview.state);
        setClass(this.badge, `badge ${tone(preview.state)}`);
        const ended = preview.exit_code === null ? "" : `, exit ${preview.exit_code}`;
        setText(this.note, `${preview.visibility}${preview.exec === null ? "" : `, command #${preview.exec}`}${ended}`);
        this.note.title = `Since ${fullTime(preview.created)}`;
        this.revoke.hidden = !this.isPrivate;
    }

    path(...more) {
        return ["sandboxes", this.tab.id, "previews", String(this.preview.port), ...more];
    }

    /* A private one opens by a link that is made now. */
    async address() {
        if (!this.isPrivate) return pageAddress(this.preview.url);
        return pageAddress((await post(this.path("links"), {ttl: LINK_S})).url);
    }

    async visit() {
        try {
            const href = await this.address();
            if (href) h("a", {href, target: "_blank", rel: "noopener noreferrer"}).click();
        } catch (problem) {
            toastProblem(problem);
        }
    }

    async copyLink() {
        try {
            await copyText(await this.address(), this.isPrivate ? "Link, good for an hour," : "Address");
        } catch (problem) {
            toastProblem(problem);
        }
    }

    async revokeLinks() {
        try {
            await call("DELETE", this.path("links"));
            toast("No link made until now opens it any more");
        } catch (problem) {
            toastProblem(problem);
        }
    }

    async showLog() {
        try {
            const text = await (await call("GET", this.path("log"))).text();
            openDialog(`Log of port ${this.preview.port}`, h("div", {class: "dialog-body"}, h("pre", {class: "code tall", tabindex: 0}, text || "No output.")), {wide: true});
        } catch (problem) {
            toastProblem(problem);
        }
    }

    askRemove() {
        return confirmed({title: `Take down port ${this.preview.port}?`, text: "Its command ends, and its address leads nowhere.", action: "Take down",
            run: async () => {
                await call("DELETE", this.path());
                await this.tab.look();
            }});
    }
}

export class PreviewsTab {
    constructor(session, record) {
        this.id = record.id;
        this.known = new Map();
        this.list = h("ul", {class: "previews"});
        this.empty = h("p", {class: "quiet"}, "Nothing is published. Start a program that listens, and its port gets an address.");
        this.problem = h("div");
        const c = (this.controls = {
            port: h("input", {type: "number", min: 1, max: 65535, required: true, placeholder: "8000"}),
            command: h("input", {type: "text", class: "mono", spellcheck: "false", autocomplete: "off", placeholder: "python3 -m http.server 8000"}),
            visibility: h("select", {}, h("option", {value: "public"}, "public"), session.features.private_previews && h("option", {value: "private"}, "private")),
        });
        this.submit = button("Publish", {kind: "primary", type: "submit"});
        this.form = h("form", {class: "row-form", onsubmit: (event) => this.publish(event)}, field("Port", c.port), field("Command, in a shell (optional)", c.command), field("Visibility", c.visibility), this.submit);
        this.element = h("div", {}, this.form, this.problem, this.list, this.empty);
    }

    start() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
    }

    stop() {
        this.poll.stop();
    }

    async publish(event) {
        event.preventDefault();
        const {port, command, visibility} = this.controls;
        this.problem.replaceChildren();
        this.submit.disabled = true;
        const body = {port: Number(port.value), visibility: visibility.value, wait: false};
        if (command.value.trim()) body.command = ["sh", "-c", command.value];
        try {
            await post(["sandboxes", this.id, "previews"], body);
            this.form.reset();
            await this.look();
        } catch (problem) {
            this.problem.append(problemBox(problem));
        } finally {
            this.submit.disabled = false;
        }
    }

    async look(signal) {
        const {items} = await get(["sandboxes", this.id, "previews"], undefined, {signal});
        const ports = new Set(items.map((one) => one.port));
        for (const [port, one] of this.known) {
            if (ports.has(port)) continue;
            one.element.remove();
            this.known.delete(port);
        }
        for (const preview of items) {
            const known = this.known.get(preview.port);
            if (known) known.show(preview);
            else {
                const made = new Preview(this, preview);
                this.known.set(preview.port, made);
                this.list.append(made.element);
            }
        }
        this.empty.hidden = items.length > 0;
    }
}
