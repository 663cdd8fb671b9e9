"""A server that speaks the Messages API of Anthropic and answers from a script."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def use(name, **given):
    """A content block: a call of a tool."""
    return {"type": "tool_use", "name": name, "input": given}


def say(text):
    return {"type": "text", "text": text}


def results(request):
    """What the tools gave, as the model is told it: (is it an error, text) each."""
    return [(block.get("is_error", False), block["content"]) for block in request["messages"][-1]["content"]]


def message(number, blocks, stop_reason):
    content = [{"id": f"toolu_{number}_{index}", **block} if block["type"] == "tool_use" else block for index, block in enumerate(blocks)]
    used = any(block["type"] == "tool_use" for block in blocks)
    return {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "content": content, "stop_sequence": None,
            "stop_reason": stop_reason or ("tool_use" if used else "end_turn"), "usage": {"input_tokens": 1, "output_tokens": 1}}


@contextmanager
def answering(*turns, stop_reasons=None):
    """Each of TURNS is a list of blocks, or an HTTP status; the last one is said again and again. Yields the URL and the requests
    that came. STOP_REASONS: turn -> another than what goes with its blocks."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            came.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            number = min(len(came), len(turns)) - 1
            turn = turns[number]
            status, body = 200, turn
            if isinstance(turn, int):
                status, body = turn, {"type": "error", "error": {"type": "invalid_request_error", "message": "scripted failure"}}
            else:
                body = message(len(came), turn, (stop_reasons or {}).get(number))
            data = json.dumps(body).encode()
            self.send_response(status if self.path == "/v1/messages" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            """The tests ask what came."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
