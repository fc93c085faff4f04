// The log of a workload. Lines arrive in lists on the page's stream and are added to blocks of text: a hundred thousand
// lines are a few hundred elements, and the browser lays out only the visible ones and the last.
"use strict";

(() => {
  const BLOCK = 200; // lines in one element
  const MAX = 100_000; // lines in the page; the plain log has all of them
  const live = document.getElementById("live");
  const log = document.getElementById("log");
  const follow = document.getElementById("log-follow");
  const wrap = document.getElementById("log-wrap");
  const empty = document.getElementById("log-empty");
  let block = null;
  let inBlock = 0;
  let lines = 0;

  function begin() {
    empty.textContent = "No output yet.";
    log.replaceChildren(empty);
    block = null;
    lines = 0;
  }

  function add(texts) {
    if (!lines) log.replaceChildren();
    for (let at = 0; at < texts.length; ) {
      if (!block || inBlock >= BLOCK) {
        block = document.createElement("pre");
        inBlock = 0;
        log.append(block);
      }
      const some = texts.slice(at, at + BLOCK - inBlock);
      block.append(some.join("\n") + "\n");
      // The browser needs the height of blocks that it does not lay out.
      block.style.containIntrinsicSize = `auto ${((inBlock + some.length) * 1.55).toFixed(2)}em`;
      inBlock += some.length;
      block.classList.toggle("is-full", inBlock >= BLOCK);
      at += some.length;
      lines += some.length;
    }
    let gone = 0;
    while (lines - gone > MAX && log.firstChild !== block) {
      log.firstChild.remove();
      gone += BLOCK;
    }
    lines -= gone;
    document.getElementById("log-count").textContent = `${lines.toLocaleString()} line${lines === 1 ? "" : "s"}`;
    if (follow.checked) toEnd();
  }

  function toEnd() {
    log.scrollTop = log.scrollHeight;
    // The heights of blocks that were never visible are estimates until they are drawn.
    requestAnimationFrame(() => follow.checked && (log.scrollTop = log.scrollHeight));
  }

  live.addEventListener("log-begin", begin);
  live.addEventListener("log", (event) => add(JSON.parse(event.detail.data)));
  follow.addEventListener("change", () => follow.checked && toEnd());
  wrap.addEventListener("change", () => log.classList.toggle("is-wrapped", wrap.checked));
  // Scrolling up stops following.
  for (const name of ["wheel", "touchmove", "keydown"]) {
    log.addEventListener(name, () => requestAnimationFrame(() => {
      follow.checked = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    }), { passive: true });
  }
})();
