// Notes: kept beside the run where the app may, else put into the link. A note that is being written survives a refresh.
(() => {
  "use strict";
  const { clicks, renewed } = window.space;
  const WAIT = 60000; // milliseconds
  const drafts = new Map(); // by group: text and tags that are not saved, and the version that they were written over
  let saved = ""; // the group whose note was saved last

  const fields = (box) => [box.querySelector("textarea"), box.querySelector("input")];
  const of = (box) => JSON.parse(box.dataset.note);
  const over = (box, time) => { box.dataset.note = JSON.stringify({ ...of(box), time }); };

  const drafted = (box) => {
    const { noted, time } = of(box);
    drafts.set(noted, { time, values: fields(box).map((field) => field.value) });
  };

  const keep = async (box, note) => {
    const answer = await fetch("./space/notes", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...of(box), ...note }),
      signal: AbortSignal.timeout(WAIT),
    });
    const said = await answer.json().catch(() => ({ error: `The note could not be saved (${answer.status}).` }));
    if (answer.status === 409) {
      over(box, said.time);
      drafted(box);
    }
    if (!answer.ok) throw new Error(answer.status === 409 ? `${said.error} “${said.note}” [${said.tags.join(", ")}]` : said.error);
    return said;
  };

  clicks.set("[data-note-save]", async (button, { send }) => {
    const box = button.closest(".note");
    const status = box.querySelector("[role=status]");
    const [text, tags] = fields(box).map((field) => field.value);
    const about = of(box);
    button.disabled = true;
    status.textContent = "";
    try {
      const note = { note: text, tags: tags.split(",").map((tag) => tag.trim()).filter(Boolean) };
      const kept = about.kept ? await keep(box, note) : note;
      drafts.delete(about.noted);
      saved = about.noted;
      send(button, { note: kept.note, tags: kept.tags, noted: kept.note || kept.tags.length ? about.noted : "" });
    } catch (error) { status.textContent = String(error.message || "The note could not be saved.").slice(0, 1500); }
    button.disabled = false;
  });

  document.addEventListener("input", (event) => {
    const box = event.target.closest(".note");
    if (!box) return;
    saved = "";
    drafted(box);
  });

  renewed.add((root) => root.querySelectorAll(".note").forEach((box) => {
    const draft = drafts.get(of(box).noted);
    if (!draft) fields(box).forEach((field) => (field.value = field.defaultValue));
    if (draft) {
      fields(box).forEach((field, i) => (field.value = draft.values[i]));
      over(box, draft.time); // what has come since is not overwritten unseen
    }
    if (of(box).noted === saved)
      box.querySelector("[role=status]").textContent = of(box).kept ? "Saved." : "The address has it now: copy the link.";
  }));
})();
