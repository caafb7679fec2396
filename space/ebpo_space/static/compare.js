// Compare: marks what differs between two answers. Their texts are in the page, escaped; what is made of them is text again.
(() => {
  "use strict";
  const { clicks, element, renewed } = window.space;
  const LIMIT = 6000; // milliseconds until the worker is ended
  const LONG = 1200, KEPT = 300; // characters of a stretch that both have: folded above, of which are shown at each end
  const WORKER = new URL("workers/compare.js", document.currentScript.src);
  WORKER.search = new URL(document.currentScript.src).search; // its address changes with the app, as the page's files' do
  let stop = null; // ends the comparison before

  const different = (a, b) => new Promise((resolve) => {
    const worker = new Worker(WORKER);
    const end = (found) => { clearTimeout(timer); worker.terminate(); resolve(found); };
    const timer = setTimeout(() => end({ by: null, parts: null }), LIMIT);
    worker.onmessage = ({ data }) => end(data);
    worker.onerror = () => end({ by: null, parts: null });
    worker.postMessage({ a, b });
    stop?.();
    stop = () => end(null);
  });

  // a browser takes seconds to lay out one word of 20,000 letters: it may break
  const written = (parent, text) => {
    text.split(/(\S{60})(?=\S)/).forEach((piece, i) => parent.append(piece, ...(i % 2 ? [element("wbr")] : [])));
    return parent;
  };

  const equal = (text, at) => {
    if (text.length <= LONG) return [written(element("span"), text)];
    const fold = element("button", "fold", `… ${(text.length - 2 * KEPT).toLocaleString("en")} characters that both have …`);
    fold.type = "button";
    fold.dataset.stretch = at;
    fold.text = text.slice(KEPT, -KEPT);
    return [written(element("span"), text.slice(0, KEPT)), fold, written(element("span"), text.slice(-KEPT))];
  };

  // a change is what stands between two stretches that both have; each side gets a mark for it, though it be empty
  const paint = (panes, parts) => {
    let change = -1, inside = false;
    const marks = [[], []], nodes = [[], []];
    parts.forEach(([side, text], at) => {
      if (!side) {
        inside = false;
        nodes.forEach((list) => list.push(...equal(text, at)));
        return;
      }
      if (!inside) {
        inside = true;
        change += 1;
        marks.forEach((list, i) => {
          const mark = element(i ? "ins" : "del");
          mark.dataset.change = change;
          list.push(mark);
          nodes[i].push(mark);
        });
      }
      written(marks[side > 0 ? 1 : 0][change], text);
    });
    panes.forEach((pane, i) => pane.replaceChildren(...nodes[i]));
    return change + 1;
  };

  const share = (parts) => {
    const length = (of) => parts.filter(([side]) => of(side)).reduce((sum, [, text]) => sum + text.length, 0);
    return length((side) => !side) / Math.max(length((side) => side <= 0), length((side) => side >= 0), 1);
  };

  const said = (by, count, parts) => {
    if (!by) return "Too different, or too long, to be compared in time: both as written.";
    if (!count) return "Both answers are the same text.";
    const whole = by === "lines" ? " Too different to be compared by words: whole lines are marked." : "";
    return `${count.toLocaleString("en")} difference${count > 1 ? "s" : ""}, ${Math.floor(100 * share(parts))} % in common.${whole}`;
  };

  const walker = (count) => [["‹", -1, "Previous difference"], ["›", 1, "Next difference"]].map(([sign, step, label]) => {
    const button = element("button", "walk", sign);
    button.type = "button";
    button.setAttribute("aria-label", label);
    [button.dataset.walk, button.dataset.count] = [step, count];
    return button;
  });

  const compare = async (root) => {
    const panes = [...root.querySelectorAll("pre.compared")];
    const texts = panes.map((pane) => pane.textContent);
    const found = root.querySelector(".verdict");
    panes.forEach((pane, i) => pane.replaceChildren(written(element("span"), texts[i])));
    found.textContent = "Comparing…";
    const result = await different(...texts);
    if (!result || !root.isConnected) return;
    const count = result.parts ? paint(panes, result.parts) : 0;
    found.replaceChildren(element("span", "", said(result.by, count, result.parts)), ...(count ? walker(count) : []));
    root.dataset.compared = result.by || "none";
  };

  clicks.set("[data-stretch]", (button) => {
    for (const fold of button.closest(".panes").querySelectorAll(`[data-stretch="${button.dataset.stretch}"]`))
      fold.replaceWith(written(element("span"), fold.text));
  });

  clicks.set("[data-walk]", (button) => {
    const root = button.closest(".difference");
    const count = Number(button.dataset.count);
    const at = ((Number(root.dataset.at ?? (button.dataset.walk > 0 ? -1 : 0)) + Number(button.dataset.walk)) % count + count) % count;
    root.dataset.at = at;
    root.querySelectorAll(".here").forEach((mark) => mark.classList.remove("here"));
    for (const pane of root.querySelectorAll("pre.compared")) {
      const mark = pane.querySelector(`[data-change="${at}"]`);
      mark.classList.add("here");
      pane.scrollTop += mark.getBoundingClientRect().top - pane.getBoundingClientRect().top - pane.clientHeight / 3;
    }
    root.querySelector(".verdict span").textContent = `Difference ${at + 1} of ${count}`;
  });

  renewed.add((root) => root.querySelectorAll(".difference[data-difference=marked]:not([data-begun])").forEach((each) => {
    each.dataset.begun = "yes";
    compare(each);
  }));
})();
