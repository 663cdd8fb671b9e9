-- Says at the end, in numbers: seconds, requests, bytes, wrong answers, and the latencies' p50 and p99 in microseconds.
-- BODY in the environment makes it a POST of that JSON; WANTED is a text that every answer has (then it is looked at).
local body, wanted = os.getenv("BODY"), os.getenv("WANTED")
local threads = {}

if body then
    wrk.method, wrk.body, wrk.headers["Content-Type"] = "POST", body, "application/json"
end

function setup(thread)
    table.insert(threads, thread)
end

function init()
    wrong = 0
    if not wanted then
        response = nil -- without it wrk does not copy the answers
    end
end

function response(status, headers, text)
    if status ~= 200 or not text:find(wanted, 1, true) then
        wrong = wrong + 1
    end
end

function done(summary, latency)
    local errors = summary.errors
    local bad = errors.connect + errors.read + errors.write + errors.status + errors.timeout
    for _, thread in ipairs(threads) do
        bad = bad + thread:get("wrong")
    end
    print(string.format("numbers %f %d %d %d %f %f", summary.duration / 1e6, summary.requests, summary.bytes, bad,
                        latency:percentile(50), latency:percentile(99)))
end
