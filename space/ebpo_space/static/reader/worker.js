// Text of a model -> HTML, away from the page: Markdown by markdown-it, formulas by Temml. Whatever takes too long here is
// ended with this worker (reader.js), and what it returns goes through a sanitiser before it is shown (reader_clean.js).
"use strict";
const stamp = self.location ? self.location.search : "";
importScripts(`../vendor/markdown-it/markdown-it.umd.min.js${stamp}`, `../vendor/temml/temml.min.js${stamp}`, `math.js${stamp}`);

const LARGEST = 1500000; // characters of the HTML of one piece
const OPEN = "\uE000"; // stand around the number of a formula while markdown-it reads the text around it
const SHUT = "\uE001";
const HELD = /\uE000(\d+)\uE001/g;
const ROWS = /(?<!\\)&|\\\\/;
const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const options = (display) => ({
  displayMode: display, throwOnError: false, trust: false, strict: false, annotate: false, wrap: "none",
  maxExpand: 200, maxSize: [20, 20], errorColor: "#b3541e",
});

// MathML, or "" where Temml cannot read it; a command that it does not know is written out inside the formula
const mathml = (tex, display) => {
  try {
    const drawn = temml.renderToString(tex, options(display));
    return drawn.includes("temml-error") ? "" : drawn;
  } catch {
    return "";
  }
};

// what models write and LaTeX would not accept: 50% in a formula, rows without an environment
const drawn = (tex, display) => {
  const source = tex.replace(/(?<!\\)%/g, "\\%").trim();
  const rows = ROWS.test(source) && !/\\begin\s*\{/.test(source);
  // \tag and the like stand in displays alone: inside a sentence the formula is set as one, rather than not at all
  const set = (found) => mathml(found, display) || (display ? "" : mathml(found, true));
  return set(source) || (rows ? set(`\\begin{aligned}${source}\\end{aligned}`) : "");
};

const formula = (one, source, inline) => {
  const display = one.display && !inline;
  const found = drawn(one.tex, display);
  if (!found) return `<span class="source">${escaped(source)}</span>`;
  const kind = display ? " block" : one.tex.length > 60 ? " long" : "";
  return `<span class="tex${kind}" data-tex="${escaped(one.tex)}">${found}</span>`;
};

// No HTML, no links, no images: they stay as they were written. Indented text is not code, and a line below text not a heading:
// answers indent formulas, and underline sums.
const markdown = markdownit({ html: false, linkify: false, breaks: true, maxNesting: 20 });
markdown.disable(["link", "image", "autolink", "html_block", "html_inline", "reference", "entity", "code", "lheading"]);
// What is nested deeper than maxNesting would be left out: it stays as it was written
const { block, options: { maxNesting } } = markdown;
const tokenize = block.tokenize.bind(block);
block.tokenize = (state, from, to, ...more) => {
  if (state.level < maxNesting) return tokenize(state, from, to, ...more);
  state.push("fence", "code", 0).content = state.getLines(from, to, state.blkIndent, false);
  state.line = to;
};
// 2*3*4 is a product
markdown.inline.ruler.before("emphasis", "times", (state, silent) => {
  const { src, pos } = state;
  if (src[pos] !== "*" || src[pos + 1] === "*" || src[pos - 1] === "*") return false;
  if (!/[\w)\]]/.test(src[pos - 1] || "") || !/[\w([]/.test(src[pos + 1] || "")) return false;
  if (!silent) state.pending += "*";
  state.pos += 1;
  return true;
});
const rules = markdown.renderer.rules;
rules.heading_open = (tokens, at) => `<p class="heading ${tokens[at].tag}">`; // the page has its own headings
rules.heading_close = () => "</p>\n";
rules.table_open = () => '<div class="wide"><table>';
rules.table_close = () => "</table></div>\n";
rules.fence = (tokens, at) => `<pre><code>${escaped(tokens[at].content)}</code></pre>\n`;
rules.text = (tokens, at, options, env) =>
  escaped(tokens[at].content).replace(HELD, (mark, number) => (env.drawn[number] === undefined ? mark : env.drawn[number]));

/** HTML of a text; inline: on one line, for lists. */
const rendered = (text, inline) => {
  const source = text.replace(/[\uE000\uE001]/g, "\uFFFD");
  const found = readerMath.formulas(source);
  const held = [];
  let last = 0;
  const parts = [];
  found.forEach((one, number) => {
    parts.push(source.slice(last, one.start), `${OPEN}${number}${SHUT}`);
    held.push(source.slice(one.start, one.end));
    last = one.end;
  });
  const env = { drawn: found.map((one, number) => formula(one, held[number], inline)) };
  const bare = parts.join("") + source.slice(last);
  const html = inline ? markdown.renderInline(bare, env) : markdown.render(bare, env);
  // inside code, where markdown-it saw code and readerMath did not: as it was written
  return html.replace(HELD, (_, number) => escaped(held[number] || ""));
};

self.onmessage = ({ data }) => {
  let html = null;
  try {
    html = rendered(data.text, data.inline);
  } catch {}
  self.postMessage({ html: html !== null && html.length <= LARGEST ? html : null });
};
self.postMessage({ ready: true });
