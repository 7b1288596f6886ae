// Building and changing elements. Text goes in as text nodes only, so that nobody's job name can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element: h("td", {class: "number", onclick: f}, "text", child). */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** The same in SVG. */
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** A table with a head; a heading is a text, or a number's text in a list. */
export function table(headings, body) {
  const cells = headings.map((each) =>
    Array.isArray(each) ? h("th", { scope: "col", class: "number" }, ...each) : h("th", { scope: "col" }, each),
  );
  return h("table", { class: "small-table" }, h("thead", {}, h("tr", {}, ...cells)), body);
}

/** Offers `values` in a select below "all"; the chosen one stays, whether it is among them or not. */
export function offer(select, values, shown = (value) => value) {
  const sorted = [...new Set([...values, select.value].filter(Boolean))].sort();
  const signature = sorted.join();
  if (select.dataset.offered === signature) return;
  select.dataset.offered = signature;
  const chosen = select.value;
  select.replaceChildren(h("option", { value: "" }, "all"), ...sorted.map((value) => h("option", { value }, shown(value))));
  select.value = chosen;
}

/** Sets text where it differs: an unchanged node keeps its selection and is not announced again. */
export function setText(element, text) {
  const value = String(text);
  if (element.textContent !== value) element.textContent = value;
}

/** Sets or, for null, removes an attribute where it differs. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/**
 * Makes the children of `parent` those of `items`, in order, each kept as long as its key is there.
 * `create(item)` returns {element, update(item)}, or {elements, update(item)} for several in a row.
 */
export function keyed(parent, views, items, key, create) {
  const wanted = new Map(items.map((item) => [key(item), item]));
  for (const [name, view] of views) {
    if (wanted.has(name)) continue;
    for (const element of view.elements ?? [view.element]) element.remove();
    view.remove?.();
    views.delete(name);
  }
  let next = parent.firstElementChild;
  for (const [name, item] of wanted) {
    let view = views.get(name);
    if (view === undefined) {
      view = create(item);
      views.set(name, view);
    }
    for (const element of view.elements ?? [view.element]) {
      if (element === next) next = next.nextElementSibling;
      else parent.insertBefore(element, next);
    }
    view.update(item);
  }
}
