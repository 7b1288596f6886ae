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

/** The search field `NAME-filter` and the select `NAME-CHOICE` of a list. */
export class Filter {
  constructor(name, choice, redraw) {
    this.search = byId(`${name}-filter`);
    this.select = byId(`${name}-${choice}`);
    this.search.addEventListener("input", redraw);
    this.select.addEventListener("change", redraw);
  }

  /** Offers `values` below "all"; the chosen one stays, whether it is among them or not. */
  offer(values, shown = (value) => value) {
    const chosen = this.select.value;
    const sorted = [...new Set([...values, chosen].filter(Boolean))].sort();
    const signature = sorted.join();
    if (this.offered === signature) return;
    this.offered = signature;
    const options = sorted.map((value) => h("option", { value }, shown(value)));
    this.select.replaceChildren(h("option", { value: "" }, "all"), ...options);
    this.select.value = chosen;
  }

  /** Returns whether an item with this value for the select and these texts is asked for. */
  matches(value, texts) {
    const words = this.search.value.trim().toLowerCase();
    const chosen = this.select.value;
    return (!chosen || value === chosen) && (!words || texts.some((text) => text?.toLowerCase().includes(words)));
  }

  clear() {
    this.search.value = this.select.value = "";
  }
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
 * The children of `parent`, one for each item, in order, each kept as long as its `key(item)` is there.
 * `create(item)` returns {element}, or {elements} for several in a row, with update(item) and remove() if needed.
 */
export class KeyedList {
  constructor(parent, key, create) {
    Object.assign(this, { parent, key, create, views: new Map() });
  }

  update(items) {
    const wanted = new Map(items.map((item) => [this.key(item), item]));
    for (const [name, view] of this.views) {
      if (wanted.has(name)) continue;
      for (const element of view.elements ?? [view.element]) element.remove();
      view.remove?.();
      this.views.delete(name);
    }
    let next = this.parent.firstElementChild;
    for (const [name, item] of wanted) {
      if (!this.views.has(name)) this.views.set(name, this.create(item));
      const view = this.views.get(name);
      for (const element of view.elements ?? [view.element]) {
        if (element === next) next = next.nextElementSibling;
        else this.parent.insertBefore(element, next);
      }
      view.update?.(item);
    }
  }
}
