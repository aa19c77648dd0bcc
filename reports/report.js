"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  document.documentElement.classList.add("scripted");

  const say = (text) => {
    one("#said").textContent = text;
  };

  // Filters
  const form = one("#filters");
  const rows = all("#case-table tbody tr");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const names = all("select", form).map((select) => select.name);

  const apply = () => {
    const wanted = names.map((name) => [name, form.elements[name].value]).filter(([, value]) => value);
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => {
      row.hidden = !(
        wanted.every(([name, value]) => row.dataset[name] === value) && words.every((word) => texts[i].includes(word))
      );
      shown += row.hidden ? 0 : 1;
    });
    one("#shown").textContent = `${shown} of ${rows.length} cases`;
  };

  const choose = (chosen) => {
    names.forEach((name) => {
      form.elements[name].value = chosen[name] ?? "";
    });
    form.elements.text.value = "";
    apply();
  };

  const remember = () => {
    const chosen = [...new FormData(form)].filter(([, value]) => value);
    history.replaceState(null, "", chosen.length ? `#?${new URLSearchParams(chosen)}` : "#cases");
  };

  form.addEventListener("input", () => {
    apply();
    remember();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    choose({});
    remember();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea")) return;
    event.preventDefault();
    form.elements.text.focus();
  });

  // Order: a column's header sorts by it, and the other way round the next time.
  const order = (column, down) => {
    const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
    const keyed = rows.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => (down ? -1 : 1) * a.localeCompare(b, "en", { numeric: true }));
    one("#case-table tbody").append(...keyed.map(([, row]) => row));
  };
  all("#case-table thead th").forEach((head, column, heads) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      order(column, down);
    });
  });
  all("a[data-filter]").forEach((link) => link.addEventListener("click", () => choose(link.dataset)));

  // Deep links: a closed card cannot be scrolled to, nor can a row that is filtered out.
  const follow = () => {
    let id = location.hash.slice(1);
    try {
      id = decodeURIComponent(id);
    } catch {
      // A stray percent sign: the id is taken as it stands.
    }
    if (id.startsWith("?")) {
      const chosen = new URLSearchParams(location.hash.slice(2));
      choose(Object.fromEntries(chosen));
      form.elements.text.value = chosen.get("text") ?? "";
      apply();
      id = "cases";
    }
    const target = document.getElementById(id);
    if (!target) return;
    if (target.hidden) choose({});
    for (let node = target; node; node = node.parentElement) {
      if (node.localName === "details") node.open = true;
    }
    target.scrollIntoView();
    if (target.localName === "details") one("summary", target).focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  all('a[href^="#case-"]').forEach((link) =>
    link.addEventListener("click", () => {
      if (link.hash === location.hash) follow();
    }),
  );
  follow();

  // Packed: text as gzip in base64
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };

  // Cards: one that is opened is unpacked at once, the others by and by, so that a search of the page finds them.
  const cards = all("details.card");
  const fill = async (card) => {
    const hole = one(".packed", card);
    const body = hole?.dataset.body;
    if (!body) return;
    delete hole.dataset.body;
    hole.outerHTML = await unpack(body);
  };
  cards.forEach((card) => card.addEventListener("toggle", () => fill(card)));
  addEventListener("load", async () => {
    for (const card of cards) {
      await fill(card);
      await new Promise((resume) => {
        setTimeout(resume);
      });
    }
  });
  const unfold = one("#unfold");
  unfold?.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    cards.forEach((card) => {
      card.open = open;
    });
    unfold.setAttribute("aria-pressed", String(open));
    unfold.textContent = open ? "Close all" : "Open all";
  });
  addEventListener("beforeprint", () => cards.forEach((card) => {
    card.open = true;
  }));

  // Copy; pages opened over plain HTTP have no clipboard object.
  const copy = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("refused");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    const code = one("code", button.parentElement);
    try {
      await copy(code.textContent);
      button.textContent = "Copied";
      say("Command copied");
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
      say("The clipboard is not available: the command is selected");
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  });

  // Download
  one("#download").addEventListener("click", async ({ currentTarget }) => {
    const link = document.createElement("a");
    const records = await unpack(one("#records").textContent);
    link.href = URL.createObjectURL(new Blob([records], { type: "application/json" }));
    link.download = currentTarget.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    say("Records downloaded");
  });
})();
