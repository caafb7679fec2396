// Exports: a download begins where the server has looked at it and found nothing wrong; else its words are shown.
(() => {
  "use strict";
  const { clicks, save } = window.space;

  clicks.set("[data-download]", async (button) => {
    const address = `./space/export?${button.dataset.download}`;
    const status = button.closest(".exports").querySelector("[role=status]");
    status.textContent = "";
    button.disabled = true;
    try {
      const checked = await fetch(`${address}&check=1`);
      if (checked.ok) save("", address);
      else status.textContent = (await checked.text()).slice(0, 400);
    } catch { status.textContent = "The server does not answer."; }
    button.disabled = false;
  });
})();
