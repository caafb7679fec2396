// What all scripts of the app share. Each file is one matter, adds what others use of it to window.space, and is loaded in
// the order of document.py. Text from runs never passes through as HTML: panels are built with textContent, pages arrive escaped.
window.space = (() => {
  "use strict";
  const css = (name) => getComputedStyle(document.body).getPropertyValue(`--${name}`).trim();
  const touch = () => matchMedia("(pointer: coarse)").matches;

  const element = (tag, cls, text) => {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const button = (text, press, label) => {
    const made = Object.assign(element("button", "", text), { type: "button", onclick: press });
    if (label) made.setAttribute("aria-label", label);
    return made;
  };

  // src -> its script's loading, begun by the first who asks; one that failed is asked for again
  const loading = new Map();
  const load = (src) => {
    if (!loading.has(src)) loading.set(src, new Promise((resolve, reject) => {
      const script = Object.assign(element("script"), { src, onload: resolve });
      script.onerror = () => { loading.delete(src); reject(new Error("A script could not be loaded: reload the page.")); };
      document.head.appendChild(script);
    }));
    return loading.get(src);
  };

  // a key that is a page's: without others, and not typed into a control
  const isCommand = (event) => !event.ctrlKey && !event.metaKey && !event.altKey &&
    !event.target.closest("input, textarea, select, [contenteditable], [role=slider], [role=listbox]");

  const merged = (base, over) => {
    const out = { ...base };
    for (const [k, v] of Object.entries(over || {}))
      out[k] = v && typeof v === "object" && !Array.isArray(v) && base[k] && typeof base[k] === "object" ? merged(base[k], v) : v;
    return out;
  };

  // requests made at the same time may arrive in another order: the server goes by this number
  let sent = 0;
  const tell = (trigger, changes) => trigger("click", { ...changes, order: ++sent });

  // selector of a button -> what a click on it does
  const clicks = new Map();
  // called with every component of HTML when it is made and after each change of it
  const renewed = new Set();

  // buttons of pages: with data-set='{"name": value}' they change the view
  const actions = (root, props, trigger, server, watch) => {
    const renew = () => renewed.forEach((done) => done(root));
    watch("value", renew);
    renew();
    const send = (node) => tell(trigger, JSON.parse(node.dataset.set));
    // an answer may replace a button between press and release: then no click comes, and the press counts
    let pressed = null;
    root.addEventListener("pointerdown", (event) => (pressed = event.target.closest("button[data-set]")));
    addEventListener("pointerup", () => {
      if (pressed && !pressed.isConnected) send(pressed);
      pressed = null;
    });
    addEventListener("pointercancel", () => (pressed = null));
    root.addEventListener("click", (event) => {
      for (const [selector, done] of clicks) {
        const button = event.target.closest(selector);
        if (button) return done(button);
      }
      const node = event.target.closest("[data-set]");
      if (node) send(node);
    });
  };

  return { css, touch, element, button, load, isCommand, merged, tell, clicks, renewed, actions };
})();
