// The first page: how long ago a step was, second by second.
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

  renewed.add(tell);
})();
