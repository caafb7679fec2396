// Dynamics: on a phone the settings are folded, so that the first plot is in sight.
(() => {
  "use strict";
  window.space.clicks.set("[data-unfold]", (button) => {
    const open = button.closest(".controls").classList.toggle("unfolded");
    button.setAttribute("aria-expanded", open);
  });
})();
