"""A scripted Kubernetes API server. Behaves like the real one for what k8s/ uses, unless a Fault says otherwise; pods run
the real agent (fake_node.py), reached through a real exec WebSocket (fake_exec.py)."""

import copy
import json
import re
import threading
import time

from fake_exec import PROTOCOLS, ExecFault, ExecStream
from fake_http import Closed, HttpServer
from fake_node import Node
from fake_objects import KINDS, Store, prepare

NAMESPACE = "sandboxes"
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
           422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
PATH = re.compile(r"/(?:api/v1|apis/(?P<group>[\w.]+)/v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)"
                  r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?")


def status(code, message, reason=None, details=None):
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason or REASONS.get(code, "Unknown"), "code": code, **({"details": details} if details else {})}


class Refused(Exception):
    def __init__(self, code, message, reason=None, headers=None):
        super().__init__(message)
        self.code, self.headers = code, headers
        self.body = message if isinstance(message, (bytes, dict)) else status(code, message, reason)


class Call:
    """One request, taken apart."""

    def __init__(self, request):
        self.request, self.time = request, time.monotonic()
        self.method, self.path = request.method, request.path
        match = PATH.fullmatch(request.path)
        parts = match.groupdict() if match else {}
        self.kind, self.name, self.sub = parts.get("kind"), parts.get("name"), parts.get("sub")
        self.namespace = parts.get("namespace")
        if request.path.startswith("/api/v1/namespaces/") and self.kind is None:
            self.kind, self.name = "namespaces", request.path.rsplit("/", 1)[1]
        self.body = request.json() if request.method in ("POST", "PUT", "PATCH", "DELETE") and request.body else None
        self.verb = self._verb()
        self.dry_run = request.param("dryRun") is not None
        if self.verb == "create" and self.body:
            self.name = self.body.get("metadata", {}).get("name")

    def _verb(self):
        if self.sub == "exec":
            return "exec"
        if self.method == "GET":
            if self.request.param("watch") in ("1", "true"):
                return "watch"
            return "get" if self.name or not self.kind else "list"
        return {"POST": "create", "DELETE": "delete" if self.name else "deletecollection", "PUT": "update",
                "PATCH": "patch"}.get(self.method, self.method)

    def __repr__(self):
        return f"{self.verb} {self.kind}/{self.name or ''}{' dry' if self.dry_run else ''}"


class Fault:
    """What happens to the next `times` requests that match; None: until removed."""

    def __init__(self, act, times, match):
        self.act, self.left, self.match = act, times, match
        self.calls = []
        self.hit = threading.Condition()

    @property
    def hits(self):
        return len(self.calls)

    def take(self, call):
        with self.hit:
            if self.left == 0 or not self.match(call):
                return False
            self.left = None if self.left is None else self.left - 1
            self.calls.append(call)
            self.hit.notify_all()
            return True

    def wait(self, hits=1, timeout=30):
        with self.hit:
            assert self.hit.wait_for(lambda: self.hits >= hits, timeout), f"{self.hits} of {hits} requests came"


class Gate:
    """Holds requests until it is opened."""

    def __init__(self):
        self.event = threading.Event()

    def open(self):
        self.event.set()


