// Boards of Plotly panels: what page.py calls a board.
(() => {
  "use strict";
  const { element, tell, Panel } = window.space;
  const boards = new Set();
  const SHORT = 8; // characters of a name (lines.py) of which two stand side by side above a plot

  // how many twelfths of a row each of n panels takes, with so many in a row at most: no row has a hole, but a lone panel keeps
  // its width
  const spans = (n, most) => {
    if (n === 1) return [12 / most];
    const rows = Math.ceil(n / most), sizes = Array.from({ length: rows }, (_, row) => Math.floor(n / rows) + (row < n % rows ? 1 : 0));
    return sizes.flatMap((size) => Array(size).fill(12 / size));
  };

  // the server rounds what it was sent
  const differ = (a, b) => (a && b ? Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) > 1e-3 * (b[1] - b[0]) : !!a !== !!b);

  class Board {
    constructor(root, trigger) {
      this.root = root;
      this.trigger = trigger;
      this.panels = new Map();
      this.zoom = null;
      this.watcher = new IntersectionObserver((entries) => {
        for (const entry of entries) {
          const panel = entry.target.panel;
          panel.seen = entry.isIntersecting;
          if (panel.seen && (panel.dirty || !panel.plot.data)) panel.draw();
        }
      }, { rootMargin: "40px" });
      boards.add(this);
    }
    show(text) {
      const spec = JSON.parse(text || "{}");
      // a link may ask for another zoom than the plots have; what the visitor has just set is on its way to the server
      const given = spec.zoom || null, moved = !this.asking && differ(given, this.given) && differ(given, this.zoom);
      if (spec.unit !== this.unit || moved) this.zoom = given;
      [this.unit, this.given] = [spec.unit, given];
      const sections = spec.sections || [];
      const shape = JSON.stringify(sections.map((s) => [s.title, s.note, s.kind, s.panels.map((p) => [p.id, (p.values || []).length])]));
      if (shape !== this.shape) this.build(sections);
      this.shape = shape;
      for (const section of sections) for (const one of section.panels) this.panels.get(one.id).set(one);
      if (moved) this.move(given);
    }
    // Only when other panels are asked for: a refresh leaves the page as it is, with zoom, focus and place
    build(sections) {
      const used = new Set(sections.flatMap((s) => s.panels.map((p) => p.id)));
      for (const [id, panel] of this.panels)
        if (!used.has(id)) { this.watcher.unobserve(panel.root); if (panel.plot.data) Plotly.purge(panel.plot); this.panels.delete(id); }
      this.root.replaceChildren(...sections.map((section) => this.shelf(section)));
      for (const panel of this.panels.values()) this.watcher.observe(panel.root);
    }
    shelf(section) {
      const box = element("section", "shelf");
      if (section.title) {
        const head = box.appendChild(element("header"));
        head.appendChild(element("h2", "", section.title));
        if (section.note) head.appendChild(element("p", "", section.note));
      }
      const grid = box.appendChild(element("div", `grid ${section.kind || ""}`)), n = section.panels.length;
      // as many rows of values in every head: none pushes its plot down when another run comes; long names take a row each
      const heads = section.panels.map((p) => p.values || []), columns = heads.flat().some((v) => v.short.length > SHORT) ? 1 : 2;
      grid.style.setProperty("--columns", columns);
      grid.style.setProperty("--rows", Math.max(...heads.map((values) => Math.ceil(values.length / columns))));
      section.panels.forEach((one, i) => {
        const root = grid.appendChild(this.panel(one.id).root);
        for (const most of [2, 3, 4]) root.style.setProperty(`--of${most}`, `span ${spans(n, most)[i]}`);
      });
      return box;
    }
    panel(id) {
      if (!this.panels.has(id)) {
        const made = new Panel(this);
        made.root.panel = made;
        this.panels.set(id, made);
      }
      return this.panels.get(id);
    }
    // one pointer reads all panels that are in sight
    point(x) {
      cancelAnimationFrame(this.pointing);
      this.pointing = requestAnimationFrame(() => { for (const p of this.panels.values()) if (p.plot.data && (p.seen || x === null)) p.read(x); });
    }
    async link(source, event) {
      if (this.linking) return;
      const reset = event["xaxis.autorange"];
      const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (!reset && range[0] === undefined) return;
      this.zoom = reset ? null : range;
      await this.move(this.zoom, source);
      // the server has sent a few hundred points per line: it sends as many again for what is looked at now
      clearTimeout(this.asking);
      const wish = reset ? "" : range.map((v) => Number(v).toPrecision(8)).join(":");
      this.asking = setTimeout(() => {
        this.asking = 0;
        tell(this.trigger, { zoom: wish });
      }, 250);
    }
    async move(range, source) {
      this.linking = true;
      const change = range ? { "xaxis.range": [...range] } : { "xaxis.autorange": true };
      const others = [...this.panels.values()].filter((p) => p !== source && p.plot.data && p.spec.linked);
      await Promise.all(others.map((p) => Plotly.relayout(p.plot, range || p.spec.figure.layout.yaxis.range ? change : { ...change, "yaxis.autorange": true })));
      this.linking = false;
    }
    repaint() { for (const p of this.panels.values()) if (p.plot.data) p.draw(); }
  }

  const board = (root, props, trigger, watch) => {
    const made = new Board(root.querySelector(".board"), trigger);
    const show = () => made.show(props.value);
    show();
    watch("value", show);
  };

  const repaint = () => boards.forEach((b) => b.repaint());
  Object.assign(window.space, { board, repaint });
})();
