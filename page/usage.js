/* What sandboxes use now: their processes' memory and processor time, asked for one sandbox after the other. */

import {get} from "./api.js";

const MOST = 40; // sandboxes looked at in one round

/* {rss, cpu (share of one core; null at first), count} of a reply of …/ps. */
export function measure(reply, before) {
    const now = performance.now();
    const sum = (name) => reply.processes.reduce((total, one) => total + (one[name] ?? 0), 0);
    const cpuTime = sum("cpu_time");
    const seconds = before ? (now - before.at) / 1000 : 0;
    const cpu = seconds > 0 ? Math.max(0, cpuTime - before.cpuTime) / seconds : null;
    return {at: now, cpuTime, cpu, rss: sum("rss"), count: reply.processes.length};
}

export class Usage {
    #known = new Map(); // uid → what measure() gave

    of(record) {
        return record.state === "running" ? this.#known.get(record.uid) : undefined;
    }

    async look(records, signal) {
        const running = records.filter((record) => record.state === "running").slice(0, MOST);
        const uids = new Set(running.map((record) => record.uid));
        for (const uid of this.#known.keys()) if (!uids.has(uid)) this.#known.delete(uid);
        for (const record of running) {
            try {
                const reply = await get(["sandboxes", record.id, "ps"], undefined, {signal});
                this.#known.set(record.uid, measure(reply, this.#known.get(record.uid)));
            } catch (error) {
                if (signal.aborted || error.status === 0 || error.status === 401) throw error;
                this.#known.delete(record.uid); // it has ended meanwhile
            }
        }
    }
}

export const memoryLimit = (record) => record.limits?.memory?.value ?? null;
