// What stands on every page: tabs, the address, tables as CSV.
(() => {
  "use strict";
  const { clicks, element, repaint, tell } = window.space;

  // a spreadsheet runs a cell that begins with one of these signs
  const cell = (text) => `"${(/^\s*[=+\-@＝＋－＠']/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  clicks.set("[data-csv]", (button) => {
    const rows = [...button.closest("section").querySelectorAll("table tr")];
    const lines = rows.map((row) => [...row.cells].map((each) => cell(each.innerText.replace(/\s+/g, " ").trim())).join(","));
    const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    Object.assign(element("a"), { href: url, download: `${button.dataset.csv}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  });

  // on a phone the settings of Dynamics are folded, so that the first plot is in sight
  clicks.set("[data-unfold]", (button) => button.setAttribute("aria-expanded", button.closest(".controls").classList.toggle("unfolded")));

  // Gradio's own event of a tab is also sent while the page opens, and would race with what the address asks for
  const turns = (trigger) => document.addEventListener("click", (event) => {
    const tab = event.target.closest("#pages [role=tab], #pages .overflow-dropdown button");
    if (tab) tell(trigger, { tab: tab.dataset.tabId || tab.textContent.trim().toLowerCase() });
  });
  const start = (trigger) => {
    turns(trigger);
    new MutationObserver(repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  };

  // "12?page=…": the number of an answer, and its address. A new page, run, group, question or zoom is a step of the browser's
  // history; going back asks for the view of that address.
  const STEPS = ["tab", "runs", "run", "at", "question", "task", "zoom"];
  const locate = (props, trigger, watch) => {
    let latest = 0, returned = true; // the answer to going back, and the first one, are not steps
    addEventListener("popstate", () => {
      returned = true;
      tell(trigger, { address: location.search });
    });
    const write = () => {
      if (!props.value) return;
      const number = parseInt(props.value, 10);
      if (number < latest) return trigger("click"); // an older answer has come last: ask for all once more
      latest = number;
      document.body.dataset.answered = number;
      const query = props.value.slice(props.value.indexOf("?")).replace(/^\?$/, "");
      const [before, after] = [location.search, query].map((each) => new URLSearchParams(each));
      const step = !returned && STEPS.some((name) => before.get(name) !== after.get(name));
      returned = false;
      history[step ? "pushState" : "replaceState"](null, "", location.pathname + query);
    };
    write();
    watch("value", write);
  };

  Object.assign(window.space, { start, locate });
})();
