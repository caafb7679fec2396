// What differs between two texts: by words; where that takes too long, by lines; else nothing. In a worker, so that the page
// stays quick, and whoever started it can end it.
"use strict";
importScripts(`../vendor/diff/diff.min.js${self.location.search}`);

const TIMEOUT = 1500; // milliseconds, for words and then for lines
const PARTS = 8000; // elements that a page can bear

// [[-1 only in a, 0 in both, 1 only in b; text], …], or null
const parts = (compare, a, b) => {
  const found = compare(a, b, { timeout: TIMEOUT });
  return found && found.length <= PARTS ? found.map((p) => [p.added ? 1 : p.removed ? -1 : 0, p.value]) : null;
};

onmessage = ({ data: { a, b } }) => {
  for (const [by, compare] of [["words", Diff.diffWordsWithSpace], ["lines", Diff.diffLines]]) {
    const found = parts(compare, a, b);
    if (found) return postMessage({ by, parts: found });
  }
  postMessage({ by: null, parts: null });
};
