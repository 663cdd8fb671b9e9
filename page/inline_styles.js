/* xterm.js writes <style> elements, and style attributes of <span>, which the page's policy forbids. Elements that
   are made from here on take the same text as constructed style sheets and as properties, which it allows. */

function styleElement() {
    const placeholder = Document.prototype.createElement.call(document, "template");
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    Object.defineProperty(placeholder, "textContent", {set: (text) => sheet.replaceSync(text), get: () => ""});
    placeholder.remove = () => {
        document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
        Element.prototype.remove.call(placeholder);
    };
    return placeholder;
}

function setAttribute(name, value) {
    if (name === "style") this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
}

export function replaceInlineStyles() {
    document.createElement = (tag) => {
        if (tag === "style") return styleElement();
        const element = Document.prototype.createElement.call(document, tag);
        if (tag === "span") element.setAttribute = setAttribute;
        return element;
    };
}
