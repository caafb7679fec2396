// Buttons of pages: with data-set='{"name": value}' they change the view.
(() => {
  "use strict";
  const { tell, clicks, renewed } = window.space;

  const actions = (root, props, trigger, server, watch) => {
    const renew = () => renewed.forEach((done) => done(root));
    watch("value", renew);
    renew();
    const send = (node, extra) => tell(trigger, { ...JSON.parse(node.dataset.set || "{}"), ...extra });
    // an answer may replace a button between press and release: then no click comes, and the press counts
    let pressed = null;
    root.addEventListener("pointerdown", (event) => (pressed = event.target.closest("button[data-set]")));
    addEventListener("pointerup", () => {
      if (pressed && !pressed.isConnected) send(pressed);
      pressed = null;
    });
    addEventListener("pointercancel", () => (pressed = null));
    root.addEventListener("click", (event) => {
      for (const [selector, done] of clicks) {
        const button = event.target.closest(selector);
        if (button) return done(button, { server, send });
      }
      const node = event.target.closest("[data-set]");
      if (node) send(node);
    });
  };

  Object.assign(window.space, { actions });
})();
