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

  const merged = (base, over) => {
    const out = { ...base };
    for (const [k, v] of Object.entries(over || {}))
      out[k] = v && typeof v === "object" && !Array.isArray(v) && base[k] && typeof base[k] === "object" ? merged(base[k], v) : v;
    return out;
  };

  const save = (name, url) => {
    const a = element("a");
    a.href = url;
    a.download = name;
    document.body.appendChild(a);
    a.click();
    a.remove();
  };

  // requests made at the same time may arrive in another order: the server goes by this number
  let told = 0;
  const tell = (trigger, changes) => trigger("click", { ...changes, order: ++told });

  // selector of a button -> what a click on it does, (button, {server, send}); pages add their own
  const clicks = new Map();
  // called with every component of HTML when it is made and after each change of it
  const renewed = new Set();

  return { css, touch, element, merged, save, tell, clicks, renewed };
})();
