// Exports: a download begins where the server has looked at it and found nothing wrong; else its words are shown.
(() => {
  "use strict";
  const { clicks, save } = window.space;
  const WAIT = 120000; // milliseconds

  clicks.set("[data-download]", async (button) => {
    const address = `./space/export?${button.dataset.download}`;
    const status = button.closest(".exports").querySelector("[role=status]");
    status.textContent = "Preparing…";
    button.disabled = true;
    try {
      const checked = await fetch(`${address}&check=1`, { signal: AbortSignal.timeout(WAIT) });
      status.textContent = checked.ok ? "" : (await checked.text()).slice(0, 400);
      if (checked.ok) save("", address);
    } catch { status.textContent = "The server does not answer."; }
    button.disabled = false;
  });
})();
