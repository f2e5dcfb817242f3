"use strict";
// Every text of the file goes into the page as text: nothing here makes markup of it.
for (const section of document.querySelectorAll(".method")) {
  const { rows, values } = JSON.parse(section.querySelector(".data").textContent);
  const list = section.querySelector(".lanes"), panel = section.querySelector(".panel");
  const at = section.dataset.method, body = panel.querySelector("div");
  let chosen = -1;

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const box = (row) => document.getElementById(`row-${at}-${row}`);
  const says = (row) => box(row).querySelector("title").textContent;
  const link = (row) => {
    const made = element("a", rows[row].name);
    made.href = `#row-${at}-${row}`;
    made.onclick = (event) => { event.preventDefault(); choose(row); list.focus({ preventScroll: true }); };
    return made;
  };

  // A value, then what becomes of it: who made it, who reads it, and its copies on other devices.
  const way = (index, seen) => {
    const value = values[index], line = element("span", undefined, "way");
    seen.add(index);
    const add = (word, found) => {
      if (!found.length) return;
      line.append(` ${word} `);
      found.slice(0, 12).forEach((row, i) => line.append(i ? ", " : "", link(row)));
      if (found.length > 12) line.append(` and ${found.length - 12} more`);
    };
    add("made by", value.made);
    add("read by", value.read);
    for (const row of value.read) {
      if (rows[row].kind !== "copy") continue;
      for (const copied of rows[row].writes) {
        if (!values[copied] || seen.has(copied) || seen.size > 8) continue;
        line.append(`; on ${values[copied].device}`, way(copied, seen));
      }
    }
    return line;
  };
  const show = (title, indices, total) => {
    if (!total) return;
    body.append(element("h4", title));
    const items = element("ul");
    for (const index of indices) {
      if (!values[index]) continue;
      const item = element("li");
      item.append(element("b", values[index].name), ` ${values[index].text}`, way(index, new Set()));
      items.append(item);
    }
    if (total > indices.length) items.append(element("li", `and ${total - indices.length} more`));
    body.append(items);
  };

  const choose = (row, scroll = true) => {
    if (row < 0 || row >= rows.length) return;
    box(chosen)?.setAttribute("aria-selected", "false");
    for (const line of list.querySelectorAll(".arrow.on")) line.classList.remove("on");
    chosen = row;
    const found = box(row), told = rows[row];
    found.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", found.id);
    for (const line of list.querySelectorAll(`[data-from="${row}"],[data-to="${row}"]`)) line.classList.add("on");
    body.replaceChildren(element("h4", says(row)));
    if (told.kernels.length) {
      body.append(element("h4", "Kernels"));
      const items = element("ul");
      for (const name of told.kernels) items.append(element("li", name));
      body.append(items);
    }
    show("Reads", told.reads, told.read);
    show("Writes", told.writes, told.written);
    panel.hidden = false;
    if (scroll) found.scrollIntoView({ block: "center", inline: "nearest" });
  };
  const close = () => {
    panel.hidden = true;
    box(chosen)?.setAttribute("aria-selected", "false");
    list.removeAttribute("aria-activedescendant");
    for (const line of list.querySelectorAll(".arrow.on")) line.classList.remove("on");
    chosen = -1;
    list.focus({ preventScroll: true });
  };

  list.addEventListener("click", (event) => {
    const found = event.target.closest("[data-row]");
    if (found) choose(Number(found.dataset.row), false);
  });
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };
  list.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    let to = steps[event.key] && Math.min(Math.max(chosen + steps[event.key], 0), rows.length - 1);
    if (event.key === "Home") to = 0;
    if (event.key === "End") to = rows.length - 1;
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  panel.querySelector(".close").addEventListener("click", close);

  const form = section.querySelector(".find"), status = form.querySelector("[role=status]");
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = form.querySelector("input").value.trim().toLowerCase();
    const matches = (row, told) =>
      /^#?\d+$/.test(wanted)
        ? told.first <= Number(wanted.replace("#", "")) && Number(wanted.replace("#", "")) <= told.last
        : says(row).toLowerCase().includes(wanted) || told.kernels.some((name) => name.toLowerCase().includes(wanted));
    for (let i = 1; wanted && i <= rows.length; i++) {
      const row = (chosen + i + rows.length) % rows.length;
      if (matches(row, rows[row])) {
        status.textContent = "";
        return choose(row);
      }
    }
    status.textContent = wanted ? "nothing found" : "";
  });
}
