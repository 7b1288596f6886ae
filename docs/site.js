// Code and tables that are wider than the window can be scrolled by keyboard.

const reach = () => {
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
};
addEventListener("load", reach);
addEventListener("resize", reach);
