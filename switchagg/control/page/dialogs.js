// Dialogs that confirm an action or ask for a token; and short messages.

import { byId, setText } from "./dom.js";

let hide = 0;

/** Shows a message for a few seconds. */
export function toast(text) {
  const element = byId("toast");
  setText(element, text);
  element.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => element.setAttribute("hidden", ""), 8000);
}

/** Resolves to true if the person agreed. */
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), yes);
  return new Promise((resolve) => {
    const done = (answer) => {
      dialog.close();
      resolve(answer);
    };
    byId("confirm-yes").onclick = () => done(true);
    byId("confirm-no").onclick = () => done(false);
    // The Escape key. The close event comes later, perhaps when the next question is already asked.
    dialog.oncancel = (event) => {
      event.preventDefault();
      done(false);
    };
    dialog.showModal();
    byId("confirm-no").focus();
  });
}

/** Asks until a token is given. `why`: what the controller said. */
export function askToken(why) {
  const dialog = byId("token");
  const input = byId("token-input");
  setText(byId("token-text"), why);
  input.value = "";
  return new Promise((resolve) => {
    const done = () => {
      const value = input.value.trim();
      if (!value) return input.focus();
      dialog.oncancel = null;
      dialog.onclose = null;
      dialog.close();
      resolve(value);
    };
    byId("token-ok").onclick = done;
    input.onkeydown = (event) => {
      if (event.key === "Enter") done();
    };
    // There is nothing to see without it.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      if (!dialog.open) dialog.showModal();
    };
    dialog.showModal();
    input.focus();
  });
}
