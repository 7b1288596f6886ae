// Light, dark or as the system says. A plain script in the head, so that the first paint has the right colours.
"use strict";

(() => {
  const KEY = "switchagg.theme";
  const CHOICES = ["system", "light", "dark"];

  function stored() {
    try {
      const value = localStorage.getItem(KEY);
      return CHOICES.includes(value) ? value : "system";
    } catch {
      return "system"; // storage is switched off
    }
  }

  function apply(choice) {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    const button = document.getElementById("theme-button");
    if (button) button.textContent = `Theme: ${choice}`;
  }

  let choice = stored();
  apply(choice);
  document.addEventListener("DOMContentLoaded", () => {
    apply(choice);
    document.getElementById("theme-button").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      apply(choice);
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // It holds until the page is left.
      }
    });
  });
})();
