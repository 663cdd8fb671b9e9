/* One file: shown, edited (guarded by its ETag), downloaded, deleted. */

import {call} from "./api.js";
import {button, h, icon, problemBox, setText, toast} from "./dom.js";
import {download} from "./download.js";
import {bytes} from "./format.js";
import {baseName, visible} from "./paths.js";

const EDITABLE = 1024 * 1024; // bytes of a file that is shown whole
const PICTURE = 4 * 1024 * 1024;
const PICTURES = {png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp"};

/* "crlf" and "lf" survive a text box, which knows only one kind of line end; others do not. */
function lineEnds(text) {
    const crlf = text.split("\r\n").length - 1;
    const lf = text.split("\n").length - 1;
    const cr = text.split("\r").length - 1;
    return cr === 0 ? "lf" : cr === crlf && lf === crlf ? "crlf" : "mixed";
}

export class FilePane {
    constructor(id, tab) {
        this.id = id;
        this.tab = tab;
        this.name = h("span", {class: "mono cut"});
        this.note = h("span", {class: "quiet"});
        this.save = button("Save", {kind: "primary", title: "Save (Ctrl+S)", onclick: () => this.store()});
        this.again = button("Read again", {symbol: "refresh", onclick: () => this.blocks() || this.open(this.path)});
        this.fetchIt = button("Download", {symbol: "download", onclick: () => download(["sandboxes", this.id, "files"], {path: {encoded: this.path.encoded}}, baseName(this.path.text) || "file")});
        this.remove = button("Delete", {symbol: "trash", kind: "danger-quiet", onclick: () => this.tab.askRemove(this.path, false)});
        this.head = h("div", {class: "side-head"}, this.name, this.note, h("span", {class: "bar-gap"}), this.save, this.again, this.fetchIt, this.remove);
        this.problem = h("div");
        this.body = h("div", {class: "file-body"});
        this.element = h("div", {class: "card file"}, this.head, this.problem, this.body);
        this.element.addEventListener("keydown", (event) => {
            if (event.key === "s" && (event.ctrlKey || event.metaKey) && this.editor && !this.editor.readOnly) {
                event.preventDefault();
                this.store();
            }
        });
        this.leaving = (event) => this.dirty && event.preventDefault();
        window.addEventListener("beforeunload", this.leaving);
        this.clear();
    }

    stop() {
        window.removeEventListener("beforeunload", this.leaving);
    }

    clear() {
        this.path = this.editor = this.etag = null;
        this.head.hidden = true;
        this.problem.replaceChildren();
        this.body.replaceChildren(h("div", {class: "empty"}, icon("file"), h("p", {class: "quiet"}, "Choose a file, or drop some onto the list to upload them.")));
    }

    get dirty() {
        return Boolean(this.editor) && this.editor.value !== this.stored;
    }

    /* True when there are changes that the user wants to keep. */
    blocks() {
        if (!this.dirty) return false;
        if (window.confirm(`Throw away the changes to ${baseName(this.path.text)}?`)) return (this.editor = null), false;
        return true;
    }

    async open(path) {
        this.path = path;
        this.editor = this.etag = null;
        this.head.hidden = false;
        this.save.hidden = true;
        setText(this.name, visible(path.text));
        setText(this.note, "");
        this.problem.replaceChildren();
        try {
            await this.read(path);
        } catch (problem) {
            if (this.path === path) this.body.replaceChildren(problemBox(problem));
        }
    }

    request(method, options = {}) {
        return call(method, ["sandboxes", this.id, "files"], {...options, query: {path: {encoded: this.path.encoded}}});
    }

    async read(path) {
        const head = await this.request("HEAD").catch((problem) => (problem.status >= 400 ? this.request("GET") : Promise.reject(problem))); // an answer to HEAD does not say why
        const size = Number(head.headers.get("Content-Length"));
        if (this.path !== path) return;
        setText(this.note, `${bytes(size)} · ${head.headers.get("X-File-Mode") ?? ""}`);
        const picture = PICTURES[baseName(path.text).split(".").pop().toLowerCase()];
        if (picture && size <= PICTURE) return this.showPicture(path, picture);
        if (size > EDITABLE) return this.showStart(path, size);
        const response = await this.request("GET", {headers: {Accept: "application/json"}});
        const reply = await response.json();
        if (this.path !== path) return;
        if (reply.encoding !== "utf-8" || reply.content.includes("\0")) return this.showBinary(size);
        this.etag = response.headers.get("ETag");
        this.showText(reply);
    }

    showBinary(size) {
        this.body.replaceChildren(h("div", {class: "empty"}, icon("file"), h("p", {class: "quiet"}, `Not text: ${bytes(size)}.`)));
    }

    async showPicture(path, type) {
        const response = await this.request("GET");
        const blob = new Blob([await response.arrayBuffer()], {type});
        const reader = new FileReader();
        reader.onload = () => this.path === path && this.body.replaceChildren(h("div", {class: "picture"}, h("img", {src: reader.result, alt: visible(path.text)})));
        reader.readAsDataURL(blob);
    }

    async showStart(path, size) {
        const response = await this.request("GET", {headers: {Range: `bytes=0-${EDITABLE - 1}`}});
        const text = new TextDecoder().decode(await response.arrayBuffer());
        if (this.path !== path) return;
        if (text.includes("\0")) return this.showBinary(size);
        this.showText({content: text, scrubbed: 0}, `The first ${bytes(EDITABLE)}; download it to see the rest.`);
    }

    showText(reply, only) {
        this.ends = lineEnds(reply.content);
        const why = only ?? (reply.scrubbed ? "Secrets in it are masked, so it cannot be saved from here." : this.ends === "mixed" ? "Its line ends are mixed, so it cannot be saved from here." : "");
        this.editor = h("textarea", {class: "mono editor", spellcheck: "false", autocomplete: "off", autocapitalize: "off", wrap: "off", "aria-label": `Content of ${visible(baseName(this.path.text))}`,
            readonly: Boolean(why), oninput: () => this.edited()});
        this.editor.value = reply.content;
        this.stored = this.editor.value;
        this.save.hidden = Boolean(why);
        this.edited();
        this.problem.replaceChildren(...(why ? [h("p", {class: "note busy"}, why)] : []));
        this.body.replaceChildren(this.editor);
    }

    edited() {
        this.save.disabled = !this.dirty;
        this.element.classList.toggle("dirty", this.dirty);
    }

    async store(force = false) {
        if (!this.dirty) return;
        const shown = this.editor.value;
        const content = this.ends === "crlf" ? shown.replaceAll("\n", "\r\n") : shown;
        this.problem.replaceChildren();
        this.save.disabled = true;
        try {
            const {etag, entry} = await this.tab.put(this.path, content, force || !this.etag ? {} : {"If-Match": this.etag});
            this.etag = etag ?? (entry.etag ? `"${entry.etag.replaceAll('"', "")}"` : null);
            this.stored = shown;
            toast(`${visible(baseName(this.path.text))} is saved`);
            await this.tab.refresh();
        } catch (problem) {
            this.problem.append(problemBox(problem));
            if (problem.status === 412) this.problem.append(h("div", {class: "dialog-foot"}, button("Read theirs", {onclick: () => this.open(this.path)}), button("Overwrite", {kind: "danger", onclick: () => this.store(true)})));
        }
        this.edited();
    }
}