class ApiServer(HttpServer):
    def __init__(self, directory, agent):
        self.store = Store()
        self.get, self.all, self.exists, self.change = (self.store.get, self.store.all, self.store.exists, self.store.change)
        self.node = Node(self, directory, agent)
        self.calls = []
        self.called = threading.Condition()
        self.faults = []
        self.exec_faults = []  # (pod name or None, ExecFault)
        self.last_fault = {}  # pod name -> ExecFault of its last handshake
        self.streams = []
        self.protocols = PROTOCOLS
        self.tokens = None  # the bearer tokens that are good; None: any request is
        self.denied = set()  # (verb, kind) without the right
        self.image_volumes = "works"  # or "dropped": the API server does not know them
        self.held = set()  # pods that stay Terminating
        self.collects_garbage = True
        self.watches_stalled = threading.Event()
        self.watch_epoch = 0  # counts the times that all watches have been ended
        self.bookmark_every = 5
        for kind, name in (("namespaces", NAMESPACE), ("namespaces", "default"), ("runtimeclasses", "gvisor")):
            self.store.add(kind, {"metadata": {"name": name}, **({"handler": "runsc"} if kind == "runtimeclasses" else {})})
        super().__init__()

    def close(self):
        self.stop()
        with self.store.changed:
            self.watch_epoch += 1
            self.store.changed.notify_all()
        self.node.stop()

    # --- scripting ---------------------------------------------------------------
    def fault(self, act, verb=None, kind=None, name=None, times=1, dry_run=False, where=None):
        """ACT(server, connection, call) may answer and return True, return False to go on as usual, or raise."""
        def match(call):
            return ((verb is None or call.verb == verb) and (kind is None or call.kind == kind)
                    and (name is None or call.name == name) and (dry_run is None or call.dry_run == dry_run)
                    and (where is None or where(call)))
        fault = Fault(act, times, match)
        self.faults.append(fault)
        return fault

    def refuse(self, code, message="scripted", reason=None, headers=None, **match):
        def act(server, connection, call):
            raise Refused(code, message, reason, headers)
        return self.fault(act, **match)

    def cut(self, after=False, **match):
        """The connection breaks: before the request is done, or after it, instead of the answer."""
        def act(server, connection, call):
            if after:
                server.perform(call)
            connection.reset()
            raise Closed("cut as scripted")
        return self.fault(act, **match)

    def hold(self, gate=None, **match):
        """Requests wait until the gate opens, then go on."""
        gate = gate or Gate()

        def act(server, connection, call):
            gate.event.wait()
            return False
        fault = self.fault(act, **match)
        fault.gate = gate
        return fault

    def answer(self, body, code=200, headers=None, **match):
        def act(server, connection, call):
            connection.send_reply(code, body, headers)
            return True
        return self.fault(act, **match)

    def exec_fault(self, name=None, **options):
        fault = ExecFault(**options)
        self.exec_faults.append((f"sandbox-{name}" if name else None, fault))
        return fault

    def clear(self):
        """No faults any more."""
        for fault in self.faults:
            if gate := getattr(fault, "gate", None):
                gate.open()
        for _, fault in self.exec_faults:
            if fault.hang:
                fault.hang.set()
        self.faults.clear()
        self.exec_faults.clear()
        self.last_fault.clear()
        self.denied.clear()
        self.protocols = PROTOCOLS
        self.tokens = None
        self.image_volumes = "works"
        self.collects_garbage = True
        self.watches_stalled.clear()
        self.node.scripts.clear()
        self.node.tmpfs_sizes.clear()
        for name in list(self.held):
            self.release(name)

    def stop_watches(self):
        """All watches end, as they do now and then."""
        with self.store.changed:
            self.watch_epoch += 1
            self.store.changed.notify_all()

    def stall_watches(self, stalled=True):
        (self.watches_stalled.set if stalled else self.watches_stalled.clear)()
        with self.store.changed:
            self.store.changed.notify_all()

    def hold_terminating(self, name):
        """Its deletion only sets a deletionTimestamp until release(), like a finalizer or a dead node."""
        self.held.add(f"sandbox-{name}")

    def release(self, name):
        name = name if name.startswith("sandbox-") else f"sandbox-{name}"
        self.held.discard(name)
        pod = self.get("pods", name)
        if pod and pod["metadata"].get("deletionTimestamp"):
            self.remove("pods", name)

    def remove(self, kind, name, uid=None, grace=0):
        """As if anybody had deleted it."""
        item = self.store.remove(kind, name, uid)
        if item and kind == "pods":
            if self.collects_garbage:
                self._collect(item["metadata"]["uid"])
            threading.Thread(target=self.node.drop, args=(item, grace), daemon=True).start()
        return item

    def event(self, pod, reason, message, count=1):
        name = f"{pod['metadata']['name']}.{self.store.version:x}"
        return self.store.add("events", {
            "metadata": {"name": name}, "reason": reason, "message": message, "count": count, "type": "Warning",
            "involvedObject": {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
                               "namespace": NAMESPACE}})

    # --- looking -------------------------------------------------------------------
    def seen(self, verb=None, kind=None, name=None, dry_run=False):
        with self.called:
            return [call for call in self.calls if (verb is None or call.verb == verb) and (kind is None or call.kind == kind)
                    and (name is None or call.name == name) and call.dry_run == dry_run]

    def wait_seen(self, count=1, timeout=30, **match):
        with self.called:
            assert self.called.wait_for(lambda: len(self.seen(**match)) >= count, timeout), \
                f"{len(self.seen(**match))} of {count} requests like {match}: {self.calls[-20:]}"
        return self.seen(**match)

    def wait_gone(self, kind, name, timeout=30):
        with self.store.changed:
            assert self.store.changed.wait_for(lambda: self.get(kind, name) is None, timeout), f"{kind} {name} is still there"

    def stream(self, sandbox_id, number=-1):
        """The NUMBERth exec stream to a sandbox, the last one by default; open."""
        def mine():
            return [one for one in self.streams if one.pod["metadata"]["name"] == f"sandbox-{sandbox_id}" and one.open.is_set()]
        with self.called:
            assert self.called.wait_for(lambda: len(mine()) > max(number, 0) if number >= 0 else mine(), 30), "no stream"
        return mine()[number]

    def sandbox_objects(self, sandbox_id=None):
        """(kind, name) of what carries the label of that sandbox, or of any."""
        label = "podsandbox.dev/sandbox-id" + (f"={sandbox_id}" if sandbox_id else "")
        return [(kind, item["metadata"]["name"]) for kind in KINDS for item in self.all(kind, label)]

    # --- requests ----------------------------------------------------------------------
    def handle(self, connection, request):
        call = Call(request)
        with self.called:
            self.calls.append(call)
            self.called.notify_all()
        try:
            self._authorize(call)
            for fault in list(self.faults):
                if fault.take(call) and fault.act(self, connection, call):
                    return
            if call.verb == "exec":
                self._exec(connection, call)
            elif call.verb == "watch":
                self._watch(connection, call)
            else:
                connection.send_reply(*self.perform(call))
        except Refused as refused:
            kind = "text/plain" if isinstance(refused.body, bytes) else "application/json"
            connection.send_reply(refused.code, refused.body, refused.headers, content_type=kind)

    def _authorize(self, call):
        if self.tokens is not None:
            scheme, _, token = call.request.headers.get("authorization", "").partition(" ")
            if scheme != "Bearer" or token not in self.tokens:
                raise Refused(401, "Unauthorized")
        resource = "pods/exec" if call.verb == "exec" else call.kind
        verb = call.verb if call.verb != "exec" else {"GET": "get", "POST": "create"}[call.method]
        if (verb, resource) in self.denied or (call.verb, call.kind) in self.denied:
            where = f' in the namespace "{call.namespace}"' if call.namespace else " at the cluster scope"
            group = KINDS[call.kind][0].rpartition("/")[0]
            raise Refused(403, f'{call.kind} is forbidden: User "system:serviceaccount:podsandbox:podsandbox" cannot {verb} '
                               f'resource "{resource}" in API group "{group}"{where}')

    def perform(self, call):
        """(status, body) of a plain request."""
        if call.path == "/version":
            return 200, {"major": "1", "minor": "35", "gitVersion": "v1.35.0", "platform": "linux/amd64"}
        if call.path in ("/readyz", "/livez", "/healthz"):
            return 200, b"ok"
        if call.kind not in KINDS:
            raise Refused(404, b"404 page not found\n")
        if call.namespace and not self.get("namespaces", call.namespace):
            raise Refused(404, f'namespaces "{call.namespace}" not found')
        if call.verb == "get":
            return 200, self._get(call)
        if call.verb == "list":
            return 200, self._list(call)
        if call.verb == "create":
            return 201, self._create(call)
        if call.verb == "delete":
            return 200, self._delete(call)
        raise Refused(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")

    def _get(self, call):
        item = self.get(call.kind, call.name)
        if item is None:
            raise Refused(404, f'{qualified(call.kind)} "{call.name}" not found')
        return item

    def _list(self, call):
        page = self.store.page(call.kind, call.request.param("labelSelector"), call.request.param("fieldSelector"),
                               int(call.request.param("limit", 0)), call.request.param("continue"))
        if page is None:
            raise Refused(410, "The provided continue parameter is too old to display a consistent list result.")
        return page

    def _create(self, call):
        item = copy.deepcopy(call.body)
        name = item["metadata"].get("name", "")
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
            raise Refused(422, f'{KINDS[call.kind][1]} "{name}" is invalid: metadata.name: Invalid value: "{name}": a lowercase '
                               "RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")
        if call.kind == "pods":
            self._admit_pod(item)
        if call.dry_run:
            if self.get(call.kind, name):
                raise Refused(409, f'{qualified(call.kind)} "{name}" already exists', "AlreadyExists")
            return prepare(call.kind, item)
        stored = self.store.add(call.kind, item)
        if stored is None:
            raise Refused(409, f'{qualified(call.kind)} "{name}" already exists', "AlreadyExists")
        if call.kind == "pods":
            self.node.take(copy.deepcopy(stored))
        return stored

    def _admit_pod(self, pod):
        spec = pod["spec"]
        if (name := spec.get("runtimeClassName")) and not self.get("runtimeclasses", name):
            raise Refused(403, f'pods "{pod["metadata"]["name"]}" is forbidden: pod rejected: RuntimeClass "{name}" not found')
        if self.image_volumes == "dropped":  # as a server without the feature stores it
            for volume in spec.get("volumes", []):
                if volume.pop("image", None):
                    volume["emptyDir"] = {}

    def _delete(self, call):
        item = self._get(call)
        metadata = item["metadata"]
        options = call.body or {}
        wanted = options.get("preconditions", {}).get("uid")
        if wanted and wanted != metadata["uid"]:
            raise Refused(409, f"Operation cannot be fulfilled on {qualified(call.kind)} \"{call.name}\": Precondition failed: "
                               f"UID in precondition: {wanted}, UID in object meta: {metadata['uid']}")
        grace = options.get("gracePeriodSeconds")
        if call.kind != "pods":
            self.remove(call.kind, call.name, metadata["uid"])
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                    "details": {"name": call.name, "kind": call.kind, "uid": metadata["uid"]}}
        if grace is None:
            grace = item["spec"].get("terminationGracePeriodSeconds", 30)
        if call.name in self.held or grace:
            self.change("pods", item, lambda one: one["metadata"].update(deletionTimestamp=now_after(grace),
                                                                         deletionGracePeriodSeconds=grace))
        if call.name not in self.held:
            self.remove("pods", call.name, metadata["uid"], grace)
        return item

    def _collect(self, uid):
        for kind in ("services", "ingresses", "networkpolicies"):
            for item in self.all(kind):
                if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", [])):
                    self.remove(kind, item["metadata"]["name"])

    # --- watch -----------------------------------------------------------------------------
    def _watch(self, connection, call):
        labels, fields = call.request.param("labelSelector"), call.request.param("fieldSelector")
        version = int(call.request.param("resourceVersion") or 0)
        limit = float(call.request.param("timeoutSeconds") or 3600)
        bookmarks = call.request.param("allowWatchBookmarks") in ("1", "true")
        deadline, epoch, bookmark = call.time + limit, self.watch_epoch, call.time + self.bookmark_every
        connection.begin_chunked()

        def send(what, item):
            connection.send_chunk(json.dumps({"type": what, "object": item}).encode() + b"\n")
        while True:
            with self.store.changed:
                if version < self.store.compacted:
                    send("ERROR", status(410, f"too old resource version: {version} ({self.store.compacted})"))
                    break
                news = [] if self.watches_stalled.is_set() else self.store.since(call.kind, version, labels, fields)
                ended = self.watch_epoch != epoch or self.listener is None or time.monotonic() > deadline
                if not news and not ended:
                    self.store.changed.wait(min(1, self.bookmark_every))
                current = self.store.version
            for version, what, item in news:
                send(what, item)
            if not news and ended:
                break
            if bookmarks and not news and not self.watches_stalled.is_set() and time.monotonic() > bookmark:
                bookmark = time.monotonic() + self.bookmark_every
                api_version, kind, _ = KINDS[call.kind]
                send("BOOKMARK", {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": str(current)}})
        connection.end_chunked()

    # --- exec ---------------------------------------------------------------------------------
    def _exec(self, connection, call):
        upgrade = call.request.headers.get("upgrade", "").lower() == "websocket"
        fault = self._exec_fault(call.name, upgrade)
        if fault.refuse and not upgrade:
            fault.answer_refusal(connection)
            return
        pod = self.get("pods", call.name)
        container = self.node.containers.get(pod["metadata"]["uid"]) if pod else None
        if not fault.refuse and not fault.reset:
            self._check_exec(call, pod, upgrade)
        stream = ExecStream(connection, call.request, pod, container, fault)
        stream.protocols = self.protocols
        if fault.run and not (container and container.agent_runs()):
            stream.lacks = f'unable to upgrade connection: container not found ("{call.request.param("container")}")'
        stream.open.set = self._announcing(stream.open.set)
        self.streams.append(stream)
        fault.streams.append(stream)
        stream.serve()

    def _announcing(self, set_open):
        def announce():
            set_open()
            with self.called:
                self.called.notify_all()
        return announce

    def _exec_fault(self, name, upgrade):
        """The scripted fault for this handshake. A plain request, which asks why the last one was refused, uses up none."""
        with self.called:
            if not upgrade:
                return self.last_fault.get(name, ExecFault())
            self.last_fault.pop(name, None)
            for pod, fault in self.exec_faults:
                if pod in (None, name) and (fault.times is None or fault.used < fault.times):
                    fault.used += 1
                    self.last_fault[name] = fault
                    return fault
        return ExecFault()

    def _check_exec(self, call, pod, upgrade):
        """What the API server says before it talks to the node."""
        if pod is None:
            raise Refused(404, f'pods "{call.name}" not found')
        containers = [item["name"] for item in pod["spec"]["containers"]]
        wanted = call.request.param("container")
        if wanted is None and len(containers) > 1:
            raise Refused(400, f"a container name must be specified for pod {call.name}, choose one of: {containers}")
        if wanted is not None and wanted not in containers:
            raise Refused(400, f"container {wanted} is not valid for pod {call.name}")
        if not pod["spec"].get("nodeName"):
            raise Refused(400, f"pod {call.name} does not have a host assigned")
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            raise Refused(400, f"cannot exec in a stopped container: current phase is {pod['status']['phase']}")
        if not upgrade:
            raise Refused(400, "Upgrade request required")
        if not any(name in call.request.headers.get("sec-websocket-protocol", "") for name in self.protocols):
            raise Refused(403, b"none of the offered protocols is supported")


def qualified(kind):
    group = KINDS[kind][0].rpartition("/")[0]
    return f"{kind}.{group}" if group else kind


def now_after(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
