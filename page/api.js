/* Calls of the API. The key is kept for this tab alone, in sessionStorage, and leaves it only as a header
   (or as a subprotocol of a WebSocket, which cannot have headers). */

const KEY = "podsandbox.key";
const ROOT = new URL("../v1/", import.meta.url);
const TIMEOUT_MS = 45000;

export const events = new EventTarget(); // "signed-out", "answered", "unreachable"

export const key = {
    get: () => sessionStorage.getItem(KEY),
    set: (value) => sessionStorage.setItem(KEY, value),
    clear: () => sessionStorage.removeItem(KEY),
};

export class Problem extends Error {
    constructor(status, body) {
        super(body.detail ?? body.title ?? `HTTP ${status}`);
        this.status = status;
        this.code = body.code ?? "";
        this.title = body.title ?? `HTTP ${status}`;
        this.detail = body.detail ?? "";
        this.remediation = body.remediation ?? "";
        this.requestId = body.request_id ?? "";
        this.retryable = body.retryable ?? false;
        this.sandbox = body.sandbox ?? null;
    }
}

/* segments: text; a path's bytes: percent-encoded already. */
export function address(segments, query = {}) {
    const url = new URL(segments.map(encodeURIComponent).join("/"), ROOT);
    const words = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const encoded = words.map(([name, value]) => `${name}=${value?.encoded ?? encodeURIComponent(value)}`);
    return url.href + (encoded.length ? `?${encoded.join("&")}` : "");
}

async function problemOf(response) {
    const text = await response.text();
    try {
        return new Problem(response.status, JSON.parse(text));
    } catch {
        return new Problem(response.status, {title: response.statusText || `HTTP ${response.status}`, detail: text.slice(0, 300)});
    }
}

function headersOf({json, headers}) {
    const all = new Headers(headers);
    const secret = key.get();
    if (secret) all.set("Authorization", `Bearer ${secret}`);
    if (json !== undefined) all.set("Content-Type", "application/json");
    return all;
}

/* The response of what succeeded; else throws a Problem. STATUS 0: the server was not reached. */
export async function call(method, segments, options = {}) {
    const {query, json, body, signal, timeout = TIMEOUT_MS} = options;
    const limit = AbortSignal.timeout(timeout);
    const used = key.get();
    let response;
    try {
        response = await fetch(address(segments, query), {
            method,
            headers: headersOf(options),
            body: json !== undefined ? JSON.stringify(json) : body,
            signal: signal ? AbortSignal.any([signal, limit]) : limit,
            cache: "no-store",
            credentials: "same-origin", // a proxy in front may have a cookie of its own
            referrerPolicy: "no-referrer",
        });
    } catch (error) {
        if (signal?.aborted) throw error;
        events.dispatchEvent(new Event("unreachable"));
        throw new Problem(0, {title: "The server does not answer", code: "unreachable", detail: "It is tried again by itself."});
    }
    events.dispatchEvent(new Event("answered"));
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.status === 401 && used === key.get()) events.dispatchEvent(new CustomEvent("signed-out", {detail: problem}));
    throw problem;
}

export const get = async (segments, query, options = {}) => (await call("GET", segments, {...options, query})).json();
export const post = async (segments, json, options = {}) => {
    const response = await call("POST", segments, {...options, json});
    return response.status === 204 ? null : response.json();
};

/* --- polling: pauses while the page is hidden, waits longer while nothing answers --------------------------- */

export function poll(look, everyMs) {
    const abort = new AbortController();
    let timer = 0;
    let failures = 0;
    let running = null;

    const schedule = () => {
        clearTimeout(timer);
        if (!abort.signal.aborted) timer = setTimeout(run, Math.min(everyMs * 2 ** failures, Math.max(everyMs, 5000)));
    };
    const once = async () => {
        try {
            await look(abort.signal);
            failures = 0;
        } catch (error) {
            if (abort.signal.aborted) return;
            if (!(error instanceof Problem)) throw error;
            if (error.status === 401) return abort.abort();
            failures = Math.min(failures + 1, 4);
        } finally {
            running = null;
            schedule();
        }
    };
    const run = () => {
        if (document.hidden || abort.signal.aborted) return running;
        clearTimeout(timer);
        running ??= once();
        return running;
    };
    document.addEventListener("visibilitychange", run, {signal: abort.signal});
    window.addEventListener("online", run, {signal: abort.signal});
    run();
    return {now: run, stop: () => (abort.abort(), clearTimeout(timer))};
}
