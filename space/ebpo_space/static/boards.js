// Boards of Plotly panels: what parts.py calls a board.
(() => {
  "use strict";
  const { css, touch, element, merged, save, tell } = window.space;
  const boards = new Set();

  // "@name" in a figure is the CSS variable of that name, so that one figure serves light and dark
  const painted = (value) => {
    if (typeof value === "string") return value[0] === "@" ? css(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "bdata" || k === "name" ? v : painted(v)]));
    return value;
  };

  // 5 MB: loaded with the page where plots come first, else when the first plot comes
  let plotly = null;
  const loadPlotly = () => (plotly ||= new Promise((resolve) => {
    const script = element("script");
    script.src = document.querySelector("meta[name=plotly]").content;
    script.onload = () => resolve(window.Plotly);
    document.head.appendChild(script);
  }));
  if (new URLSearchParams(location.search).get("tab") !== "samples") loadPlotly();

  const axis = () => ({
    gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), tickcolor: css("line"),
    zeroline: false, ticks: "", tickfont: { size: 11, color: css("muted") },
    title: { standoff: 6, font: { size: 11.5, color: css("muted") } },
  });
  const layoutOf = (figure) => {
    const layout = painted(figure.layout || {});
    for (const name of ["xaxis", "yaxis"]) layout[name] = merged(axis(), layout[name] || {});
    return merged({
      autosize: true, height: 232, margin: { l: 52, r: 10, t: 6, b: 40 }, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
      dragmode: touch() ? false : "zoom", font: { family: css("sans"), size: 12, color: css("ink") },
      hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { size: 12, color: css("ink"), family: css("sans") } },
    }, layout);
  };

  class Panel {
    constructor(board) {
      this.board = board;
      this.root = element("figure", "panel");
      const caption = this.root.appendChild(element("figcaption"));
      this.title = caption.appendChild(element("h3"));
      this.save = caption.appendChild(element("button", "save", "PNG"));
      this.save.type = "button";
      this.save.onclick = () => this.download();
      this.note = caption.appendChild(element("p", "note"));
      this.values = caption.appendChild(element("p", "values"));
      this.values.onclick = () => this.values.classList.toggle("named"); // where there is no pointer to hover with
      this.plot = this.root.appendChild(element("div", "plot"));
      this.plot.setAttribute("role", "img");
      this.dirty = false;
      this.seen = false;
    }
    set(spec) {
      const text = JSON.stringify(spec);
      if (text === this.text) return;
      [this.text, this.spec, this.dirty] = [text, spec, true];
      this.root.dataset.panel = spec.id;
      this.root.classList.toggle("wide", !!spec.wide);
      this.title.textContent = spec.title;
      this.note.textContent = spec.note || "";
      this.note.hidden = !spec.note;
      this.note.title = spec.worry ? `Look closer: ${spec.worry}` : "";
      this.save.setAttribute("aria-label", `Download the plot “${spec.title}” as PNG`);
      this.plot.setAttribute("aria-label", spec.summary || spec.title);
      this.plot.style.minHeight = `${(spec.figure.layout || {}).height || 232}px`;
      this.values.replaceChildren(...(spec.values || []).map((v) => {
        const item = element("span", "value");
        const dot = item.appendChild(element("i"));
        dot.style.background = `var(--${v.color})`;
        item.appendChild(element("span", "sr", `${v.name}: `));
        item.appendChild(document.createTextNode(v.text));
        item.title = v.name;
        return item;
      }));
      if (this.seen) this.draw();
    }
    async draw() {
      if (!this.spec || !this.root.isConnected) return;
      this.dirty = false;
      const Plotly = await loadPlotly();
      const linked = !!this.spec.linked;
      const layout = layoutOf(this.spec.figure);
      const zoom = this.board.zoom;
      if (linked && zoom && !this.plot.data) layout.xaxis = { ...layout.xaxis, range: [...zoom], autorange: false };
      await Plotly.react(this.plot, painted(this.spec.figure.data), layout,
        { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset+autosize", showTips: false });
      this.root.dataset.drawn = "yes";
      if (!this.listening) {
        this.listening = true;
        this.plot.on("plotly_relayout", (e) => linked && this.board.link(this, e));
      }
    }
    async download() {
      await this.draw();
      const name = `${this.spec.id}`.replace(/[^\w.-]+/g, "_");
      const layout = merged(layoutOf(this.spec.figure), {
        paper_bgcolor: css("card"), showlegend: (this.spec.values || []).length > 1, margin: { t: 54, r: 20, b: 46, l: 60 },
        title: { text: this.spec.title.replace(/[<>&]/g, ""), x: 0.02, font: { size: 16 } }, legend: { orientation: "h", y: -0.2 },
        width: 900, height: 520, autosize: false,
      });
      const Plotly = await loadPlotly();
      const url = await Plotly.toImage({ data: painted(this.spec.figure.data), layout }, { format: "png", scale: 2, width: 900, height: 520 });
      save(`${name}.png`, url);
    }
  }

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
      if (spec.unit !== this.unit) this.zoom = spec.zoom || null;
      this.unit = spec.unit;
      const sections = spec.sections || [];
      const shape = JSON.stringify(sections.map((s) => [s.title, s.note, s.kind, s.panels.map((p) => p.id)]));
      if (shape !== this.shape) this.build(sections);
      this.shape = shape;
      for (const section of sections) for (const one of section.panels) this.panels.get(one.id).set(one);
    }
    // Only when other panels are asked for: a refresh leaves the page as it is, with zoom, focus and place
    build(sections) {
      const used = new Set(sections.flatMap((s) => s.panels.map((p) => p.id)));
      for (const [id, panel] of this.panels)
        if (!used.has(id)) { this.watcher.unobserve(panel.root); if (panel.plot.data) Plotly.purge(panel.plot); this.panels.delete(id); }
      this.root.replaceChildren(...sections.map((section) => {
        const box = element("section", "shelf");
        if (section.title) {
          const head = box.appendChild(element("header"));
          head.appendChild(element("h2", "", section.title));
          if (section.note) head.appendChild(element("p", "", section.note));
        }
        const grid = box.appendChild(element("div", `grid ${section.kind || ""}`));
        for (const one of section.panels) grid.appendChild(this.panel(one.id).root);
        return box;
      }));
      for (const panel of this.panels.values()) this.watcher.observe(panel.root);
    }
    panel(id) {
      if (!this.panels.has(id)) {
        const made = new Panel(this);
        made.root.panel = made;
        this.panels.set(id, made);
      }
      return this.panels.get(id);
    }
    async link(source, event) {
      if (this.linking) return;
      const reset = event["xaxis.autorange"];
      const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (!reset && range[0] === undefined) return;
      this.zoom = reset ? null : range;
      this.linking = true;
      const change = reset ? { "xaxis.autorange": true, "yaxis.autorange": true } : { "xaxis.range": [...range] };
      const others = [...this.panels.values()].filter((p) => p !== source && p.plot.data && p.spec.linked);
      await Promise.all(others.map((p) => Plotly.relayout(p.plot, change)));
      this.linking = false;
      // the server has sent a few hundred points per line: it sends as many again for what is looked at now
      clearTimeout(this.asking);
      const wish = reset ? "" : range.map((v) => Number(v).toPrecision(8)).join(":");
      this.asking = setTimeout(() => tell(this.trigger, { zoom: wish }), 250);
    }
    repaint() { for (const p of this.panels.values()) if (p.plot.data) p.draw(); }
  }

  const board = (root, props, trigger, watch) => {
    const made = new Board(root.querySelector(".board"), trigger);
    const show = () => made.show(props.value);
    show();
    watch("value", show);
    root.dataset.ready = "yes";
  };

  const repaint = () => boards.forEach((b) => b.repaint());
  Object.assign(window.space, { board, repaint });
})();
