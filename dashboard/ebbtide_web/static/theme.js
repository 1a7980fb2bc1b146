// Sets the theme before anything is drawn, so that nothing flashes.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("ebbtide-theme"); } catch { /* storage may be off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
