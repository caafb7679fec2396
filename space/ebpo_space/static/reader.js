// Fills every <div class="reading"> of the page (reading.py): Markdown and formulas, thoughts, the rest of long answers, marks.
// The text is in the page as text; it is rendered in a worker, one piece at a time, and a piece that takes too long is shown
// as it was written.
(window.space ||= {}).reader = (() => {
  "use strict";
  const here = new URL(document.currentScript.src);
  const beside = (name) => Object.assign(new URL(name, here), { search: here.search }).href;
  const TIME = 4000; // milliseconds for a piece
  const START = 30000; // for the worker to be ready
  const KEPT = 8e6; // characters of rendered pieces that are kept
  const CHUNK = 32000; // characters asked for at a time

  const element = (tag, cls, text) => {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // rendering: a queue, one worker, a cache
  const kept = new Map();
  let size = 0;
  const keep = (key, value) => {
    kept.set(key, value);
    size += key.length + (value ? value.length : 0);
    for (const [old, html] of kept) {
      if (size <= KEPT) break;
      kept.delete(old);
      size -= old.length + (html ? html.length : 0);
    }
  };
  const jobs = [];
  let worker = null;
  let failures = 0;
  let busy = false;
  const stop = () => {
    if (worker) worker.terminate();
    worker = null;
  };
  const purify = () => (purify.loading ||= new Promise((resolve, reject) => {
    const script = element("script");
    script.src = beside("vendor/dompurify/purify.min.js");
    [script.onload, script.onerror] = [resolve, reject];
    document.head.appendChild(script);
  }));
  const within = (milliseconds, promise) =>
    Promise.race([promise, new Promise((_, reject) => setTimeout(reject, milliseconds, new Error("too slow")))]);
  const message = (from) => new Promise((resolve, reject) => {
    from.onmessage = (event) => resolve(event.data);
    from.onerror = () => reject(new Error("the renderer failed"));
  });
  const started = async () => {
    if (worker || failures > 2) return worker;
    try {
      await within(START, purify());
      worker = new Worker(beside("reader/worker.js"));
      await within(START, message(worker));
    } catch {
      failures++;
      stop();
    }
    return worker;
  };
  const work = async (job) => {
    const answer = message(worker);
    worker.postMessage({ text: job.text, inline: job.inline });
    try {
      return (await within(TIME, answer)).html;
    } catch {
      stop();
      return null;
    }
  };
  const pump = async () => {
    if (busy) return;
    busy = true;
    for (let job = jobs.shift(); job; job = jobs.shift()) {
      if (job.wanted() && !kept.has(job.key) && (await started())) keep(job.key, await work(job));
      job.resolve(kept.get(job.key) ?? null);
    }
    busy = false;
  };
  const key = (text, inline) => `${inline ? "-" : "+"}${text}`;
  const render = (text, inline, wanted) => new Promise((resolve) => {
    jobs.push({ text, inline, wanted, key: key(text, inline), resolve });
    pump();
  });

  // one piece of text: as it is, until it has been rendered
  const put = (node, html, inline) => {
    node.classList.remove("waiting");
    if (!html) return node.classList.add("plain");
    node.replaceChildren(window.space.clean(html));
    if (!inline) node.classList.add("md");
  };
  const set = async (node, text, inline = false) => {
    const ready = kept.get(key(text, inline));
    if (ready !== undefined && window.DOMPurify) return put(node, ready, inline);
    node.classList.add("waiting");
    const html = await render(text, inline, () => node.isConnected);
    put(node, html, inline);
  };
  const piece = ({ text, fence }) => {
    const node = element("div", "piece", text);
    return { node, done: () => set(node, fence ? fence + text : text) };
  };

  // a part: its head, what is left out, its tail
  class Part {
    constructor(root, reading) {
      [this.root, this.reading, this.raw] = [root, reading, reading.dataset.raw === "yes"];
      const texts = [...root.querySelectorAll(":scope > pre")];
      [this.head, this.tail] = texts;
      this.gap = root.querySelector(":scope > .gap");
      this.carry = "";
      this.fence = "";
    }
    async fill() {
      if (this.filled) return this.filled;
      return (this.filled = this.gap ? this.both() : this.show(this.head.textContent, this.head));
    }
    // puts the pieces of a text in the place of a node, or before it
    async show(text, place, before = false) {
      if (this.raw) {
        if (before) place.before(element("pre", "", text));
        return;
      }
      const { pieces, fence } = window.space.cut.pieces(text, this.fence);
      const made = pieces.map(piece);
      if (!before) this.fence = "";
      this.fence = fence;
      if (before) place.before(...made.map((one) => one.node));
      else place.replaceWith(...made.map((one) => one.node));
      await Promise.all(made.map((one) => one.done()));
    }
    async both() {
      [this.next, this.stop] = [Number(this.gap.dataset.next), Number(this.gap.dataset.stop)];
      const [head, tail] = [this.head.textContent, this.tail.textContent];
      const [end, start] = this.raw ? [head.length, 0] : [window.space.cut.ending(head, this.fence), window.space.cut.beginning(tail)];
      this.carry = head.slice(end);
      this.rest = tail.slice(0, start);
      this.last = tail.slice(start);
      this.controls();
      const fence = this.fence;
      const first = this.show(head.slice(0, end), this.head);
      const open = this.fence;
      this.fence = fence;
      this.end = element("div", "end");
      if (!this.raw) this.tail.replaceWith(this.end);
      if (!this.raw) this.end.append(element("pre", "", this.last));
      const second = this.raw ? null : this.show(this.last, this.end.firstChild);
      this.fence = open;
      await Promise.all([first, second]);
    }
    controls() {
      const left = this.stop - this.next + this.carry.length + this.rest.length;
      const button = (text, press) => Object.assign(element("button", "", text), { type: "button", onclick: press });
      const more = this.reading.dataset.from
        ? [button(`Show ${Math.min(CHUNK, left).toLocaleString("en")} more`, () => this.more(1)), button("Show all", () => this.more(40))]
        : [];
      this.gap.replaceChildren(element("span", "", `… ${left.toLocaleString("en")} characters are left out …`), ...more);
    }
    async more(chunks) {
      if (this.loading) return;
      this.loading = true;
      try {
        for (let i = 0; i < chunks && this.gap && this.root.isConnected; i++) await this.chunk();
      } catch (error) {
        this.gap.append(element("em", "bad", String(error.message || error).slice(0, 200)));
      }
      this.loading = false;
      window.space.marks.find(this.reading);
    }
    async chunk() {
      const to = Math.min(this.next + CHUNK, this.stop);
      const answer = await within(20000, fetch(`${this.reading.dataset.from}&from=${this.next}&to=${to}`));
      if (!answer.ok) throw new Error((await answer.text()) || "The text cannot be read.");
      const found = await answer.json();
      this.next = to;
      let text = this.carry + found.text;
      const whole = to >= this.stop;
      const end = whole || this.raw ? text.length : window.space.cut.ending(text, this.fence);
      this.carry = text.slice(end);
      text = text.slice(0, end) + (whole ? this.rest : "");
      const shown = this.show(text, this.gap, true);
      if (!whole) return this.controls(), shown;
      this.gap.remove();
      this.gap = null;
      if (this.fence && !this.raw) { // the tail goes on with code
        this.end.replaceChildren(element("pre", "", this.last));
        await this.show(this.last, this.end.firstChild);
      }
      return shown;
    }
  }

  const parts = new WeakMap(); // reading -> its parts
  const fill = async (reading) => {
    reading.dataset.filled = "yes";
    if (reading.classList.contains("line")) return set(reading, reading.textContent, true);
    const found = [...reading.querySelectorAll(":scope > .part")].map((root) => new Part(root, reading));
    parts.set(reading, found);
    for (const part of found) if (part.root.tagName === "DETAILS" && !part.root.open)
      part.root.addEventListener("toggle", () => part.fill().then(() => window.space.marks.find(reading)), { once: true });
    window.space.marks.find(reading);
    await Promise.all(found.filter((part) => part.root.tagName !== "DETAILS" || part.root.open).map((part) => part.fill()));
    window.space.marks.find(reading, true);
  };
  // what is far from sight, or folded away, waits until it comes near
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) {
      near.unobserve(target);
      if (!target.dataset.filled) fill(target);
    }
  }, { rootMargin: "600px" });
  const seen = (node) => node.offsetParent && node.getBoundingClientRect().top < innerHeight + 600;
  let asked = false;
  const look = () => {
    asked = false;
    for (const reading of document.querySelectorAll(".reading:not([data-filled])")) seen(reading) ? fill(reading) : near.observe(reading);
  };
  /** Fills what is new on the page; called whenever the page changes. */
  const all = () => {
    if (asked) return;
    asked = true;
    queueMicrotask(look);
  };
  new MutationObserver(all).observe(document.documentElement, { childList: true, subtree: true });
  all();

  return { all, render, of: (reading) => parts.get(reading) || [] };
})();
