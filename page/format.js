/* Numbers as people read them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
    if (count === null || count === undefined) return "–";
    let unit = 0;
    while (count >= 1024 && unit < UNITS.length - 1) {
        count /= 1024;
        unit++;
    }
    return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
}

export function span(seconds) {
    if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/* How long a command took. */
export function took(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    return seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : seconds < 60 ? `${seconds.toFixed(1)} s` : span(seconds);
}

export const since = (time) => (time ? (Date.now() - Date.parse(time)) / 1000 : null);
export const until = (time) => (time ? (Date.parse(time) - Date.now()) / 1000 : null);
export const clockTime = (time) => new Date(time).toLocaleTimeString();
export const fullTime = (time) => (time ? new Date(time).toLocaleString() : "");

/* An argv as a shell would take it. */
export function commandLine(cmd) {
    return (cmd ?? []).map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

const TONES = {running: "good", creating: "busy", deleting: "busy", failed: "bad", gone: "off", ready: "good", starting: "busy", exited: "off"};

export const tone = (state) => TONES[state] ?? "off";
