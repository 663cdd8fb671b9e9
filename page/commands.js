/* The executions of a sandbox: what was run, how it ended, what it said. */

import {call, get, poll, post} from "./api.js";
import {button, field, h, icon, iconButton, problemBox, setClass, setText, toast, toastProblem} from "./dom.js";
import {commandLine, fullTime, since, took} from "./format.js";

const EVERY_MS = 2000;
const PAGE = 50;
const TAIL = 64 * 1024; // of each stream

function ending(exec) {
    if (exec.state === "running") return ["running", "busy"];
    if (exec.error) return [exec.error.code, "bad"];
    if (exec.signal) return [`SIG${exec.signal}`, "bad"];
    return [`exit ${exec.exit_code}`, exec.exit_code === 0 ? "good" : "bad"];
}

class Command {
    constructor(id, exec) {
        this.id = id;
        this.badge = h("span", {class: "badge"});
        this.took = h("span", {class: "number quiet"});
        this.stop = iconButton("End it and all that it has started", "stop", {kind: "quiet", onclick: () => this.end()});
        this.output = h("div", {class: "output"});
        this.more = h("details", {class: "command", ontoggle: () => this.more.open && this.read()},
            h("summary", {}, icon("chevron"), h("span", {class: "number quiet"}, `#${exec.id}`), h("code", {class: "cut", title: commandLine(exec.cmd)}, commandLine(exec.cmd) || "(unknown)"),
                exec.tty && h("span", {class: "badge off"}, "terminal"), exec.service && h("span", {class: "badge off"}, "preview"), h("span", {class: "bar-gap"}), this.took, this.badge),
            this.output);
        this.element = h("li", {}, this.more, this.stop);
        this.show(exec);
    }

    show(exec) {
        const [text, tone] = ending(exec);
        const ended = this.exec?.state === "running" && exec.state !== "running";
        this.exec = exec;
        setText(this.badge, text);
        setClass(this.badge, `badge ${tone}`);
        setText(this.took, exec.state === "running" ? took(Math.max(1, since(exec.created))) : took(exec.duration));
        this.took.title = fullTime(exec.created);
        this.stop.hidden = exec.state !== "running";
        if (this.more.open && (ended || exec.state === "running")) this.read();
    }

    async end() {
        try {
            await call("DELETE", ["sandboxes", this.id, "execs", String(this.exec.id)]);
            toast(`Command ${this.exec.id} is ended`);
        } catch (problem) {
            toastProblem(problem);
        }
    }

    async stream(name) {
        const total = this.exec[`${name}_bytes`] ?? 0;
        if (total === 0) return null;
        const from = Math.max(0, total - TAIL);
        const response = await call("GET", ["sandboxes", this.id, "execs", String(this.exec.id), "output"], {query: {stream: name, offset: from, limit: TAIL}});
        const text = await response.text();
        return h("div", {}, h("p", {class: "hint"}, `${name}, ${from ? `the last ${TAIL / 1024} KiB of ${total} bytes` : `${total} bytes`}`), h("pre", {class: "code"}, text));
    }

    async read() {
        try {
            const parts = (await Promise.all([this.stream("stdout"), this.stream("stderr")])).filter(Boolean);
            this.output.replaceChildren(...(parts.length ? parts : [h("p", {class: "quiet"}, "No output.")]));
            if (this.exec.error) this.output.prepend(h("p", {class: "note bad"}, this.exec.error.message));
        } catch (problem) {
            this.output.replaceChildren(problemBox(problem));
        }
    }
}

export class CommandsTab {
    constructor(session, record) {
        this.id = record.id;
        this.commands = new Map();
        this.list = h("ol", {class: "commands card", reversed: true});
        this.empty = h("p", {class: "quiet"}, record.state === "gone" ? "Nothing was run." : "Nothing was run yet.");
        this.problem = h("div");
        const input = h("input", {type: "text", class: "mono", required: true, spellcheck: "false", autocomplete: "off", placeholder: "make test"});
        const form = h("form", {class: "row-form"}, field("Run in a shell", input), button("Run", {kind: "primary", type: "submit"}));
        form.addEventListener("submit", (event) => this.run(event, input));
        form.hidden = record.state !== "running";
        this.element = h("div", {}, form, this.problem, this.list, this.empty);
    }

    start() {
        this.poll = poll((signal) => this.look(signal), EVERY_MS);
    }

    stop() {
        this.poll.stop();
    }

    async run(event, input) {
        event.preventDefault();
        this.problem.replaceChildren();
        try {
            await post(["sandboxes", this.id, "execs"], {cmd: ["sh", "-c", input.value], detach: true});
            input.value = "";
            await this.poll.now();
        } catch (problem) {
            this.problem.append(problemBox(problem));
        }
    }

    async look(signal) {
        const page = await get(["sandboxes", this.id, "execs"], {limit: PAGE}, {signal});
        page.items.forEach((exec, at) => {
            const known = this.commands.get(exec.id);
            if (known) return known.show(exec);
            const made = new Command(this.id, exec);
            this.commands.set(exec.id, made);
            this.list.insertBefore(made.element, this.list.children[at] ?? null);
        });
        this.list.hidden = page.items.length === 0;
        this.empty.hidden = page.items.length > 0;
    }
}
