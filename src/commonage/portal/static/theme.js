// Colours before the first paint: what was chosen here before, else as the system has it.
try {
  const theme = localStorage.getItem("commonage-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* a browser that keeps nothing: as the system has it */ }
