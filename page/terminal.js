/* Terminals of a sandbox: they live in the sandbox, so a reload finds them again. */

import {call, get, post} from "./api.js";
import {Attachment} from "./attach.js";
import {button, h, iconButton, problemBox, setText, toastProblem} from "./dom.js";
import {commandLine} from "./format.js";
import {replaceInlineStyles} from "./inline_styles.js";

const SHELL = ["/bin/sh", "-c", "command -v bash >/dev/null && exec bash || exec sh"];
const THEME = {
    background: "#171513", foreground: "#e9e4da", cursor: "#e8935a", cursorAccent: "#171513", selectionBackground: "#5a4a3c",
    black: "#2a2723", red: "#f2857c", green: "#7cc795", yellow: "#e3b768", blue: "#84aef0", magenta: "#cf9be6", cyan: "#77c8c4", white: "#d8d2c6",
    brightBlack: "#847c70", brightRed: "#ffa69e", brightGreen: "#9fe0b4", brightYellow: "#f5cf8a", brightBlue: "#a9c8ff", brightMagenta: "#e3bdf5", brightCyan: "#9de2de", brightWhite: "#fbf7ef",
};
const FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace";

/* What a terminal says by itself when a program asks it: what it is, where the cursor is, its colours and modes. */
const ANSWER = /^\x1b(\[[?>=]?[\d;]*\$?[cnRty]|[\]P])/;
const BEHIND = 8 * 1024 * 1024; // bytes that wait to be drawn

let library = null; // loaded when the first terminal is opened

function load() {
    library ??= Promise.all([import("./xterm.mjs"), import("./addon-fit.mjs")]).then(([{Terminal}, {FitAddon}]) => {
        replaceInlineStyles();
        return {Terminal, FitAddon};
    });
    return library;
}

/* One terminal on the screen. */
class Screen {
    constructor(tab, number, {Terminal, FitAddon}) {
        Object.assign(this, {tab, number});
        this.holder = h("div", {class: "screen"});
        this.state = h("span", {class: "quiet", role: "status"});
        this.take = button("Take over", {title: "Type here instead of where it is open now", onclick: () => (this.attachment.takeover(), this.terminal.focus()), hidden: true});
        this.element = h("div", {class: "terminal-box"}, this.holder);
        this.terminal = new Terminal({fontFamily: FONT, fontSize: 13, lineHeight: 1.2, cursorBlink: true, scrollback: 5000, theme: THEME, macOptionIsMeta: true});
        this.fitting = new FitAddon();
        this.terminal.loadAddon(this.fitting);
        this.replaying = 0;
        this.waiting = 0; // bytes that are not drawn yet
    }

    start() {
        const {terminal} = this;
        terminal.open(this.holder);
        terminal.textarea?.setAttribute("aria-label", `Terminal ${this.number}`);
        terminal.onData((text) => (this.replaying && ANSWER.test(text)) || this.attachment.input(text));
        terminal.onBinary((text) => this.attachment.binary(text));
        terminal.onResize(({cols, rows}) => this.attachment.resize(cols, rows));
        terminal.attachCustomKeyEventHandler((event) => this.key(event));
        this.observer = new ResizeObserver(() => this.fit());
        this.observer.observe(this.holder);
        this.attachment = new Attachment(this.tab.id, this.number, {
            state: (state) => this.showState(state),
            started: (message) => this.started(message),
            output: (bytes, isReplay) => this.write(bytes, isReplay),
            writer: (writer) => this.showWriter(writer),
            resized: (cols, rows) => this.attachment.writer || terminal.resize(cols, rows),
            gap: (gap) => terminal.write(`\r\n\x1b[2m[${gap.to - gap.from} bytes were not kept]\x1b[0m\r\n`),
            error: (problem) => toastProblem({title: problem.title ?? problem.code, detail: problem.detail}),
            exit: (how) => this.exit(how),
        });
        terminal.focus();
    }

    stop() {
        this.attachment.close();
        this.observer.disconnect();
        this.terminal.dispose();
    }

    /* An answer of the terminal to what it is told again must not be typed into the program. */
    write(bytes, isReplay) {
        this.replaying += isReplay;
        this.waiting += bytes.length;
        if (this.waiting > BEHIND) this.attachment.pause();
        this.terminal.write(bytes, () => {
            this.replaying -= isReplay;
            this.waiting -= bytes.length;
            if (this.waiting === 0) this.attachment.resume();
        });
    }

    key(event) {
        if (event.ctrlKey && !event.shiftKey && event.key === "c" && this.terminal.hasSelection()) {
            if (event.type === "keyup") this.terminal.clearSelection();
            return false; // the browser copies
        }
        if (!(event.ctrlKey && event.shiftKey && event.key === "ArrowUp")) return true;
        if (event.type === "keydown") this.tab.leave();
        return false;
    }

    fit() {
        if (this.attachment && this.attachment.isOpen && !this.attachment.writer) return;
        if (this.holder.clientWidth > 0) this.fitting.fit();
    }

    started(message) {
        this.terminal.resize(message.cols ?? this.terminal.cols, message.rows ?? this.terminal.rows);
        this.showWriter(message.writer);
        if (!this.wasStarted && message.offset > 0) this.redraw();
        this.wasStarted = true;
    }

