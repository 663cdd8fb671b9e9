/* Paths in a sandbox are bytes. A name that is not UTF-8 comes as base64; here a path is its percent-encoded
   form (what goes into a query), and text only to be shown. */

const toBytes = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
const encodeBytes = (bytes) => [...bytes].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");

/* Of an entry of a listing: {encoded, text}. */
export function entryName(entry) {
    if (entry.name_encoding !== "base64") return {encoded: encodeURIComponent(entry.path), text: entry.path};
    const bytes = toBytes(entry.path);
    return {encoded: encodeBytes(bytes), text: new TextDecoder().decode(bytes)};
}

export const pathOf = (text) => ({encoded: encodeURIComponent(text), text});

export function join(directory, name) {
    const slash = directory.text.endsWith("/");
    return {encoded: directory.encoded + (slash ? "" : "%2F") + name.encoded, text: directory.text + (slash ? "" : "/") + name.text};
}

/* Control characters in a name are shown as what they are. */
export const visible = (text) => text.replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

export const baseName = (text) => text.slice(text.lastIndexOf("/") + 1);
