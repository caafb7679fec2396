// A server that is asked too often says when to ask again (429). The same request is sent once more then, so that no click is
// lost; meanwhile a line says what the page waits for.
(() => {
  "use strict";
  const { element } = window.space;
  const TIMES = 5;
  const line = element("p", "asked-again");
  line.setAttribute("role", "status");
  let waiting = 0;

  const wait = async (seconds) => {
    waiting += 1;
    line.textContent = `Too many requests: waiting ${seconds} s`;
    document.body.appendChild(line);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
    waiting -= 1;
    if (!waiting) line.remove();
  };

  const ask = window.fetch.bind(window);
  window.fetch = async (...request) => {
    for (let left = TIMES; ; left -= 1) {
      const answer = await ask(...request);
      if (answer.status !== 429 || !left) return answer;
      await wait(Math.min(Number(answer.headers.get("retry-after")) || 1, 60));
    }
  };
})();
