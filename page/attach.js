/* The WebSocket to one execution: bytes both ways, reattached where it was when the connection breaks. */

import {address, get, key} from "./api.js";

const PROTOCOL = "podsandbox.v1";
const REPLAY = 256 * 1024; // bytes of earlier output that are asked for
const STDIN = 0, STDOUT = 1, STDERR = 2, RESIZE = 4;
const RETRY_MS = [300, 700, 1500, 3000, 5000];
const STEADY_MS = 5000; // a connection that lived as long was a good one
const HELD_INPUT = 4096; // characters that are typed while the screen catches up

const base64url = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

function protocols() {
    const secret = key.get();
    return secret ? [PROTOCOL, `podsandbox.bearer.${base64url(secret)}`] : [PROTOCOL];
}

export class Attachment {
    /* `on`: {started, output(bytes, isReplay), writer, resized, gap, error, exit, state}. `state` is one of connecting, open, waiting, behind, ended. */
    constructor(id, number, on) {
        Object.assign(this, {id, number, on, failures: 0, seen: null, writer: false, held: ""});
        this.encoder = new TextEncoder();
        this.connect();
    }

    path(...more) {
        return ["sandboxes", this.id, "execs", String(this.number), ...more];
    }

    async connect() {
        this.on.state("connecting");
        try {
            const record = await get(this.path());
            if (this.closed) return;
            this.replayTo = record.stdout_bytes ?? 0;
        } catch (problem) {
            if (this.closed) return;
            if (problem.status === 0 || problem.status >= 500) return this.retry();
            return this.end({problem});
        }
        const url = new URL(address(this.path("attach"), {offset: this.seen ?? -REPLAY, takeover: this.wantsWriter ? "true" : undefined}));
        url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
        this.socket = new WebSocket(url, protocols());
        this.socket.binaryType = "arraybuffer";
        this.socket.onmessage = (event) => (typeof event.data === "string" ? this.control(JSON.parse(event.data)) : this.bytes(new Uint8Array(event.data)));
        this.socket.onclose = () => this.lost();
    }

    lost() {
        this.socket = null;
        if (this.closed || this.ended) return;
        this.wantsWriter ||= this.writer;
        this.writer = false;
        if (Date.now() - this.openedAt > STEADY_MS) this.failures = 0;
        this.retry();
    }

    /* A WebSocket cannot be told to wait. When more comes than can be drawn it is closed, and what was missed asked
       for afterwards, or as much of it as was kept. */
    pause() {
        if (!this.isOpen || this.ended) return;
        this.drop();
        this.wantsWriter ||= this.writer;
        this.writer = false;
        this.paused = true;
        this.on.state("behind");
    }

    resume() {
        if (!this.paused || this.closed) return;
        this.paused = false;
        this.connect();
    }

    retry() {
        this.on.state("waiting");
        this.timer = setTimeout(() => this.connect(), RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)]);
    }

    end(how) {
        this.ended = true;
        this.on.state("ended");
        this.on.exit(how);
    }

    close() {
        this.closed = true;
        clearTimeout(this.timer);
        this.drop();
    }

    /* One that is not open yet is closed once it is: browsers take the other for an error. */
    drop() {
        const {socket} = this;
        this.socket = null;
        if (!socket) return;
        socket.onmessage = socket.onclose = null;
        if (socket.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
        else socket.close();
    }

    /* --- what comes ------------------------------------------------------------------------------------------- */

    bytes(message) {
        if (message[0] !== STDOUT && message[0] !== STDERR) return;
        const data = message.subarray(1);
        const isReplay = message[0] === STDOUT && this.seen < this.replayTo;
        if (message[0] === STDOUT) this.seen += data.length;
        this.on.output(data, isReplay);
    }

    control(message) {
        switch (message.type) {
        case "started":
            this.openedAt = Date.now();
            this.seen = message.offset ?? 0;
            this.writer = message.writer;
            this.wantsWriter = false;
            this.on.state("open");
            this.on.started(message);
            this.input(this.held);
            this.held = "";
            break;
        case "writer":
            this.writer = message.writer;
            this.on.writer(message.writer);
            break;
        case "resized":
            this.on.resized(message.cols, message.rows);
            break;
        case "gap":
            if (message.stream === "stdout") this.seen = message.to;
            this.on.gap(message);
            break;
        case "error":
            this.on.error(message);
            break;
        case "exit":
            this.end({result: message});
            break;
        }
    }

    /* --- what goes -------------------------------------------------------------------------------------------- */

    get isOpen() {
        return this.socket?.readyState === WebSocket.OPEN;
    }

    input(text) {
        if (this.paused && this.wantsWriter) this.held = (this.held + text).slice(-HELD_INPUT);
        if (text && this.isOpen && this.writer) this.send(STDIN, this.encoder.encode(text));
    }

    binary(text) {
        if (!this.isOpen || !this.writer) return;
        this.send(STDIN, Uint8Array.from(text, (char) => char.charCodeAt(0) & 255));
    }

    send(channel, data) {
        const message = new Uint8Array(data.length + 1);
        message[0] = channel;
        message.set(data, 1);
        this.socket.send(message);
    }

    resize(cols, rows) {
        if (!this.isOpen || !this.writer) return;
        const data = new Uint8Array(4);
        const view = new DataView(data.buffer);
        view.setUint16(0, cols);
        view.setUint16(2, rows);
        this.send(RESIZE, data);
    }

    say(message) {
        if (this.isOpen) this.socket.send(JSON.stringify(message));
    }

    takeover() {
        this.say({type: "takeover"});
    }
}
