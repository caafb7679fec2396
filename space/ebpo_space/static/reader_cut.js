// Where a long text may be cut: at blank lines outside formulas and code, so that each piece reads like the whole. Pure.
window.space.cut = (() => {
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

  /** [{text, fence}] of what makes up a text; fence: the line of the code that a piece begins in, or "". least: characters of a
   * piece. */
  const pieces = (text, least = PIECE) => {
    const found = [];
    const inside = { depth: 0, dollars: false };
    let [from, at] = [0, 0];
    let [fence, begun] = ["", ""]; // of the line, and of the piece
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
      if (stop - from >= MOST || (good && stop - from >= least)) end(stop);
      while (stop - from > MOST) end(from + MOST);
      at = stop;
    }
    end(text.length);
    return found;
  };

  /** Finds the best end of a text of which only the beginning is shown. */
  const ending = (text) => {
    const found = pieces(text, 1);
    const whole = text.length - (found.length > 1 ? found.at(-1).text.length : 0);
    return whole > text.length / 2 ? whole : text.length;
  };

  /** Finds the best beginning of a text of which only the end is shown: after code or a formula that it begins in. */
  const beginning = (text) => {
    const fences = [...text.matchAll(/^[ \t]{0,6}(?:```+|~~~+).*$/gm)];
    if (fences.length % 2) return fences[0].index + fences[0][0].length + 1;
    const [opened, shut] = [text.indexOf("\\["), text.indexOf("\\]")];
    const after = shut >= 0 && (opened < 0 || shut < opened) ? shut : 0;
    const blank = text.indexOf("\n\n", after);
    const line = text.indexOf("\n", after);
    return blank >= 0 && blank < 2500 ? blank + 2 : line >= 0 && line < 2500 ? line + 1 : 0;
  };

  return { pieces, ending, beginning };
})();
