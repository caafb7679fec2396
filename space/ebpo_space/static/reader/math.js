// Where the formulas of a text stand. Pure, and linear in the text: a closing mark that is not there is looked for once.
// Runs in the worker (worker.js), never on the page.
self.readerMath = (() => {
  "use strict";
  const LONGEST = 6000; // characters of one formula
  const INLINE = 1200; // of one between single dollars
  const SHOWN = "align|align*|aligned|alignat|alignat*|array|Bmatrix|bmatrix|cases|dcases|CD|eqnarray|eqnarray*|equation|equation*|gather|gather*|gathered|matrix|multline|multline*|pmatrix|rcases|smallmatrix|split|Vmatrix|vmatrix";
  const ENVIRONMENTS = new Set(SHOWN.split("|"));
  const BARE = /\\(?:boxed|fbox|d?frac|tfrac|sqrt|d?binom)(?=\s*[{[])/y; // formulas that models write without dollars
  const NEXT = /[\\$`~]/g;

  // where `mark` next stands at or after `from`; asked with growing `from`, all of it is one walk through the text
  const finder = (text) => {
    const known = new Map();
    return (mark, from) => {
      let at = known.get(mark);
      if (at === undefined || (at >= 0 && at < from)) known.set(mark, (at = text.indexOf(mark, from)));
      return at;
    };
  };

  const escaped = (text, at) => {
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes++;
    return slashes % 2 === 1;
  };

  // {…} from an opening brace; -1 where it is not closed soon
  const closing = (text, open, longest = LONGEST) => {
    let depth = 0;
    const end = Math.min(text.length, open + longest);
    for (let i = open; i < end; i++) {
      if (text[i] === "\\") i++;
      else if (text[i] === "{") depth++;
      else if (text[i] === "}" && !--depth) return i + 1;
    }
    return -1;
  };

  const PROSE = /(?:^|[\s,.;:(])[a-z]{2,}[,.;:]?\s+[a-z]{2,}[,.;:]?\s+[a-z]{2,}/i;
  const MONEY = /^\d[\d,]*(?:\.\d+)?\s*(?:[kKMB]|million|billion|thousand|dollars?)?\s*(?:$|[-–—,;:.!?)]|[a-z]{2,}|\/\s*[a-z]{3,})/;
  const WORDY = /\\(?:text|textbf|textit|mathrm|operatorname\*?|mbox)\s*\{[^{}]*\}/g;

  // "$20 and $30" is money, "$x$ and $y$" are formulas
  const meant = (inner) => {
    if (!inner.trim() || /\n\s*\n/.test(inner)) return false;
    const rest = inner.replace(WORDY, "");
    if (PROSE.test(rest)) return false;
    if (/^\s|\s$/.test(inner)) return /^\s+\S[^]*\s$/.test(inner) && /[\\^_={}<>+]|^\s*\S\s*$/.test(rest);
    return !MONEY.test(rest) || /[\\^_=]/.test(rest) || /^\d[\d,]*(?:\.\d+)?$/.test(rest);
  };

  const dollars = (text, at, find) => {
    if (text[at + 1] === "$") {
      let end = find("$$", at + 2);
      while (end >= 0 && escaped(text, end)) end = text.indexOf("$$", end + 1);
      if (end < 0 || end - at > LONGEST || !text.slice(at + 2, end).trim()) return null;
      return { start: at, end: end + 2, tex: text.slice(at + 2, end), display: true };
    }
    const line = find("\n\n", at);
    const until = Math.min(at + INLINE, line < 0 ? text.length : line);
    for (let end = find("$", at + 1); end >= 0 && end < until; end = text.indexOf("$", end + 1)) {
      if (escaped(text, end)) continue;
      const inner = text.slice(at + 1, end);
      if (/\d/.test(text[end + 1] || "") || !meant(inner)) return null;
      return { start: at, end: end + 1, tex: inner, display: false };
    }
    return null;
  };

  const bracketed = (text, at, find) => {
    const display = text[at + 1] === "[";
    const end = find(display ? "\\]" : "\\)", at + 2);
    if (end < 0 || end - at > LONGEST) return null;
    return { start: at, end: end + 2, tex: text.slice(at + 2, end), display };
  };

  const environment = (text, at, find) => {
    const name = /\\begin\{([A-Za-z]{1,12}\*?)\}/y;
    name.lastIndex = at;
    const found = name.exec(text);
    if (!found || !ENVIRONMENTS.has(found[1])) return null;
    const close = `\\end{${found[1]}}`;
    const end = find(close, at);
    if (end < 0 || end - at > LONGEST) return null;
    return { start: at, end: end + close.length, tex: text.slice(at, end + close.length), display: true };
  };

  // a command with all arguments that follow it in braces
  const bare = (text, at) => {
    BARE.lastIndex = at;
    if (!BARE.test(text)) return null;
    let end = BARE.lastIndex;
    for (;;) {
      const next = /\s*/y;
      next.lastIndex = end;
      next.test(text);
      const from = next.lastIndex;
      if (text[from] === "[" && end === BARE.lastIndex && text.startsWith("\\sqrt", at)) {
        const close = text.indexOf("]", from);
        if (close < 0 || close - from > 40) return null;
        end = close + 1;
      } else if (text[from] === "{" && from - end < 2) {
        const close = closing(text, from, 2000);
        if (close < 0) return null;
        end = close;
        if (/^\\(?:boxed|fbox|sqrt)/.test(text.slice(at, at + 7))) break;
      } else break;
    }
    if (/^\\[a-z]+\s*\{\s*\}$/.test(text.slice(at, end))) return null; // \boxed{} in a task is not an answer
    return end > BARE.lastIndex ? { start: at, end, tex: text.slice(at, end), display: false } : null;
  };

  // the end of code that begins here: `…`, or a fence to its line; 0 where none does
  const code = (text, at, find) => {
    const mark = text[at] === "`" ? "`" : "~";
    let run = 1;
    while (text[at + run] === mark) run++;
    const line = text.slice(Math.max(text.lastIndexOf("\n", at) + 1, at - 7), at);
    if (run >= 3 && /^[ \t]{0,6}$/.test(line)) {
      const close = text.indexOf(`\n${mark.repeat(3)}`, at + run);
      return close < 0 ? text.length : close + 4;
    }
    if (mark === "~") return 0;
    const fence = mark.repeat(run);
    for (let end = find(fence, at + run), tries = 0; end >= 0 && end - at < 2000 && tries < 20; tries++) {
      let size = 0;
      while (text[end + size] === "`") size++;
      if (size === run) return text.slice(at, end).includes("\n\n") ? 0 : end + run;
      end = text.indexOf(fence, end + size);
    }
    return 0;
  };

  /** [{start, end, tex, display}] of the formulas, in order. */
  const formulas = (text) => {
    const found = [];
    const find = finder(text);
    NEXT.lastIndex = 0;
    for (let match = NEXT.exec(text); match; match = NEXT.exec(text)) {
      const at = match.index;
      const sign = text[at];
      let one = null;
      if (sign === "`" || sign === "~") {
        const end = code(text, at, find);
        let run = 1;
        while (text[at + run] === sign) run++;
        NEXT.lastIndex = end || at + run;
        continue;
      }
      if (sign === "$") one = dollars(text, at, find);
      else if (text[at + 1] === "(" || text[at + 1] === "[") one = bracketed(text, at, find);
      else if (text.startsWith("\\begin{", at)) one = environment(text, at, find);
      else one = bare(text, at);
      if (one) found.push(one);
      const skip = sign === "\\" ? 2 : text[at + 1] === "$" ? 2 : 1; // \$ is not a formula, and $$ not the end of $
      NEXT.lastIndex = one ? one.end : at + skip;
    }
    return found;
  };

  return { formulas };
})();
