/* Before the first paint: the theme that was chosen here, else the system's. */
(() => {
    const KEY = "podsandbox.theme";
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");

    const stored = () => {
        try {
            return localStorage.getItem(KEY);
        } catch {
            return null; // storage is switched off
        }
    };
    const show = (theme) => {
        if (theme === "dark" || theme === "light") root.dataset.theme = theme;
        else delete root.dataset.theme;
    };
    show(stored());

    window.podsandboxTheme = {
        isDark: () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark",
        toggle() {
            const next = this.isDark() ? "light" : "dark";
            show(next);
            try {
                localStorage.setItem(KEY, next);
            } catch {
                /* it lasts as long as the page */
            }
        },
    };
})();
