/* Hands what the API answers to the browser as a file. Without a key it is a plain link, of any size; with one the
   answer has to be fetched, since a key never stands in an address. */

import {address, call, key} from "./api.js";
import {h, toastProblem} from "./dom.js";

const AT_MOST_MS = 10 * 60 * 1000;
const FORGET_MS = 60000;

function hand(href, name) {
    h("a", {href, download: name}).click();
}

export async function download(segments, query, name) {
    if (!key.get()) return hand(address(segments, query), name);
    try {
        const response = await call("GET", segments, {query, timeout: AT_MOST_MS});
        const url = URL.createObjectURL(await response.blob());
        hand(url, name);
        setTimeout(() => URL.revokeObjectURL(url), FORGET_MS);
    } catch (problem) {
        toastProblem(problem);
    }
}
