// Fills every <div class="reading"> of the page (reading.py): Markdown and formulas, thoughts, the rest of long answers, marks.
// The text is in the page as text; it is rendered in a worker, one piece at a time, and a piece that takes too long is shown
// as it was written.
window.space.reader = (() => {
  "use strict";
  const here = new URL(document.currentScript.src);
  const beside = (name) => Object.assign(new URL(name, here), { search: here.search }).href;
  const TIME = 4000; // milliseconds for a piece
  const START = 30000; // for the worker to be ready
  const KEPT = 800; // rendered pieces, the latest
  const CHUNK = 32000; // characters asked for at a time

  const { element, button, load } = window.space;

  document.head.appendChild(Object.assign(element("link"), { rel: "stylesheet", href: beside("vendor/temml/Temml-STIX2.css") }));

  // rendering: a queue, one worker, a cache
  const kept = new Map();
  const keep = (key, html) => {
    kept.set(key, html);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  };
  const jobs = [];
  let worker = null;
  let failures = 0;
  let busy = false;
  const stop = () => {
    if (worker) worker.terminate();
    worker = null;
  };
  const within = (milliseconds, promise) =>
    Promise.race([promise, new Promise((_, reject) => setTimeout(reject, milliseconds, new Error("too slow")))]);
  const message = (from) => new Promise((resolve, reject) => {
    from.onmessage = (event) => resolve(event.data);
    from.onerror = () => reject(new Error("the renderer failed"));
  });
  const started = async () => {
    if (worker || failures > 2) return worker;
    try {
      await within(START, load(beside("vendor/dompurify/purify.min.js")));
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
  // A part: the text from its start (head) and, where it is long, a gap and its end (tail). What of both does not end or begin
  // well at the gap is left out with it.
  class Part {
    constructor(root, reading) {
      [this.root, this.reading, this.raw] = [root, reading, reading.dataset.raw === "yes"];
      this.gap = root.querySelector(":scope > .gap");
      this.sent = root.querySelectorAll(":scope > pre");
      [this.head, this.tail = ""] = [...this.sent].map((node) => node.textContent);
      if (this.gap) [this.next, this.stop] = [Number(this.gap.dataset.next), Number(this.gap.dataset.stop)];
      [this.first, this.last] = [[], []]; // pieces before and after the gap
    }
    fill() {
      return (this.filled ||= this.raw && !this.gap ? Promise.resolve() : this.lay());
    }
    async lay() {
      const { ending, beginning } = window.space.cut;
      const [end, start] = this.gap && !this.raw ? [ending(this.head), beginning(this.tail)] : [this.head.length, 0];
      this.sent.forEach((node) => node.remove());
      const [head, tail] = this.gap ? [this.head.slice(0, end), this.tail.slice(start)] : [this.head + this.tail, ""];
      if (this.gap) this.offer(this.stop - this.next + this.head.length - end + start);
      await Promise.all([
        this.put("last", tail, (nodes) => this.root.append(...nodes)),
        this.put("first", head, (nodes) => (this.gap ? this.gap.before(...nodes) : this.root.append(...nodes))),
      ]);
    }
    // pieces that are as they were keep their nodes
    put(side, text, place) {
      const [before, now] = [this[side], this.raw ? [{ text, fence: "" }] : window.space.cut.pieces(text)];
      let same = 0;
      while (same < now.length && before[same]?.text === now[same].text && before[same].fence === now[same].fence) same++;
      before.slice(same).forEach((one) => one.node.remove());
      const made = now.slice(same).map((one) => ({ ...one, node: element(this.raw ? "pre" : "div", this.raw ? "" : "piece", one.text) }));
      this[side] = [...before.slice(0, same), ...made];
      place(made.map((one) => one.node));
      return this.raw ? null : Promise.all(made.map((one) => set(one.node, one.fence + one.text)));
    }
    offer(left) {
      const more = this.reading.dataset.from
        ? [button(`Show ${Math.min(CHUNK, left).toLocaleString("en")} more`, () => this.more(1)), button("Show all", () => this.more(40))]
        : [];
      this.gap.replaceChildren(element("span", "", `… ${left.toLocaleString("en")} characters are left out …`), ...more);
    }
    // a click that comes while text is being set counts too
    async more(chunks) {
      this.wanted = Math.max(this.wanted || 0, chunks);
      if (this.loading) return;
      this.loading = true;
      try {
        for (; this.wanted > 0 && this.gap && this.root.isConnected; this.wanted -= 1) await this.load();
      } catch (error) {
        this.gap.append(element("em", "bad", String(error.message || error).slice(0, 200)));
      }
      [this.loading, this.wanted] = [false, 0];
      window.space.marks.find(this.reading);
    }
    async load() {
      const to = Math.min(this.next + CHUNK, this.stop);
      const answer = await within(20000, fetch(`${this.reading.dataset.from}&from=${this.next}&to=${to}`));
      if (!answer.ok) throw new Error((await answer.text()) || "The text cannot be read.");
      this.head += (await answer.json()).text;
      this.next = to;
      if (to >= this.stop) {
        this.gap.remove();
        this.gap = null;
      }
      await this.lay();
    }
  }

  const parts = new WeakMap(); // reading -> its parts
  const fill = async (reading) => {
    reading.dataset.filled = "yes";
    if (reading.classList.contains("line")) return set(reading, reading.textContent, true);
    const { find } = window.space.marks;
    const found = [...reading.querySelectorAll(":scope > .part")].map((root) => new Part(root, reading));
    parts.set(reading, found);
    const folded = (part) => part.root.matches("details:not([open])");
    for (const part of found.filter(folded))
      part.root.addEventListener("toggle", () => part.fill().then(() => find(reading)), { once: true });
    find(reading);
    await Promise.all(found.filter((part) => !folded(part)).map((part) => part.fill()));
    find(reading, true);
  };
  // what is far from sight, or folded away, waits until it comes near
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) {
      near.unobserve(target);
      if (!target.dataset.filled) fill(target);
    }
  }, { rootMargin: "600px" });
  const seen = (node) => node.offsetParent && node.getBoundingClientRect().top < innerHeight + 600;
  let scheduled = false;
  const fillNew = () => {
    scheduled = false;
    for (const reading of document.querySelectorAll(".reading:not([data-filled])")) seen(reading) ? fill(reading) : near.observe(reading);
  };
  // fills what is new on the page
  const all = () => {
    if (scheduled) return;
    scheduled = true;
    queueMicrotask(fillNew);
  };
  new MutationObserver(all).observe(document.documentElement, { childList: true, subtree: true });
  all();

  return { render, of: (reading) => parts.get(reading) || [] };
})();
