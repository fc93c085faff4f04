// Uploads of the page Data: files are sent in pieces, with progress. After a broken connection an upload continues by
// itself; after a reload it continues when the same file is chosen again.
"use strict";

(() => {
  const PIECE = 8 * 1024 * 1024;
  const MAX_PAUSE_MS = 10_000;
  const box = document.getElementById("upload");
  if (!box) return;
  const list = document.getElementById("uploads");
  const chooser = document.getElementById("upload-files");
  const waiting = [];
  let active = null;
  let failures = 0;

  // The same 32 digits for the same file and folder. It only names the upload, so it need not be secret.
  function keyOf(file) {
    const text = [box.dataset.volume, box.dataset.tenant, box.dataset.path, file.name, file.size, file.lastModified].join("\0");
    const words = [0x811c9dc5, 0x1b873593, 0xcc9e2d51, 0x85ebca6b];
    for (let at = 0; at < text.length; at++) {
      for (let word = 0; word < 4; word++) {
        words[word] = Math.imul(words[word] ^ (text.charCodeAt(at) + word), 0x01000193);
        words[word] ^= words[(word + 1) % 4] >>> 15;
      }
    }
    return words.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }

  function address(base, one) {
    const query = new URLSearchParams({ path: `${box.dataset.path}/${one.file.name}`, key: one.key });
    for (const name of ["volume", "tenant"]) if (box.dataset[name]) query.set(name, box.dataset[name]);
    if (one.replace) query.set("replace", "true");
    return `${base}?${query}`;
  }

  function show(one, text, tone = "") {
    one.text.textContent = text;
    one.row.className = tone;
  }

  function add(file, replace = false) {
    const one = { file, replace, key: keyOf(file), offset: 0, pause: 500, request: null, gone: false };
    one.row = document.createElement("li");
    const name = document.createElement("span");
    name.className = "strong clip";
    name.textContent = file.name;
    one.bar = document.createElement("progress");
    one.bar.max = Math.max(1, file.size);
    one.bar.value = 0;
    one.bar.setAttribute("aria-label", `Upload of ${file.name}`);
    one.text = document.createElement("span");
    one.text.className = "small";
    one.button = document.createElement("button");
    one.button.type = "button";
    one.button.className = "small-button";
    one.button.textContent = "Cancel";
    one.button.addEventListener("click", () => cancel(one));
    one.row.append(name, one.bar, one.text, one.button);
    list.append(one.row);
    show(one, "waits");
    waiting.push(one);
    next();
  }

  function cancel(one) {
    one.gone = true;
    if (one.request) one.request.abort();
    one.row.remove();
    if (active === one) active = null;
    next();
  }

  function next() {
    if (active) return;
    active = waiting.shift() || null;
    while (active && active.gone) active = waiting.shift() || null;
    if (active) resume(active);
    else if (list.childElementCount && !failures) location.reload();
  }

  function end(one, failed) {
    if (active === one) active = null;
    if (failed) failures += 1;
    next();
  }

  async function resume(one) {
    try {
      const answer = await fetch(address(box.dataset.offset, one), {
        headers: { "X-CSRF-Token": box.dataset.csrf, "HX-Request": "true" },
      });
      if (one.gone) return;
      if (answer.status === 401) return location.reload();
      const found = await answer.json();
      if (!answer.ok) return refuse(one, answer.status, found);
      one.offset = found.offset;
      send(one);
    } catch {
      again(one);
    }
  }

  function again(one) {
    if (one.gone) return;
    show(one, "The connection is lost. The upload continues when it is restored.", "is-waiting");
    setTimeout(() => one.gone || resume(one), one.pause);
    one.pause = Math.min(MAX_PAUSE_MS, one.pause * 2);
  }

  function refuse(one, status, found) {
    if (found.code === "upload-offset") return resume(one);
    if (found.code === "upload-busy" || (found.retryable && status >= 500) || status === 429) return again(one);
    show(one, found.text || `The server refused the upload (${status}).`, "is-bad");
    one.bar.hidden = true;
    if (found.code === "file-exists") {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small-button";
      button.textContent = "Replace";
      button.addEventListener("click", () => {
        failures -= 1;
        one.row.remove();
        add(one.file, true);
      });
      one.row.insertBefore(button, one.button);
    }
    end(one, true);
  }

  function send(one) {
    const request = new XMLHttpRequest();
    one.request = request;
    const progress = (sent) => {
      const at = Math.min(one.file.size, one.offset + sent);
      one.bar.value = one.file.size ? at : 1;
      show(one, one.file.size ? `${Math.floor((100 * at) / one.file.size)} %` : "100 %");
    };
    progress(0);
    request.upload.addEventListener("progress", (event) => progress(event.loaded));
    request.addEventListener("error", () => again(one));
    request.addEventListener("timeout", () => again(one));
    request.addEventListener("load", () => {
      if (request.status === 401) return location.reload();
      let found;
      try {
        found = JSON.parse(request.responseText);
      } catch {
        return again(one); // the answer of a proxy
      }
      if (request.status !== 200) return refuse(one, request.status, found);
      one.offset = found.offset;
      one.pause = 500;
      if (!found.complete) return send(one);
      progress(0);
      one.button.remove();
      show(one, "uploaded", "is-done");
      end(one, false);
    });
    request.open("PATCH", address(box.dataset.content, one));
    const headers = {
      "X-CSRF-Token": box.dataset.csrf,
      "HX-Request": "true",
      "Content-Type": "application/octet-stream",
      "Upload-Offset": one.offset,
      "Upload-Length": one.file.size,
    };
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, String(value));
    request.send(one.file.slice(one.offset, one.offset + PIECE));
  }

  chooser.addEventListener("change", () => {
    for (const file of chooser.files) add(file);
    chooser.value = "";
  });
  const target = document.querySelector(".files");
  target.addEventListener("dragover", (event) => {
    event.preventDefault();
    target.classList.add("is-target");
  });
  target.addEventListener("dragleave", () => target.classList.remove("is-target"));
  target.addEventListener("drop", (event) => {
    event.preventDefault();
    target.classList.remove("is-target");
    for (const item of event.dataTransfer.items) {
      const entry = item.webkitGetAsEntry && item.webkitGetAsEntry();
      const file = item.getAsFile();
      if (file && !(entry && entry.isDirectory)) add(file);
    }
  });
  addEventListener("beforeunload", (event) => active && event.preventDefault());
})();
