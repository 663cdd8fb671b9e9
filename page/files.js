/* The files of a sandbox: a tree that is read as it is opened, and beside it one file. */

import {call, get} from "./api.js";
import {button, confirmed, field, h, icon, iconButton, openDialog, problemBox, setText, toast, toastProblem} from "./dom.js";
import {download} from "./download.js";
import {FilePane} from "./file_pane.js";
import {bytes, fullTime} from "./format.js";
import {entryName, join, pathOf, visible} from "./paths.js";

const UPLOAD_MS = 10 * 60 * 1000;
const order = (a, b) => (b.type === "directory") - (a.type === "directory") || (a.path < b.path ? -1 : 1);

/* One entry of the tree; a directory has its children below it once it was opened. */
class Node {
    constructor(tab, entry, path, level) {
        Object.assign(this, {tab, entry, path, level, isDirectory: entry.type === "directory"});
        this.label = h("span", {class: "tree-name"});
        this.size = h("span", {class: "tree-size"});
        this.row = h("div", {class: "tree-row"}, this.isDirectory ? icon("chevron") : h("span", {class: "tree-gap"}), icon(this.isDirectory ? "folder" : "file"), this.label, this.size);
        this.group = this.isDirectory ? h("ul", {role: "group"}) : null;
        this.element = h("li", {role: "treeitem", tabindex: -1, "aria-level": level, "aria-selected": "false", ...(this.isDirectory ? {"aria-expanded": "false"} : {})}, this.row, this.group);
        this.row.addEventListener("click", () => this.activate());
        this.element.node = this;
        this.show(entry);
    }

    show(entry) {
        this.entry = entry;
        setText(this.label, visible(entryName(entry).text) + (entry.type === "symlink" ? ` → ${visible(entry.target ?? "")}` : ""));
        setText(this.size, entry.type === "file" ? bytes(entry.size) : "");
        this.row.title = `${visible(this.path.text)}\n${entry.mode} ${entry.type}, ${fullTime(entry.mtime)}`;
        this.element.setAttribute("aria-label", visible(entryName(entry).text));
    }

    get isOpen() {
        return this.element.getAttribute("aria-expanded") === "true";
    }

    async activate() {
        this.tab.focusNode(this);
        if (this.isDirectory) return this.isOpen ? this.fold() : this.unfold();
        if (this.entry.type === "file" || this.entry.type === "symlink") await this.tab.openFile(this);
    }

    fold() {
        this.element.setAttribute("aria-expanded", "false");
    }

    async unfold() {
        try {
            await this.tab.fill(this.group, this.path, this.level + 1);
            this.element.setAttribute("aria-expanded", "true");
        } catch (problem) {
            toastProblem(problem);
        }
    }
}

export class FilesTab {
    constructor(session, record) {
        this.id = record.id;
        this.root = pathOf(record.workdir);
        this.tree = h("ul", {class: "tree", role: "tree", "aria-label": "Files", onkeydown: (event) => this.keys(event)});
        this.where = h("span", {class: "mono cut"}, record.workdir);
        this.picker = h("input", {type: "file", multiple: true, hidden: true, "aria-label": "Files to upload", onchange: () => this.upload([...this.picker.files])});
        this.pane = new FilePane(this.id, this);
        this.side = h("div", {class: "card side"},
            h("div", {class: "side-head"}, this.where, h("span", {class: "bar-gap"}), iconButton("New file", "plus", {onclick: () => this.askNew()}),
                iconButton("Upload files", "upload", {onclick: () => this.picker.click()}), session.features.archive && iconButton("Download this folder", "download", {onclick: () => this.downloadFolder()}), iconButton("Read again", "refresh", {onclick: () => this.refresh()}), this.picker),
            this.tree);
        this.side.addEventListener("dragover", (event) => (event.preventDefault(), this.side.classList.add("drop")));
        this.side.addEventListener("dragleave", () => this.side.classList.remove("drop"));
        this.side.addEventListener("drop", (event) => {
            event.preventDefault();
            this.side.classList.remove("drop");
            this.upload([...event.dataTransfer.files]);
        });
        this.element = h("div", {class: "files"}, this.side, this.pane.element);
    }

    start() {
        this.refresh();
    }

    stop() {
        this.pane.stop();
    }

    blocks() {
        return this.pane.blocks();
    }

    /* --- the tree --------------------------------------------------------------------------------------------- */

    async fill(list, path, level) {
        const reply = await get(["sandboxes", this.id, "tree"], {path: {encoded: path.encoded}, depth: 1});
        const known = new Map([...list.children].filter((item) => item.node).map((item) => [`${item.node.path.encoded} ${item.node.entry.type}`, item.node]));
        const nodes = reply.items.sort(order).map((entry) => {
            const below = join(path, entryName(entry));
            const node = known.get(`${below.encoded} ${entry.type}`) ?? new Node(this, entry, below, level);
            node.show(entry);
            return node;
        });
        list.replaceChildren(...(nodes.length ? nodes.map((node) => node.element) : [h("li", {role: "none", class: "quiet tree-empty"}, "empty")]));
        if (!this.tree.querySelector("[tabindex='0']")) this.tree.querySelector("[role=treeitem]")?.setAttribute("tabindex", 0);
        await Promise.all(nodes.filter((node) => node.isDirectory && node.isOpen).map((node) => node.unfold()));
    }

