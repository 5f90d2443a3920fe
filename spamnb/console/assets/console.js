// Conveniences of the pages; every page also works without them.
// Two functions: replace a part of the page by the answer to a form, and read a part again when the server says so.

const policy = window.trustedTypes
  ? trustedTypes.createPolicy("spamnb", { createHTML: (html) => html }) // only for HTML of this server
  : { createHTML: (html) => html };

const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// --- times in the zone of the browser -----------------------------------------------------------

const years = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });

function localise(within) {
  for (const time of all("time:not([title])", within)) {
    const at = new Date(time.dateTime);
    const form = at.getFullYear() === new Date().getFullYear() ? days : years;
    time.title = time.textContent;
    time.textContent = form.format(at);
  }
}

// --- parts of pages -----------------------------------------------------------------------------

async function fetched(url, options) {
  const reply = await fetch(url, options);
  const page = new DOMParser().parseFromString(policy.createHTML(await reply.text()), "text/html");
  const left = reply.redirected && new URL(reply.url).pathname === "/login";
  return { page, left };
}

function put(page, selector) {
  const fresh = find(selector, page), old = find(selector);
  if (!fresh || !old) return false;
  const taken = document.importNode(fresh, true);
  localise(taken);
  old.replaceWith(taken);
  return true;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  event.submitter?.setAttribute("aria-busy", "true");
  if (!form.matches("form[data-swap]")) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(form, event.submitter));
  all("button").forEach((button) => (button.disabled = true));
  try {
    const { page } = await fetched(form.action || location.href, { method: "POST", body });
    if (!put(page, "main")) throw new Error();
    started();
    (find("#notices") || find("main")).focus();
    scrollTo(0, 0);
  } catch {
    all("button").forEach((button) => (button.disabled = false));
    event.submitter?.removeAttribute("aria-busy");
    form.removeAttribute("data-swap");
    form.requestSubmit(event.submitter);
  }
});

// --- the live list ------------------------------------------------------------------------------

let source = null;

function live() {
  source?.close();
  const list = find("[data-stream]"), state = find("#live-state"), button = find("#live-pause");
  if (!list || !window.EventSource) return;
  let paused = false, due = false, busy = false, waits = false;
  const hovered = () => find("[data-stream]").matches(":hover, :focus-within");
  const say = (what) => { if (state.textContent !== state.dataset[what]) state.textContent = state.dataset[what]; };
  const read = async () => {
    if (busy || !due) return;
    busy = true; due = false;
    try {
      const { page, left } = await fetched(location.href);
      if (left) return location.reload();
      put(page, "#live-top");
      if (paused || hovered()) { waits = true; return say("paused"); }
      put(page, "#" + list.id);
      waits = false;
      say("live");
    } catch { say("lost"); } finally { busy = false; }
  };
  const resume = () => { if (waits && !paused && !hovered()) { due = true; read(); } };
  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    say(paused ? "paused" : "live");
    resume();
  });
  for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, () => setTimeout(resume));
  source = new EventSource(list.dataset.stream);
  source.addEventListener("open", () => say("live"));
  source.addEventListener("error", () => say("lost"));
  let later = 0;
  source.addEventListener("changed", () => {
    due = true;
    clearTimeout(later);
    later = setTimeout(() => { due = true; read(); }, 62_000); // the rate is that of the last minute
    read();
  });
}

// --- texts with numbers -----------------------------------------------------------------------------

// {name} stands for a value, {name:message|messages} for a number with its noun.
function filled(text, values) {
  return text.replace(/\{(\w+)(?::([^|}]*)\|([^}]*))?\}/g, (_, name, one, more) =>
    one === undefined ? values[name] : `${values[name]} ${values[name] === "1" ? one : more}`);
}

// --- the slider of What if --------------------------------------------------------------------------

function slide() {
  const form = find("[data-rows]"), range = find("#whatif-line");
  if (!form) return;
  const rows = JSON.parse(form.dataset.rows);
  range.addEventListener("input", () => {
    const row = rows[range.value];
    for (const one of all("[data-text]")) one.textContent = filled(one.dataset.text, row);
    for (const one of all("path.mark")) one.setAttribute("transform", `translate(${+one.dataset.left + one.dataset.slot * row.place} 0)`);
    find("#whatif-field").value = row.field;
    range.setAttribute("aria-valuetext", row.line);
  });
}

// --- lists by keyboard --------------------------------------------------------------------------

function step(by) {
  const links = all("a.open");
  const at = links.findIndex((link) => link.closest("tr, li").contains(document.activeElement));
  const link = links[Math.max(0, Math.min(links.length - 1, at < 0 ? 0 : at + by))];
  link?.focus();
  if (link && hasPane()) preview(link);
}

function press(key) {
  const row = document.activeElement.closest("tr");
  const button = row?.querySelector(`button[data-key=${key}]`) || find(`main button[data-key=${key}]`);
  // Without a choice, a key of the list acts on the row that has the focus.
  const box = row && button?.form?.id === "chosen" && !find("input[name=ref]:checked") && find("input[name=ref]", row);
  if (box) box.checked = true;
  button?.click();
}

// --- the preview beside a list ------------------------------------------------------------------------

const hasPane = () => Boolean(find("#pane")?.checkVisibility());

function preview(link) {
  if (!link.dataset.view) return;
  const frame = find("#pane iframe");
  for (const row of all("tr.shown")) row.classList.remove("shown");
  link.closest("tr").classList.add("shown");
  find("#pane .empty").hidden = true;
  frame.hidden = false;
  frame.src = link.dataset.view;
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.open[data-view]");
  if (!link || !hasPane() || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.closest("tr").matches(".shown")) return; // the second click opens the page
  event.preventDefault();
  preview(link);
});

const keys = {
  j: () => step(1),
  k: () => step(-1),
  o: () => document.activeElement.closest("tr, li")?.querySelector("a.open")?.click(),
  h: () => press("h"),
  s: () => press("s"),
  d: () => press("d"),
  u: () => find("#notices form button")?.click(),
  a: () => press("a"),
  r: () => press("r"),
  "?": () => find("#keys").showModal(),
};

document.addEventListener("keydown", (event) => {
  // A closed dialog keeps the focus until the next frame; keys that are typed then belong to the page.
  const typing = event.target.closest("input:not([type=checkbox]), select, textarea, dialog[open]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});

// --- lists with a choice of messages ------------------------------------------------------------

document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-choose-all]")) return;
  for (const box of all("input[name=ref]")) box.checked = event.target.checked;
});

function started() {
  localise(document);
  live();
  slide();
  for (const one of all("[data-script]")) one.hidden = false;
}

started();
