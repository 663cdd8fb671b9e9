/* Deleting a sandbox, after asking. */

import {call} from "./api.js";
import {confirmed, toast} from "./dom.js";

const WAIT_MS = 60000; // the server itself answers after 30 s at the latest

export async function askDelete(record) {
    const done = await confirmed({
        title: `Delete ${record.id}?`,
        text: "Its processes end, and its files and previews go with it. This cannot be undone.",
        action: "Delete sandbox",
        run: () => call("DELETE", ["sandboxes", record.id], {timeout: WAIT_MS}),
    });
    if (done) toast(`${record.id} is deleted`);
    return done;
}
