// Sets the stored theme before the first paint; without one, the system's theme applies.
try {
  const theme = localStorage.getItem("commonage-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is blocked: use the system's theme */ }
