// What is marked in a reading, without a change to it (CSS highlights): hits of the search, the answer that was given, the
// expected one. A bar above the text says what there is and goes there.
window.space.marks = (() => {
  "use strict";
  const MOST = 1000; // ranges of one kind
  const SETTLES = 1500; // milliseconds
  const BLOCK = "p, li, td, th, pre, blockquote, .piece";
  // as in "Answer: 42"; no two parts of it take the same blanks, or ten thousand of them would hold the page
  const LINE = /(?:final\s+answer|answer)\**\s*(?:is\b\s*)?[:：][\s*]*([^\n]{1,200})/gi;
  const states = new Map(); // reading -> {hits, now: which of them, gold, given}
  let last = null; // the reading whose hits were walked through

  const { element, button, isCommand } = window.space;

  // [{text, nodes}] of the blocks of a reading: what stands on one line for a reader
  const blocks = (reading) => {
    const found = new Map();
    const skip = (node) => node.matches("math, .gap, summary, .marks, .role, .ending") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
    const walker = document.createTreeWalker(reading, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT,
      (node) => (node.nodeType === Node.TEXT_NODE ? NodeFilter.FILTER_ACCEPT : skip(node)));
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const block = node.parentElement.closest(BLOCK);
      if (!found.has(block)) found.set(block, { text: "", nodes: [] });
      const one = found.get(block);
      one.nodes.push({ node, at: one.text.length });
      one.text += node.data;
    }
    return [...found.values()];
  };
  const point = (block, at) => {
    const one = block.nodes.findLast((each) => each.at <= at) || block.nodes[0];
    return [one.node, Math.min(at - one.at, one.node.data.length)];
  };
  const range = (block, from, to) => {
    const made = document.createRange();
    made.setStart(...point(block, from));
    made.setEnd(...point(block, to));
    return made;
  };
  const around = (node) => {
    const made = document.createRange();
    made.selectNodeContents(node);
    return made;
  };
  const ordered = (ranges) => ranges.sort((a, b) => a.compareBoundaryPoints(Range.START_TO_START, b));
  const formulas = (reading) => [...reading.querySelectorAll(".tex")];

  // as reading.hits does: each letter stays in its place
  const lowered = (text) => text.split("İ").map((part) => part.toLowerCase()).join("İ");

  const literal = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  const ranges = (all, pattern, textOf = (block) => block.text) => {
    const found = [];
    for (const block of all) for (const match of textOf(block).matchAll(pattern)) {
      if (found.length >= MOST) return found;
      found.push(range(block, match.index, match.index + match[0].length));
    }
    return found;
  };

  const hits = (reading, all) => {
    const searched = lowered(reading.dataset.find || "");
    if (!searched) return [];
    const drawn = formulas(reading).filter((node) => lowered(node.dataset.tex).includes(searched)).map(around);
    return ordered([...ranges(all, new RegExp(literal(searched), "g"), (block) => lowered(block.text)), ...drawn]);
  };

  const inside = (tex) => {
    const at = tex.lastIndexOf("\\boxed");
    const open = tex.indexOf("{", at);
    let depth = 0;
    for (let i = open; i >= 0 && i < tex.length; i++) {
      if (tex[i] === "{") depth++;
      else if (tex[i] === "}" && !--depth) return tex.slice(open + 1, i);
    }
    return tex.slice(at + 6);
  };
  const plain = (text) => text.replace(/[\s$]|\\[,;!]/g, "").replace(/^\\text\{(.*)\}$/, "$1").toLowerCase();

  // the answer that was given: the last \boxed, else what the run's grader took, else the last line "Answer: …"
  const given = (reading, all) => {
    const boxed = formulas(reading).filter((node) => node.dataset.tex.includes("\\boxed")).at(-1);
    const { extracted } = reading.dataset;
    const own = boxed && inside(boxed.dataset.tex);
    if (boxed && (!extracted || plain(own) === plain(extracted))) return { text: extracted || own, place: around(boxed) };
    if (extracted) return { text: extracted, place: places(reading, all, extracted).at(-1) || (boxed ? around(boxed) : null) };
    if (reading.dataset.raw) for (const block of all.toReversed()) {
      const at = block.text.lastIndexOf("\\boxed");
      const text = inside(block.text.slice(at, at + 400));
      if (at >= 0) return { text, place: range(block, at, Math.min(at + 8 + text.length, block.text.length)) };
    }
    for (const block of all.toReversed()) {
      const last = [...block.text.matchAll(LINE)].at(-1);
      if (last) return { text: last[1].trim(), place: range(block, last.index, last.index + last[0].length) };
    }
    return null;
  };

  // where a text stands by itself: 12 is not in 312
  const places = (reading, all, text) => {
    const exact = plain(text);
    if (!exact) return [];
    const is = ({ dataset: { tex } }) => plain(tex) === exact || (tex.includes("\\boxed") && plain(inside(tex)) === exact);
    const alone = new RegExp(`(?<![\\p{L}\\p{N}]|\\d[.,])${literal(text)}(?![\\p{L}\\p{N}]|[.,]\\d)`, "gu");
    return ordered([...formulas(reading).filter(is).map(around), ...ranges(all, alone)]);
  };

  const paint = () => {
    for (const reading of states.keys()) if (!reading.isConnected) states.delete(reading);
    if (!window.Highlight) return;
    const all = [...states.values()];
    CSS.highlights.set("hit", new Highlight(...all.flatMap((state) => state.hits)));
    CSS.highlights.set("hit-now", new Highlight(...all.flatMap((state) => (state.now >= 0 ? [state.hits[state.now]] : []))));
    CSS.highlights.set("gold", new Highlight(...all.flatMap((state) => state.gold)));
    CSS.highlights.set("given", new Highlight(...all.flatMap((state) => (state.given && state.given.place ? [state.given.place] : []))));
  };

  const box = (place) => (place.startContainer.nodeType === Node.TEXT_NODE ? place.startContainer.parentElement : place.startContainer);
  // pick: which of a reading's marks; one in a folded thought is another one when the thought has been filled
  const show = async (reading, pick) => {
    const fold = box(pick(states.get(reading))).closest("details:not([open])");
    if (fold) {
      fold.open = true;
      await window.space.reader.of(reading).find((part) => part.root === fold)?.fill();
      find(reading);
    }
    const place = pick(states.get(reading));
    if (!place) return;
    const node = box(place);
    node.scrollIntoView({ block: "center" });
    stay(place, node, performance.now() + SETTLES);
  };
  // what stands above may still get its height: until then it is kept in sight, unless somebody scrolls
  let held = null;
  for (const name of ["wheel", "touchmove", "keydown", "pointerdown"]) addEventListener(name, () => (held = null), { passive: true, capture: true });
  const stay = (place, node, until) => {
    held = place;
    const look = () => {
      if (held !== place || !node.isConnected || performance.now() > until) return;
      const { top, bottom } = place.getBoundingClientRect();
      if (top < 0 || bottom > innerHeight) node.scrollIntoView({ block: "center" });
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  };

  // next and previous; what is left out of the text is asked for when the hits that are shown have been seen
  const step = async (reading, by) => {
    const state = states.get(reading);
    if (!state) return;
    const total = Number(reading.dataset.hits || 0);
    if (by > 0 && state.now + by >= state.hits.length && state.hits.length < total) {
      const here = state.now >= 0 ? state.hits[state.now] : null;
      await unfold(reading);
      const found = states.get(reading).hits;
      const after = here ? found.findIndex((each) => each.compareBoundaryPoints(Range.START_TO_START, here) > 0) : 0;
      return go(reading, after < 0 ? 0 : after);
    }
    go(reading, state.now + by);
  };
  const go = (reading, to) => {
    const state = states.get(reading);
    if (!state || !state.hits.length) return;
    [state.now, last] = [(to + state.hits.length) % state.hits.length, reading];
    paint();
    bar(reading, state);
    return show(reading, (now) => now.hits[now.now]);
  };
  const unfold = async (reading) => {
    for (const part of window.space.reader.of(reading)) {
      if (part.root.tagName === "DETAILS") part.root.open = true;
      await part.fill();
      if (part.gap) await part.more(1);
    }
    find(reading);
  };

  const entry = (kind, label, text, press) => {
    const made = element("span", kind);
    made.append(element("small", "", label), element("code", "", text.slice(0, 120)));
    if (press) made.append(button("show", press, kind === "given" ? "Show where the answer is given" : "Show the expected answer in the text"));
    return made;
  };
  const count = (reading, state, total) => {
    const made = element("span", "hits");
    const place = state.now < 0 ? `${total} hit${total > 1 ? "s" : ""}` : `hit ${state.now + 1} of ${total}`;
    made.append(element("span", "", total ? place : "no hit in this answer"));
    made.firstChild.setAttribute("role", "status");
    if (total) made.append(button("‹", () => step(reading, -1), "Previous hit"), button("›", () => step(reading, 1), "Next hit"));
    return made;
  };
  const bar = (reading, state) => {
    const root = reading.querySelector(":scope > .marks");
    if (!root) return;
    const focused = root.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : "";
    const { given: isAnswer, gold, find: searched, hits: total = 0 } = reading.dataset;
    const { given, gold: found } = state;
    root.replaceChildren(...[
      given && entry("given", "answer given", given.text, given.place && (() => show(reading, (now) => now.given.place))),
      gold && entry("gold", "expected", gold, found.length && (() => show(reading, (now) => now.gold.at(-1)))),
      searched && (Number(total) || isAnswer) && count(reading, state, Math.max(Number(total), state.hits.length)),
    ].filter(Boolean));
    const again = focused && [...root.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === focused);
    if (again) again.focus({ preventScroll: true });
  };

  let scrolled = ""; // the search whose first hit has been shown
  /** Finds the marks of a reading again; once: when it is first filled, its first hit is shown. */
  const find = (reading, once = false) => {
    if (!reading.isConnected) return;
    const all = blocks(reading);
    const before = states.get(reading);
    const state = { hits: hits(reading, all), gold: reading.dataset.gold ? places(reading, all, reading.dataset.gold) : [], given: reading.dataset.given ? given(reading, all) : null, now: -1 };
    if (reading.dataset.gold && reading.dataset.gold.length < 2) state.gold = state.gold.slice(-1);
    if (before && before.now >= 0) state.now = Math.min(before.now, state.hits.length - 1);
    states.set(reading, state);
    bar(reading, state);
    paint();
    const place = `${reading.dataset.from} ${reading.dataset.find}`;
    if (once && reading.dataset.given && Number(reading.dataset.hits) && scrolled !== place) {
      scrolled = place;
      step(reading, 1);
    }
  };

  addEventListener("keydown", (event) => {
    if (!"np".includes(event.key) || !isCommand(event)) return;
    const found = [...states.keys()].filter((each) => each.isConnected && each.offsetParent && Number(each.dataset.hits));
    const reading = found.includes(last) ? last : found.find((each) => each.dataset.given) || found[0];
    if (reading) { event.preventDefault(); step(reading, event.key === "n" ? 1 : -1); }
  });

  return { find };
})();