    /* A program that draws the whole screen does so again for another size: its beginning was not sent. */
    redraw() {
        const {cols, rows} = this.terminal;
        this.attachment.resize(cols, rows - 1);
        this.attachment.resize(cols, rows);
    }

    showWriter(writer) {
        this.take.hidden = writer;
        this.terminal.options.disableStdin = !writer;
        this.terminal.options.cursorBlink = writer;
        if (writer) {
            this.fit();
            this.attachment.resize(this.terminal.cols, this.terminal.rows);
        }
        this.showState("open");
    }

    showState(state) {
        const words = {connecting: "Connecting…", waiting: "Reconnecting…", behind: "Catching up…", ended: "Ended", open: this.attachment?.writer ? "" : "Watching: someone else types here"};
        setText(this.state, words[state]);
        this.element.dataset.state = state;
    }

    exit({result, problem}) {
        this.isOver = true;
        this.take.hidden = true;
        this.terminal.options.disableStdin = true;
        this.terminal.options.cursorBlink = false;
        const how = problem ? problem.title : result.error ? result.error.message : result.signal ? `ended by SIG${result.signal}` : `ended with exit code ${result.exit_code}`;
        setText(this.state, how.charAt(0).toUpperCase() + how.slice(1));
        this.tab.ended(this);
    }
}

export class TerminalTab {
    constructor(session, record, view) {
        this.id = record.id;
        this.view = view;
        this.supported = session.features.tty && session.features.attach;
        this.strip = h("div", {class: "strip", role: "group", "aria-label": "Terminals"});
        this.tools = h("div", {class: "strip-tools"});
        this.place = h("div", {class: "screens"});
        this.problem = h("div");
        this.bar = h("div", {class: "strip-bar", hidden: true}, this.strip, h("span", {class: "bar-gap"}), this.tools);
        this.element = h("div", {class: "terminals"}, this.bar, this.problem, this.place);
    }

    start() {
        if (this.supported) return this.find();
        this.element.replaceChildren(h("div", {class: "empty card"}, h("h2", {}, "No terminals here"), h("p", {class: "quiet"}, "This server or its driver has none. Commands can be run in the tab Commands.")));
    }

    stop() {
        this.stopped = true;
        this.screen?.stop();
        this.screen = null;
    }

    leave() {
        this.view.focusTab({name: "terminal"});
    }

    /* The terminals that run already. To look at a sandbox starts nothing in it. */
    async find() {
        try {
            const {items} = await get(["sandboxes", this.id, "execs"], {limit: 100});
            if (this.stopped) return;
            this.running = items.filter((exec) => exec.tty && exec.state === "running").reverse();
            if (this.running.length) await this.open(this.running.at(-1).id);
            else this.offer();
        } catch (problem) {
            this.show(problem);
        }
    }

    offer() {
        this.drawStrip();
        this.place.replaceChildren(h("div", {class: "empty card"}, h("h2", {}, "No terminal is open"), h("p", {class: "quiet"}, "One goes on in the sandbox when this page is closed, and is found here again."),
            button("Open a terminal", {kind: "primary", onclick: () => this.create()})));
    }

    show(problem) {
        if (!(problem instanceof Error)) return; // the record: nothing here depends on it
        this.problem.replaceChildren(problemBox(problem), button("Try again", {onclick: () => (this.problem.replaceChildren(), this.find())}));
    }

    async create() {
        try {
            const exec = await post(["sandboxes", this.id, "execs"], {cmd: SHELL, tty: true, cols: 80, rows: 24});
            if (this.stopped) return;
            this.running = [...(this.running ?? []), exec];
            await this.open(exec.id);
        } catch (problem) {
            this.show(problem);
        }
    }

    async open(number) {
        const parts = await load();
        if (this.stopped) return;
        this.screen?.stop();
        this.screen = new Screen(this, number, parts);
        this.place.replaceChildren(this.screen.element);
        this.drawStrip();
        this.screen.start();
    }

    drawStrip() {
        const {screen} = this;
        const choices = this.running.map((exec, at) => button(`Terminal ${at + 1}`, {kind: "segment", title: `Command #${exec.id}: ${commandLine(exec.cmd)}`, "aria-pressed": exec.id === screen?.number, onclick: () => this.open(exec.id)}));
        this.bar.hidden = choices.length === 0 && !screen;
        this.strip.replaceChildren(...choices, iconButton("New terminal", "plus", {kind: "quiet", onclick: () => this.create()}));
        this.tools.replaceChildren(...(screen ? [screen.state, screen.take, !screen.isOver && button("End", {kind: "quiet", title: "End this terminal and what runs in it", onclick: () => this.end(screen)})].filter(Boolean) : []));
    }

    async end(screen) {
        try {
            await call("DELETE", ["sandboxes", this.id, "execs", String(screen.number)]);
        } catch (problem) {
            toastProblem(problem);
        }
    }

    ended(screen) {
        this.running = this.running.filter((exec) => exec.id !== screen.number);
        this.drawStrip();
        const again = button("New terminal", {symbol: "plus", kind: "primary", onclick: () => this.create()});
        this.place.append(h("div", {class: "screen-over"}, again));
        if (screen.element.contains(document.activeElement)) again.focus();
    }
}
