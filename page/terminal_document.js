/* The document as xterm.js sees it. It writes <style> elements and style attributes, which the page's policy
   forbids; here the same text becomes constructed style sheets and properties, which it allows. */

function styleElement() {
    const placeholder = document.createElement("template");
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    Object.defineProperty(placeholder, "textContent", {set: (text) => sheet.replaceSync(text), get: () => ""});
    placeholder.remove = () => {
        document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
        Element.prototype.remove.call(placeholder);
    };
    return placeholder;
}

function styled(element) {
    element.setAttribute = (name, value) => {
        if (name === "style") element.style.cssText = value;
        else Element.prototype.setAttribute.call(element, name, value);
    };
    return element;
}

export const terminalDocument = new Proxy(document, {
    get(target, name) {
        if (name === "createElement") return (tag) => (tag === "style" ? styleElement() : tag === "span" ? styled(target.createElement(tag)) : target.createElement(tag));
        const value = Reflect.get(target, name);
        return typeof value === "function" ? value.bind(target) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value),
});
