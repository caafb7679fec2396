// A panel of a board: head with named values, Plotly's figure, and the reading of it under the pointer.
(() => {
  "use strict";
  const { css, touch, element, load, merged } = window.space;
  const LEFT = 52, RIGHT = 10, HEIGHT = 232; // of the plot: its margins, and how high it is where the figure does not say

  // "@name" in a figure is the CSS variable of that name, so that one figure serves light and dark
  const painted = (value) => {
    if (typeof value === "string") return value[0] === "@" ? css(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map(painted);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "bdata" || k === "name" ? v : painted(v)]));
    return value;
  };

  // 1.5 MB of script: loaded with the page where plots come first, else when the first plot comes
  const loadPlotly = () => load(document.querySelector("meta[name=plotly]").content);
  const first = new URLSearchParams(location.search).get("tab");
  if (["dynamics", "evaluation"].includes(first)) loadPlotly().catch(() => {}); // a panel says it

  const axis = () => ({
    gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), tickcolor: css("line"),
    zeroline: false, ticks: "", tickfont: { size: 11, color: css("muted") },
    title: { standoff: 6, font: { size: 11.5, color: css("muted") } },
  });
  const layoutOf = (figure) => {
    const layout = painted(figure.layout || {});
    for (const name of ["xaxis", "yaxis"]) layout[name] = merged(axis(), layout[name] || {});
    return merged({
      autosize: true, height: HEIGHT, margin: { l: LEFT, r: RIGHT, t: 6, b: 40 }, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "x unified",
      dragmode: touch() ? false : "zoom", font: { family: css("sans"), size: 12, color: css("ink") },
      hoverlabel: { bgcolor: css("card"), bordercolor: css("line"), font: { size: 12, color: css("ink"), family: css("sans") } },
    }, layout);
  };

  const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array };
  const numbers = (packed) => packed.bdata ? new KINDS[packed.dtype](Uint8Array.from(atob(packed.bdata), (c) => c.charCodeAt(0)).buffer) : packed;

  // as figures.number does
  const short = (v) => {
    if (!Number.isFinite(v)) return "–";
    if (v && (Math.abs(v) >= 1e5 || Math.abs(v) < 1e-3)) return v.toExponential(2);
    return Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(3));
  };
  // the place of the value that is nearest to x; ascending
  const nearest = (along, x) => {
    let low = 0, high = along.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (along[middle] < x) low = middle; else high = middle; }
    return Math.abs(along[low] - x) <= Math.abs(along[high] - x) ? low : high;
  };

  class Panel {
    constructor(board) {
      this.board = board;
      this.root = element("figure", "panel");
      const caption = this.root.appendChild(element("figcaption"));
      this.title = caption.appendChild(element("h3"));
      this.at = caption.appendChild(element("span", "at"));
      this.csv = Object.assign(element("a", "csv-link", "CSV"), { download: "" });
      this.note = caption.appendChild(element("p", "about"));
      this.values = caption.appendChild(element("p", "values"));
      this.plot = this.root.appendChild(element("div", "plot"));
      this.plot.setAttribute("role", "img");
      this.cursor = element("i", "cursor");
      this.dirty = false;
      this.seen = false;
    }
    set(spec) {
      const text = JSON.stringify(spec);
      if (text === this.text) return;
      [this.text, this.spec, this.dirty, this.lines] = [text, spec, true, null];
      this.root.dataset.panel = spec.id;
      this.title.textContent = this.title.title = spec.title;
      this.note.textContent = spec.note || "";
      this.note.hidden = !spec.note;
      this.note.title = [spec.note, spec.warning && `Look closer: ${spec.warning}`].filter(Boolean).join("\n");
      if (spec.csv) this.at.after(Object.assign(this.csv, { href: spec.csv, title: `All values of ${spec.title} as CSV` }));
      this.plot.setAttribute("aria-label", spec.summary || spec.title);
      this.plot.style.minHeight = `${(spec.figure.layout || {}).height || HEIGHT}px`;
      this.numbers = (spec.values || []).map(() => element("b"));
      this.values.replaceChildren(...(spec.values || []).map((v, i) => {
        const item = element("span", "value");
        item.appendChild(element("i")).style.background = `var(--${v.color})`;
        item.appendChild(element("span", "of", v.short));
        item.appendChild(element("span", "sr", ": "));
        item.appendChild(this.numbers[i]).textContent = v.text;
        item.title = `${v.name}: ${v.text}`;
        return item;
      }));
      if (this.seen) this.draw();
    }
    figure() {
      const { data, layout = {} } = this.spec.figure;
      const read = this.spec.readout ? { hovermode: false } : {};
      return { data: painted(data), layout: layoutOf({ layout: merged(layout, read) }) };
    }
    async draw() {
      if (!this.spec || !this.root.isConnected) return;
      this.dirty = false;
      const failed = await loadPlotly().then(() => null, (error) => element("em", "bad", error.message));
      if (failed) { this.note.replaceChildren(failed); this.dirty = true; this.note.hidden = false; return; }
      const linked = !!this.spec.linked;
      const { data, layout } = this.figure();
      const zoom = this.board.zoom;
      if (linked && zoom && !this.plot.data) layout.xaxis = { ...layout.xaxis, range: [...zoom], autorange: false };
      await Plotly.react(this.plot, data, layout,
        { displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset+autosize", showTips: false });
      this.root.dataset.drawn = "yes";
      this.listen();
    }
    listen() {
      if (this.listening) return;
      this.listening = true;
      this.plot.on("plotly_relayout", (e) => this.spec.linked && this.board.link(this, e));
      const point = (e) => this.spec.readout && this.board.point(this.position(e.clientX));
      this.plot.addEventListener("pointermove", point);
      this.plot.addEventListener("pointerdown", point);
      this.plot.addEventListener("pointerleave", () => this.board.point(null));
    }
    range() { return this.plot.layout.xaxis.range.map(Number); }
    position(clientX) {
      const box = this.plot.getBoundingClientRect(), [low, high] = this.range();
      const share = (clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      return share < 0 || share > 1 ? null : low + share * (high - low);
    }
    // the values at x, of all lines, in the head; the pointer covers no line
    read(x) {
      if (!this.spec.readout || !this.plot.layout) return;
      this.lines ||= this.spec.figure.data.filter((trace) => Number.isInteger(trace.meta)).map((trace) => ({ at: trace.meta, x: numbers(trace.x), y: numbers(trace.y) }));
      const [low, high] = this.range(), near = (high - low) / 50;
      const found = x === null ? [] : this.lines.map((line) => ({ ...line, i: nearest(line.x, x) })).filter((line) => line.x.length && Math.abs(line.x[line.i] - x) <= Math.max(near, gap(line)));
      const values = this.spec.values.map((v) => (x === null ? v.text : "–"));
      for (const line of found) values[line.at] = short(line.y[line.i]);
      values.forEach((value, i) => (this.numbers[i].textContent = value));
      const snapped = found.length ? found.reduce((a, b) => (Math.abs(b.x[b.i] - x) < Math.abs(a.x[a.i] - x) ? b : a)) : null;
      this.at.textContent = snapped ? `${this.board.unit} ${short(snapped.x[snapped.i])}` : "";
      this.mark(snapped ? snapped.x[snapped.i] : null, low, high);
    }
    mark(x, low, high) {
      if (x === null || x < low || x > high) return this.cursor.remove();
      this.plot.appendChild(this.cursor);
      this.cursor.style.left = `calc(${LEFT}px + (100% - ${LEFT + RIGHT}px) * ${(x - low) / (high - low)})`;
    }
  }

  // how far a line's points are from each other
  const gap = (line) => (line.x.length > 1 ? Math.abs(line.x[Math.min(line.i + 1, line.x.length - 1)] - line.x[Math.max(line.i - 1, 0)]) / 2 : 0);

  Object.assign(window.space, { Panel });
})();
