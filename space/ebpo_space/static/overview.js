// The first page: how long ago a step was, and a look at the state of a run that may have gone silent meanwhile.
(() => {
  "use strict";
  const { renewed } = window.space;
  const SIZES = [[86400, "days"], [3600, "h"], [60, "min"], [1, "s"]];

  const ago = (seconds) => {
    const [size, name] = SIZES.find(([each]) => seconds >= 2 * each) || [1, "s"];
    return `${Math.max(Math.floor(seconds / size), 0)} ${name} ago`;
  };
  const tell = () => {
    for (const node of document.querySelectorAll("time[data-at]")) {
      node.title ||= node.textContent;
      node.textContent = ago(Date.now() / 1000 - Number(node.dataset.at));
    }
  };
  setInterval(tell, 1000);

  // a training that dies changes no file: the server is asked again when it could know
  let waiting = 0;
  const look = (root) => {
    const cards = [...root.querySelectorAll("[data-refresh]")];
    if (!cards.length) return;
    clearTimeout(waiting);
    const soonest = Math.min(...cards.map((card) => Number(card.dataset.refresh)));
    waiting = setTimeout(() => root.querySelector("[data-look]")?.click(), 1000 * Math.min(soonest + 1, 86400));
  };
  renewed.add((root) => { tell(); look(root); });
})();
