"use strict";
/* Search without a server: the index is a script, so that it also works from files. */
(() => {
  const MOST = 12, AROUND = 60, MENU = "(min-width: 48.01rem)";
  const root = document.body.dataset.root;
  const box = document.querySelector(".search");
  const input = box.querySelector("input");
  const list = box.querySelector("ol");
  let loading = null;

  const wide = matchMedia(MENU);
  const menu = document.querySelector(".menu");
  const fold = () => { menu.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  const current = menu.querySelector("[aria-current]");
  if (current && wide.matches) menu.scrollTop = current.offsetTop - menu.clientHeight / 2;
  box.hidden = false;

  const load = () => loading ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${root}search-index.js`;
    script.onload = done;
    document.head.append(script);
  });

  /* Every word must occur; a heading counts more than text, the start of a word more than its middle. */
  const points = (entry, words) => {
    let sum = 0;
    for (const word of words) {
      const inHead = entry.head.indexOf(word), inText = entry.low.indexOf(word);
      if (inHead < 0 && inText < 0) return 0;
      const starts = inHead === 0 || /\W/.test(entry.head[inHead - 1] ?? "");
      sum += inHead < 0 ? 1 : starts ? 12 : 6;
    }
    sum += entry.place.startsWith("reference/") ? 2 : 0;
    return sum + (entry.head === words.join(" ") ? 20 : 0);
  };

  const excerpt = (entry, words) => {
    const at = Math.max(0, Math.min(...words.map((word) => entry.low.indexOf(word)).filter((n) => n >= 0)));
    const from = Number.isFinite(at) ? Math.max(0, at - AROUND) : 0;
    return (from ? "… " : "") + entry.text.slice(from, from + 3 * AROUND);
  };

  const prepared = () => window.searchIndex.map(([place, page, head, text]) => (
    { place, page, title: head, head: head.toLowerCase(), text, low: text.toLowerCase() }));
  let entries = null;

  const show = async () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { list.hidden = true; return; }
    await load();
    entries ??= prepared();
    const found = entries.map((entry) => [points(entry, words), entry]).filter(([n]) => n)
      .sort((a, b) => b[0] - a[0]).slice(0, MOST);
    list.replaceChildren(...found.map(([, entry]) => {
      const item = document.createElement("li"), link = document.createElement("a");
      const about = document.createElement("small");
      link.href = root + entry.place;
      link.textContent = entry.title === entry.page ? entry.title : `${entry.page}: ${entry.title}`;
      about.textContent = excerpt(entry, words);
      link.append(about);
      item.append(link);
      return item;
    }));
    if (!found.length) {
      const item = document.createElement("li"), text = document.createElement("p");
      text.textContent = "Nothing was found.";
      item.append(text);
      list.append(item);
    }
    list.hidden = false;
  };

  const move = (step) => {
    const links = [...list.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + step;
    (next < 0 ? input : links[Math.min(next, links.length - 1)] ?? input).focus();
  };

  input.addEventListener("focus", load);
  input.addEventListener("input", show);
  box.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Enter" && document.activeElement === input) {
      list.querySelector("a")?.click();
    } else if (event.key === "Escape") {
      list.hidden = true;
      input.focus();
    } else {
      return;
    }
    event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    if (!box.contains(event.target) || event.target.closest("#found a")) list.hidden = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      event.preventDefault();
      input.focus();
    }
  });
})();