    async refresh() {
        try {
            await this.fill(this.tree, this.root, 1);
        } catch (problem) {
            this.tree.replaceChildren(h("li", {role: "none"}, problemBox(problem)));
        }
    }

    focusNode(node) {
        for (const item of this.tree.querySelectorAll("[tabindex='0']")) item.tabIndex = -1;
        node.element.tabIndex = 0;
        node.element.focus();
        this.at = node;
        setText(this.where, visible(this.directory().text));
    }

    /* Where new files go: the directory that is focused, or that of the file that is. */
    directory() {
        for (let item = this.at?.element; item; item = item.parentElement?.closest("[role=treeitem]"))
            if (item.node.isDirectory) return item.node.path;
        return this.root;
    }

    shown() {
        return [...this.tree.querySelectorAll("[role=treeitem]")].filter((item) => !item.parentElement.closest("[aria-expanded=false]"));
    }

    async keys(event) {
        const node = event.target.closest("[role=treeitem]")?.node;
        if (!node) return;
        const items = this.shown();
        const at = items.indexOf(node.element);
        const go = (item) => item && this.focusNode(item.node);
        const actions = {
            ArrowDown: () => go(items[at + 1]),
            ArrowUp: () => go(items[at - 1]),
            Home: () => go(items[0]),
            End: () => go(items.at(-1)),
            ArrowRight: () => node.isDirectory && (node.isOpen ? go(items[at + 1]) : node.unfold()),
            ArrowLeft: () => (node.isDirectory && node.isOpen ? node.fold() : go(node.element.parentElement.closest("[role=treeitem]"))),
            Enter: () => node.activate(),
            " ": () => node.activate(),
            Delete: () => this.askRemove(node.path, node.isDirectory),
        };
        const action = actions[event.key];
        if (!action) return;
        event.preventDefault();
        event.stopPropagation();
        await action();
    }

    /* --- what is done with files --------------------------------------------------------------------------------- */

    async openFile(node) {
        if (this.pane.blocks()) return;
        for (const item of this.tree.querySelectorAll("[aria-selected=true]")) item.setAttribute("aria-selected", "false");
        node.element.setAttribute("aria-selected", "true");
        await this.pane.open(node.path);
    }

    downloadFolder() {
        download(["sandboxes", this.id, "archive"], {path: {encoded: this.directory().encoded}, format: "tar.gz"}, `${this.id}.tar.gz`);
    }

    askNew() {
        const name = h("input", {type: "text", class: "mono", required: true, autofocus: true, spellcheck: "false", autocomplete: "off", placeholder: "src/main.py"});
        const problem = h("div");
        const form = h("form", {class: "dialog-body"}, field("Path", name, `Below ${visible(this.directory().text)}, or absolute. Folders are made as needed.`), problem,
            h("div", {class: "dialog-foot"}, button("Make", {kind: "primary", type: "submit"})));
        const opened = openDialog("New file", form);
        form.addEventListener("submit", async (event) => {
            event.preventDefault();
            const path = name.value.startsWith("/") ? pathOf(name.value) : join(this.directory(), pathOf(name.value));
            try {
                await this.put(path, "", {"If-None-Match": "*"});
                opened.close();
                await this.refresh();
                await this.pane.open(path);
            } catch (error) {
                problem.replaceChildren(problemBox(error));
            }
        });
    }

    async put(path, content, headers = {}) {
        const response = await call("PUT", ["sandboxes", this.id, "files"], {query: {path: {encoded: path.encoded}}, body: content, headers: {"Content-Type": "application/octet-stream", ...headers}, timeout: UPLOAD_MS});
        return {entry: await response.json(), etag: response.headers.get("ETag")};
    }

    async upload(files) {
        this.picker.value = "";
        const directory = this.directory();
        let done = 0;
        for (const file of files) {
            try {
                await this.put(join(directory, pathOf(file.name)), file);
                done++;
            } catch (problem) {
                toastProblem(problem);
            }
        }
        if (done) toast(`${done === 1 ? files[0].name : `${done} files`} uploaded to ${visible(directory.text)}`);
        await this.refresh();
    }

    async askRemove(path, recursive) {
        const done = await confirmed({
            title: "Delete from the sandbox?",
            text: visible(path.text) + (recursive ? " and all that is in it." : ""),
            action: "Delete",
            run: () => call("DELETE", ["sandboxes", this.id, "files"], {query: {path: {encoded: path.encoded}, recursive: recursive || undefined}}),
        });
        if (!done) return;
        if (this.pane.path && this.pane.path.encoded.startsWith(path.encoded)) this.pane.clear();
        this.at = null;
        await this.refresh();
    }
}
