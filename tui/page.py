"""The page that shows the terminal UI in a browser: it fetches nothing from anywhere but its own server."""

from typing import Final

PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Outrider</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/css/xterm.css">
<style>
@font-face {
  font-family: "Roboto Mono"; font-weight: 100 900; src: url(/static/fonts/RobotoMono-VariableFont_wght.ttf);
}
@font-face {
  font-family: "Roboto Mono"; font-style: italic; font-weight: 100 900;
  src: url(/static/fonts/RobotoMono-Italic-VariableFont_wght.ttf);
}
body { margin: 0; background: #101418; color: #d8dee6; font: 16px "Roboto Mono", monospace; overflow: hidden; }
#said { position: absolute; inset: 0; display: flex; align-items: center; justify-content: center; z-index: 10;
  text-align: center; white-space: pre-line; padding: 2em; background: #101418e0; }
body.-first-byte:not(.-closed) #said { display: none; }
</style>
</head>
<body>
<div id="said" role="status">Connecting …</div>
<div id="terminal" data-font-size="16"></div>
<script nonce="NONCE">
"use strict";
const KEY = "outrider";
const said = document.getElementById("said");
const terminal = document.getElementById("terminal");
const say = text => { document.body.classList.add("-closed"); said.textContent = text; };

async function key() {
  const token = location.hash.slice(1);
  if (token) {
    history.replaceState(null, "", "/");
    const answer = await fetch("/enter", { method: "POST", body: token, redirect: "error" });
    if (answer.ok) sessionStorage.setItem(KEY, await answer.text());
  }
  return sessionStorage.getItem(KEY);
}

addEventListener("load", async () => {
  let found = null;
  try { found = await key(); } catch { /* the server has ended: what is said below holds */ }
  if (!found) {
    say("This link does not open anything (any more).\\n`outrider --web` prints a new one.");
    return;
  }
  await document.fonts.load('16px "Roboto Mono"').catch(() => {});
  terminal.dataset.sessionWebsocketUrl = `ws://${location.host}/ws/${found}`;
  terminal.className = "textual-terminal";
  const ended = "It has ended.\\nReload this page to open it again, as long as `outrider --web` runs.";
  new MutationObserver(() => {
    if (document.body.classList.contains("-closed")) said.textContent = ended;
  }).observe(document.body, { attributeFilter: ["class"] });
  const script = document.createElement("script");
  script.src = "/static/js/textual.js";
  script.onload = () => { window.onload(); terminal.querySelector("textarea").focus(); };
  document.head.append(script);
});
</script>
</body>
</html>
"""
