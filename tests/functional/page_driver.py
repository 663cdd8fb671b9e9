"""The page at `/`, used as people do: what is clicked is found by its role and accessible name, with a real mouse and keys."""

from server import wait_until

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
REACHED = """async function () {
    this.scrollIntoView({block: "nearest"});
    const look = () => (({x, y, width, height}) => [x + width / 2, y + height / 2])((this.querySelector(".tree-row") ?? this).getBoundingClientRect());
    const before = look();
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const now = look();
    return now.join() === before.join() && this.contains(document.elementFromPoint(...now)) ? now : null;
}"""
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "Tab": ("\t", 9), "ArrowUp": ("", 38), "ArrowRight": ("", 39), "ArrowDown": ("", 40), "ArrowLeft": ("", 37), "Delete": ("", 46)}
ALT, CONTROL, META, SHIFT = 1, 2, 4, 8


class Page:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.expected = {410}  # statuses of answers that the browser may complain of: tests remove what the page looks at
        for domain in ("Page", "Runtime", "Log", "DOM", "Accessibility"):
            browser.call(f"{domain}.enable")
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.value, self.wait = browser.value, browser.wait
        self.load()

    def load(self):
        self.browser.call("Page.navigate", url=self.url)
        self.wait("document.readyState", "complete")

    def reload(self):
        self.browser.call("Page.reload")
        self.wait("performance.getEntriesByType('navigation')[0].type", "reload")
        self.wait("document.readyState", "complete")

    def go(self, place):
        self.value(f"location.hash = '#{place}'")

    def size(self, width, height):
        self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    # --- what is there ----------------------------------------------------------------------------
    def nodes(self, role, name):
        document = self.browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        found = self.browser.call("Accessibility.queryAXTree", nodeId=document, accessibleName=name, role=role)["nodes"]
        return [node["backendDOMNodeId"] for node in found if not node["ignored"]]

    def find(self, role, name):
        return wait_until(lambda: self.nodes(role, name), 30, f"a {role} called {name!r}")[0]

    def text(self):
        return self.value("document.body.innerText")

    def see(self, *texts):
        for text in texts:
            wait_until(lambda: text in self.text(), 30, lambda: f"{text!r} in {self.text()!r}")

    def see_no_more(self, text):
        wait_until(lambda: text not in self.text(), 30, f"{text!r} being gone")

    # --- what is done -----------------------------------------------------------------------------
    def place(self, role, name):
        """A point where a click reaches it: nothing lies over it, and it stands still."""
        def look():
            nodes = self.nodes(role, name)
            if not nodes:
                return None
            node = self.browser.call("DOM.resolveNode", backendNodeId=nodes[0])["object"]["objectId"]
            return self.browser.call("Runtime.callFunctionOn", objectId=node, functionDeclaration=REACHED, awaitPromise=True, returnByValue=True)["result"].get("value")
        return wait_until(look, 30, f"a {role} called {name!r} on the screen")

    def click(self, role, name):
        self.click_at(*self.place(role, name))

    def press(self, selector):
        """What has no role to be found by."""
        self.wait(f"document.querySelector({selector!r}) !== null")
        self.click_at(*self.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(document.querySelector({selector!r}).getBoundingClientRect())"))

    def click_at(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def focus(self, role, name):
        self.browser.call("DOM.focus", backendNodeId=self.find(role, name))

    def fill(self, role, name, text):
        self.focus(role, name)
        self.value("document.activeElement.select?.()")
        if text:
            self.browser.call("Input.insertText", text=text)
        else:
            self.key("Delete")

    def choose(self, name, value):
        self.focus("combobox", name)
        self.value(f"document.activeElement.value = {value!r}; document.activeElement.dispatchEvent(new Event('change', {{bubbles: true}}))")

    def key(self, key, modifiers=0):
        text, code = KEYS[key] if key in KEYS else (key, ord(key.upper()) if key.isalnum() else 0)
        more = {"text": text} if text and not modifiers & (CONTROL | ALT | META) else {}
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **(more if kind == "keyDown" else {}))

    def type(self, text):
        for char in text:
            self.key("Enter" if char == "\n" else char)

    def focused(self):
        return self.value("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()")

    # --- what went wrong ----------------------------------------------------------------------------
    def complaints(self):
        """What the browser has to complain of since the last time."""
        violations = self.value("violations.splice(0)")
        found = [f"violation: {one}" for one in violations]
        for event in self.browser.events:
            what = event.get("params", {})
            if event["method"] == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                entry = what["entry"]
                if entry["source"] == "network" and any(f"status of {status} " in entry["text"] or f"response code: {status}" in entry["text"] for status in self.expected):
                    continue
                found.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(str(what["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                found.append(str(what["args"]))
        self.browser.events.clear()
        return found
