/* Elements out of plain values. Whatever the server says becomes a text node or a property, never HTML. */

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
    plus: "M12 5v14M5 12h14",
    close: "M6 6l12 12M18 6L6 18",
    back: "M19 12H5M11 6l-6 6 6 6",
    chevron: "M9 6l6 6-6 6",
    sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2",
    moon: "M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500",
    trash: "M4 7h16M9 7V4h6v3M6.500 7l1 13h9l1-13M10 11v5M14 11v5",
    refresh: "M20 12a8 8 0 1 1-2.400-5.700M20 3v5h-5",
    upload: "M12 16V5M7 9.500L12 4.500l5 5M4 19.500h16",
    download: "M12 4.500V15M7 10.500l5 5 5-5M4 19.500h16",
    open: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
    copy: "M9 9h11v11H9zM5 15H4V4h11v1",
    folder: "M3 6.500h6.500l2 2.500H21v10.500H3z",
    file: "M6 3h8l5 5v13H6zM14 3v5h5",
    link: "M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-5.700-5.700l-1.500 1.500M14 10a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 5.700 5.700l1.500-1.500",
    clock: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7.500V12l3 2",
    leave: "M10 4H4v16h6M14 8l4 4-4 4M18 12H9",
    stop: "M6 6h12v12H6z",
    edit: "M4 20l1-4L16.500 4.500l3 3L8 19z",
    help: "M9 9.500a3 3 0 1 1 4.500 2.600c-1 .6-1.500 1.100-1.500 2.400M12 18v.1",
};

export function icon(name) {
    const svg = document.createElementNS(SVG, "svg");
    for (const [key, value] of Object.entries({viewBox: "0 0 24 24", width: "18", height: "18", class: "icon", "aria-hidden": "true"}))
        svg.setAttribute(key, value);
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
}

/* h("a", {class: "x", onclick: f, hidden: true}, "text", element, null) */
export function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes ?? {})) {
        if (value === undefined || value === null || (value === false && !key.startsWith("aria-"))) continue;
        if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
        else if (key.startsWith("aria-")) element.setAttribute(key, String(value));
        else if (value === true) element.setAttribute(key, "");
        else element.setAttribute(key, String(value));
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
}

/* Only when it differs: what a screen reader or a selection is at stays. */
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
    if (element.className !== name) element.className = name;
}

export function button(label, {symbol, kind = "", title, ...attributes} = {}) {
    return h("button", {type: "button", class: `button ${kind}`, title, ...attributes}, symbol && icon(symbol), h("span", {}, label));
}

export function iconButton(label, symbol, attributes = {}) {
    const {kind = "", ...rest} = attributes;
    return h("button", {type: "button", class: `icon-button ${kind}`, "aria-label": label, title: label, ...rest}, icon(symbol));
}

let fields = 0;

/* A labelled control, with a hint below. */
export function field(label, control, hint) {
    const id = (control.id ||= `field-${++fields}`);
    if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
    return h("div", {class: "field"}, h("label", {for: id}, label), control, hint && h("p", {class: "hint", id: `${id}-hint`}, hint));
}

/* What went wrong, with its code and what to do about it. */
export function problemBox(problem) {
    const box = h("div", {class: "problem", role: "alert"},
        h("p", {class: "problem-title"}, problem.title, problem.code && h("code", {}, problem.code)),
        problem.detail && h("p", {}, problem.detail),
        problem.remediation && h("p", {class: "problem-remedy"}, problem.remediation));
    if (problem.requestId) box.append(h("p", {class: "hint"}, `Request ${problem.requestId}`));
    return box;
}

export function toast(text, kind = "") {
    const note = h("div", {class: `toast ${kind}`}, text);
    document.getElementById("toasts").append(note);
    setTimeout(() => note.remove(), kind === "bad" ? 8000 : 4000);
}

export function toastProblem(problem) {
    if (problem.status === 401) return;
    toast([problem.title, problem.detail, problem.remediation].filter(Boolean).join(" — "), "bad");
}

/* A modal dialog; Escape and the close button end it. Returns {dialog, close, closed}. */
export function openDialog(title, content, {wide = false} = {}) {
    const before = document.activeElement;
    const id = `dialog-${++fields}`;
    const dialog = h("dialog", {class: wide ? "dialog wide" : "dialog", "aria-labelledby": id},
        h("div", {class: "dialog-head"}, h("h2", {id}, title), iconButton("Close", "close", {onclick: () => dialog.close()})),
        content);
    const closed = new Promise((resolve) => {
        dialog.addEventListener("close", () => {
            dialog.remove();
            if (before?.isConnected) before.focus();
            resolve(dialog.returnValue);
        });
    });
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
    dialog.showModal();
    return {dialog, closed, close: (value) => dialog.close(value)};
}

/* Asks before RUN, which may fail: the dialog shows why and stays. True when it was done. */
export async function confirmed({title, text, action, run}) {
    const problem = h("div", {});
    const yes = button(action, {kind: "danger"});
    const no = button("Cancel", {autofocus: true, onclick: () => opened.close()});
    const opened = openDialog(title, h("div", {class: "dialog-body"}, h("p", {}, text), problem, h("div", {class: "dialog-foot"}, no, yes)));
    yes.addEventListener("click", async () => {
        yes.disabled = true;
        problem.replaceChildren();
        try {
            await run();
            opened.close("done");
        } catch (error) {
            problem.append(problemBox(error));
            yes.disabled = false;
        }
    });
    return (await opened.closed) === "done";
}

export async function copyText(text, what) {
    try {
        await navigator.clipboard.writeText(text);
        toast(`${what} copied`);
    } catch {
        openDialog(what, h("div", {class: "dialog-body"}, h("textarea", {class: "mono", rows: 3, readonly: true, "aria-label": what}, text)));
    }
}

/* Only what a browser may open as a page; anything else gets no link. */
export function pageAddress(text) {
    try {
        const url = new URL(text);
        return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
    } catch {
        return null;
    }
}
