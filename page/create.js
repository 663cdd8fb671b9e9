/* The form for a new sandbox. */

import {post} from "./api.js";
import {button, field, h, openDialog, problemBox, toast} from "./dom.js";

/* "NAME=value" lines. */
function pairs(text, what) {
    const result = {};
    for (const line of text.split("\n")) {
        if (!line.trim()) continue;
        const at = line.indexOf("=");
        if (at <= 0) throw {title: `${what}: each line must be NAME=value`, detail: line, remediation: ""};
        result[line.slice(0, at).trim()] = line.slice(at + 1);
    }
    return result;
}

const lines = (text) => text.split("\n").filter((line) => line !== "");
const filled = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== "" && value !== undefined));

class CreateForm {
    constructor(session) {
        const text = (placeholder = "", more = {}) => h("input", {type: "text", placeholder, autocomplete: "off", spellcheck: "false", autocapitalize: "off", ...more});
        const area = (placeholder) => h("textarea", {rows: 2, class: "mono", placeholder, spellcheck: "false", autocomplete: "off"});
        const c = (this.controls = {
            id: text("made up without one", {autofocus: true, maxlength: 40}),
            image: text("the server's default"),
            ttl: h("input", {type: "number", min: 1, step: "any", value: 60, required: true}),
            unit: h("select", {"aria-label": "Unit of the lifetime"}, h("option", {value: 60}, "minutes"), h("option", {value: 3600}, "hours"), h("option", {value: 1}, "seconds")),
            cpu: text("2"),
            memory: text("2Gi"),
            storage: text("4Gi"),
            env: area("NAME=value"),
            labels: area("team=agents"),
            secrets: area("one per line"),
            workdir: text("/workspace"),
            runtime_class: session.promises.runtime_classes ? text("gvisor") : null,
            network: session.networks.length > 1 ? h("select", {}, ...session.networks.map((name) => h("option", {}, name))) : null,
        });
        this.session = session;
        this.problem = h("div");
        this.submit = button("Create", {kind: "primary", type: "submit"});
        this.element = h("form", {class: "dialog-body", onsubmit: (event) => this.send(event)},
            h("div", {class: "fields two"}, field("Name", c.id), field("Image", c.image)),
            h("div", {class: "fields two"}, h("div", {class: "field"}, h("label", {for: "create-ttl"}, "Lifetime"), h("div", {class: "joined"}, c.ttl, c.unit)),
                c.network ? field("Network", c.network) : h("div", {class: "field"}, h("span", {class: "label"}, "Network"), h("p", {class: "fixed"}, session.networks[0] ?? "–"))),
            h("div", {class: "fields three"}, field("CPUs", c.cpu), field("Memory", c.memory), field("Storage", c.storage)),
            field("Environment", c.env, "Of every command, one NAME=value a line."),
            h("details", {}, h("summary", {}, "More"),
                field("Labels", c.labels), field("Secrets", c.secrets, "Masked in everything that comes out. They can never be read again."),
                h("div", {class: "fields two"}, field("Working directory", c.workdir), c.runtime_class && field("Runtime class", c.runtime_class))),
            this.problem,
            h("div", {class: "dialog-foot"}, button("Cancel", {onclick: () => this.opened.close()}), this.submit));
        c.ttl.id = "create-ttl";
    }

    body() {
        const c = this.controls;
        const value = (name) => c[name]?.value.trim() ?? "";
        const cpu = value("cpu");
        const resources = filled({cpu: /^\d+(\.\d+)?$/.test(cpu) ? Number(cpu) : cpu, memory: value("memory"), storage: value("storage")});
        const env = pairs(c.env.value, "Environment");
        const labels = pairs(c.labels.value, "Labels");
        const secrets = lines(c.secrets.value);
        return {
            ...filled({id: value("id"), image: value("image"), workdir: value("workdir"), runtime_class: value("runtime_class"), network: value("network")}),
            ...(Object.keys(resources).length ? {resources} : {}), ...(Object.keys(env).length ? {env} : {}),
            ...(Object.keys(labels).length ? {labels} : {}), ...(secrets.length ? {secrets} : {}),
            ttl: Number(c.ttl.value) * Number(c.unit.value), wait: false,
        };
    }

    async send(event) {
        event.preventDefault();
        this.problem.replaceChildren();
        this.submit.disabled = true;
        try {
            const record = await post(["sandboxes"], this.body());
            this.opened.close();
            toast(`${record.id} is being made`);
            location.hash = `#/sandboxes/${encodeURIComponent(record.id)}`;
        } catch (problem) {
            this.problem.append(problemBox(problem));
            this.problem.scrollIntoView({block: "center"});
        } finally {
            this.submit.disabled = false;
        }
    }
}

export function askCreate(session) {
    const form = new CreateForm(session);
    form.opened = openDialog("New sandbox", form.element, {wide: true});
}
