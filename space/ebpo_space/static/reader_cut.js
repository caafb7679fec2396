// Where a long text may be cut: at blank lines outside formulas and code, so that each piece reads like the whole. Pure.
(window.space ||= {}).cut = (() => {
  "use strict";
  const PIECE = 3000; // characters after which the next good place is taken
  const MOST = 9000; // and after which any line's end is
  const FENCE = /^[ \t]{0,6}(```+|~~~+)/;

  // how many formulas are open after a line
  const open = (line, inside) => {
    for (const [mark] of line.matchAll(/\\\[|\\\]|\$\$|\\begin\{|\\end\{/g)) {
      if (mark === "\\[" || mark === "\\begin{") inside.depth++;
      else if (mark === "$$") inside.dollars = !inside.dollars;
      else inside.depth = Math.max(inside.depth - 1, 0);
    }
  };

  /** [{text, fence}]: pieces that make up the text; fence: the line of the code that a piece begins in, or "". */
  const pieces = (text, fence = "") => {
    const found = [];
    const inside = { depth: 0, dollars: false };
    let from = 0;
    let begun = fence; // of the piece
    let at = 0;
    const end = (to) => {
      if (to > from) found.push({ text: text.slice(from, to), fence: begun });
      [from, begun] = [to, fence];
      [inside.depth, inside.dollars] = [0, false];
    };
    while (at < text.length) {
      const next = text.indexOf("\n", at);
      const stop = next < 0 ? text.length : next + 1;
      const line = text.slice(at, stop);
      const mark = FENCE.exec(line);
      if (mark) fence = fence ? (fence.trim().startsWith(mark[1].slice(0, 3)) ? "" : fence) : line.trimEnd() + "\n";
      else if (!fence) open(line, inside);
      const good = fence ? stop - from > MOST : !line.trim() && !inside.depth && !inside.dollars;
      if (stop - from >= MOST || (good && stop - from >= PIECE)) end(stop);
      while (stop - from > MOST) end(from + MOST);
      at = stop;
    }
    const last = fence;
    end(text.length);
    return { pieces: found, fence: last };
  };

  /** Where a text that is only a beginning ends well, and where one that is only an end begins well. */
  const ending = (text) => {
    for (const mark of ["\n\n", "\n"]) {
      const at = text.lastIndexOf(mark);
      if (at > text.length / 2) return at + mark.length;
    }
    return text.length;
  };
  const beginning = (text) => {
    const opened = text.search(/\\\[/);
    const shut = text.search(/\\\]/);
    const after = shut >= 0 && (opened < 0 || shut < opened) ? shut : 0; // it begins inside a formula
    const blank = text.indexOf("\n\n", after);
    if (blank >= 0 && blank < 2500) return blank + 2;
    const line = text.indexOf("\n", after);
    return line >= 0 && line < 2500 ? line + 1 : 0;
  };

  return { pieces, ending, beginning };
})();
