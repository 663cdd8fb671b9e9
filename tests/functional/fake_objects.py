"""The objects of the fake API server, with resource versions, and what watchers have to be told."""

import base64
import copy
import json
import re
import threading
import uuid

from fake_node import now

# plural -> (apiVersion, kind, in a namespace)
KINDS = {
    "pods": ("v1", "Pod", True),
    "services": ("v1", "Service", True),
    "events": ("v1", "Event", True),
    "resourcequotas": ("v1", "ResourceQuota", True),
    "namespaces": ("v1", "Namespace", False),
    "ingresses": ("networking.k8s.io/v1", "Ingress", True),
    "networkpolicies": ("networking.k8s.io/v1", "NetworkPolicy", True),
    "runtimeclasses": ("node.k8s.io/v1", "RuntimeClass", False),
}


def list_of(kind, items, version, more=None):
    api_version, name, _ = KINDS[kind]
    metadata = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return {"apiVersion": api_version, "kind": name + "List", "metadata": metadata,
            "items": [{key: value for key, value in item.items() if key not in ("apiVersion", "kind")} for item in items]}


class Store:
    def __init__(self):
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.compacted = 0  # watches from below this are told 410
        self.items = {kind: {} for kind in KINDS}
        self.log = []  # (version, kind, type, object)

    def _stamp(self, item):
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)

    def _note(self, kind, what, item):
        self.log.append((self.version, kind, what, copy.deepcopy(item)))
        self.changed.notify_all()

    # --- for the server -------------------------------------------------------
    def add(self, kind, item):
        """The stored object, or None if the name is taken."""
        with self.changed:
            name = item["metadata"]["name"]
            if name in self.items[kind]:
                return None
            item = prepare(kind, item)
            self._stamp(item)
            self.items[kind][name] = item
            self._note(kind, "ADDED", item)
            return copy.deepcopy(item)

    def remove(self, kind, name, uid=None):
        with self.changed:
            item = self.items[kind].get(name)
            if item is None or (uid and item["metadata"]["uid"] != uid):
                return None
            del self.items[kind][name]
            self._stamp(item)
            self._note(kind, "DELETED", item)
            return copy.deepcopy(item)

    def get(self, kind, name):
        with self.changed:
            return copy.deepcopy(self.items[kind].get(name))

    def exists(self, kind, item):
        found = self.get(kind, item["metadata"]["name"])
        return found is not None and found["metadata"]["uid"] == item["metadata"]["uid"]

    def all(self, kind, labels=None, fields=None):
        with self.changed:
            return [copy.deepcopy(item) for _, item in sorted(self.items[kind].items()) if selected(item, labels, fields)]

    def change(self, kind, item, edit):
        """Edits the object of that name and uid in place, unless it has gone."""
        with self.changed:
            found = self.items[kind].get(item["metadata"]["name"])
            if found is None or found["metadata"]["uid"] != item["metadata"]["uid"]:
                return False
            edit(found)
            self._stamp(found)
            self._note(kind, "MODIFIED", found)
            return True

    def page(self, kind, labels, fields, limit, token):
        """A list answer, or None when the token has expired."""
        with self.changed:
            start, version = 0, self.version
            if token:
                state = json.loads(base64.b64decode(token))
                start, version = state["start"], state["version"]
                if version < self.compacted:
                    return None
            items = self.all(kind, labels, fields)
            more = None
            if limit and start + limit < len(items):
                more = base64.b64encode(json.dumps({"start": start + limit, "version": version}).encode()).decode()
                items = items[start:start + limit]
            else:
                items = items[start:]
            return list_of(kind, items, version, more)

    def compact(self):
        with self.changed:
            self.version += 1
            self.compacted = self.version
            self.log.clear()

    def since(self, kind, version, labels, fields):
        """What has happened after VERSION: [(version, type, object)]. The lock is held."""
        return [(at, what, item) for at, of, what, item in self.log
                if of == kind and at > version and selected(item, labels, fields)]


def prepare(kind, item):
    """As the real server stores it: with uid, times and the defaults that anyone looks at."""
    item = copy.deepcopy(item)
    item["apiVersion"], item["kind"], namespaced = KINDS[kind]
    metadata = item["metadata"]
    metadata.setdefault("uid", str(uuid.uuid4()))
    metadata.setdefault("creationTimestamp", now())
    metadata["managedFields"] = [{"manager": "podsandboxd", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {}}]
    if namespaced:
        metadata.setdefault("namespace", "sandboxes")
    if kind == "pods":
        item.setdefault("status", {"phase": "Pending", "qosClass": "Burstable"})
    if kind == "services":
        item["spec"].setdefault("clusterIP", "10.96.0.17")
    return item


# --- selectors -----------------------------------------------------------------
def label_matches(labels, term):
    if match := re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*(.*)", term):
        name, operator, value = match.groups()
        return (labels.get(name) != value) if operator == "!=" else (labels.get(name) == value)
    if match := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", term):
        name, operator, values = match.groups()
        return (labels.get(name) in [value.strip() for value in values.split(",")]) == (operator == "in")
    if term.startswith("!"):
        return term[1:] not in labels
    return term in labels


def field_of(item, path):
    for part in path.split("."):
        item = item.get(part, {}) if isinstance(item, dict) else {}
    return "" if item == {} else str(item)


def field_matches(item, term):
    path, operator, value = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", term).groups()
    return (field_of(item, path) != value) if operator == "!=" else (field_of(item, path) == value)


def selected(item, labels, fields):
    have = item["metadata"].get("labels", {})
    terms = re.split(r",(?![^(]*\))", labels) if labels else []
    return all(label_matches(have, term.strip()) for term in terms) and \
        all(field_matches(item, term) for term in (fields.split(",") if fields else []))
