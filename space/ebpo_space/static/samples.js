// Samples: keys, the export of a group, its prompt's other groups.
(() => {
  "use strict";
  const { clicks, renewed, save } = window.space;

  // the group that is shown stands in sight among its prompt's others
  renewed.add((root) => requestAnimationFrame(() => {
    for (const row of root.querySelectorAll(".history > div")) {
      const here = row.querySelector("[aria-current]");
      if (here) row.scrollLeft = here.offsetLeft - row.clientWidth / 2;
    }
  }));

  const exportGroup = async (button, { server }) => {
    const before = button.textContent;
    button.textContent = "Preparing…";
    try {
      const [name, text] = await server.export_group(JSON.parse(button.dataset.export));
      if (!name) throw new Error(text);
      const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      save(name, url);
      setTimeout(() => URL.revokeObjectURL(url), 10000);
      button.textContent = before;
    } catch (error) { button.textContent = String(error.message || "Export failed").slice(0, 120); }
  };

  clicks.set("[data-export]", exportGroup);

  // j and k (or the arrows, inside the list) walk through groups, [ and ] through steps
  let walked = 0;
  const typing = (node) => node.closest("input, textarea, select, [contenteditable], [role=slider], [role=listbox]");
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const list = document.querySelector(".groups ol");
    if (!list || !list.offsetParent) return;
    const buttons = [...list.querySelectorAll("button")];
    const inList = !!event.target.closest(".groups");
    const step = { j: 1, k: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
    if (step) {
      if (event.repeat && event.timeStamp - walked < 150) return event.preventDefault(); // a key held down
      walked = event.timeStamp;
      const at = buttons.findIndex((b) => b.getAttribute("aria-current") === "true");
      const next = buttons[Math.min(Math.max(at + step, 0), buttons.length - 1)];
      if (next) { event.preventDefault(); next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); next.click(); }
    } else if (event.key === "[" || event.key === "]") {
      const button = document.querySelector(event.key === "[" ? "[data-key=earlier]" : "[data-key=later]");
      if (button && !button.disabled) { event.preventDefault(); button.click(); }
    } else if (event.key === "e") {
      const button = document.querySelector("[data-export]");
      if (button) { event.preventDefault(); button.click(); }
    }
  });
})();
