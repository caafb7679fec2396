// Samples: keys, its prompt's other groups, what stays in sight.
(() => {
  "use strict";
  const { isCommand, renewed } = window.space;

  // the group that is shown stands in sight among its prompt's others
  renewed.add((root) => requestAnimationFrame(() => {
    for (const row of root.querySelectorAll(".history > div")) {
      const here = row.querySelector("[aria-current]");
      if (here) row.scrollLeft = here.offsetLeft - row.clientWidth / 2;
    }
  }));

  // the tiles, an answer's head and its hits stay in sight while it is read: each below the one before
  const heights = new ResizeObserver((entries) => {
    for (const { target } of entries) document.body.style.setProperty(target.matches(".strip") ? "--strip" : "--head", `${target.offsetHeight}px`);
  });
  renewed.add((root) => root.querySelectorAll(".answers > .strip, .answers > .answer > header").forEach((each) => heights.observe(each)));

  // an answer that was chosen from the strip keeps the focus there
  let inStrip = false;
  addEventListener("focusin", (event) => (inStrip = !!event.target.closest(".strip")));
  renewed.add((root) => {
    const current = root.querySelector(".strip [aria-current]");
    if (inStrip && current && document.activeElement === document.body) current.focus({ preventScroll: true });
  });

  // j and k (or the arrows, inside the list) walk through groups, a and d through answers
  let walked = 0;
  addEventListener("keydown", (event) => {
    if (!isCommand(event)) return;
    const list = document.querySelector(".groups ol");
    if (!list || !document.querySelector(".reader")?.offsetParent) return;
    const buttons = [...list.querySelectorAll("button")];
    const inList = !!event.target.closest(".groups");
    const step = { j: 1, k: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
    if (step) {
      if (event.repeat && event.timeStamp - walked < 150) return event.preventDefault(); // a key held down
      walked = event.timeStamp;
      const at = buttons.findIndex((b) => b.getAttribute("aria-current") === "true");
      const next = buttons[Math.min(Math.max(at + step, 0), buttons.length - 1)];
      if (next) { event.preventDefault(); next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); next.click(); }
    } else if (event.key === "a" || event.key === "d") {
      const tiles = [...document.querySelector(".strip")?.querySelectorAll("button") ?? []];
      const at = tiles.findIndex((tile) => tile.getAttribute("aria-current") === "true");
      const tile = tiles[event.key === "a" ? at - 1 : at + 1];
      if (tile) { event.preventDefault(); tile.click(); }
    }
  });
})();
