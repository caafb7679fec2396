// Configuration: text beside a button, copied as it is shown.
(() => {
  "use strict";
  const { clicks } = window.space;

  clicks.set("[data-copy]", async (button) => {
    const text = button.parentElement.querySelector("pre").textContent, before = button.textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(button.parentElement.querySelector("pre")); button.textContent = "Selected: press Ctrl+C"; }
    setTimeout(() => (button.textContent = before), 1600);
  });
})();
