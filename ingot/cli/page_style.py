"""Style and script of the pages that `ingot inspect --html` writes."""

STYLE = """
:root { color-scheme: light dark; --bg:#fbfaf8; --fg:#23211d; --dim:#76716a; --line:#e3dfd8;
  --card:#fff; --accent:#b4531c; --good:#2c7a4b; --bad:#b3261e;
  --c0:#4e79a7; --c1:#e08a3c; --c2:#59a14f; --c3:#c94f5d; --c4:#5fa8a4; --c5:#9c6fa8;
  --c6:#b8952e; --c7:#8b7769; --c8:#d489a8; --c9:#6d78c9; }
@media (prefers-color-scheme: dark) { :root { --bg:#191817; --fg:#e9e5de; --dim:#9b958b;
  --line:#35322e; --card:#211f1d; --accent:#e8925a; --good:#6fc28f; --bad:#f08a80; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--bg); color:var(--fg);
  font:15px/1.5 ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width:1180px; margin:0 auto; padding:36px 28px 80px; }
h1 { font-size:28px; margin:0; letter-spacing:-.01em; overflow-wrap:anywhere; }
h2 { font-size:17px; margin:44px 0 12px; }
.sub { color:var(--dim); margin:4px 0 24px; }
.cards { display:grid; grid-template-columns:repeat(auto-fit, minmax(165px, 1fr)); gap:12px; }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:13px 16px; }
.card b { display:block; font-size:22px; font-weight:600; letter-spacing:-.01em; }
.card span { color:var(--dim); font-size:13px; }
.columns { display:grid; grid-template-columns:repeat(auto-fit, minmax(400px, 1fr)); gap:0 56px; }
table { border-collapse:collapse; width:100%; font-size:13.5px; }
th { text-align:left; color:var(--dim); font-weight:500; font-size:12.5px; }
th, td { padding:5px 14px 5px 0; border-bottom:1px solid var(--line); vertical-align:top; }
td.n, th.n { text-align:right; font-variant-numeric:tabular-nums; }
code, .mono td { font-family:ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  font-size:12.5px; }
.mono td { overflow-wrap:anywhere; }
.bars td { white-space:nowrap; vertical-align:middle; } .bars td:last-child { width:55%; }
.op { white-space:nowrap; } td.n { white-space:nowrap; }
.ok { color:var(--good); } .bad { color:var(--bad); } .dim { color:var(--dim); }
.panel { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:14px 14px 8px; }
svg { width:100%; height:auto; display:block; }
svg .frame { fill:none; stroke:var(--line); } svg .grid { stroke:var(--line); }
svg .axis { stroke:var(--dim); } svg .limit { stroke:var(--accent); stroke-dasharray:4 4; }
svg .live { fill:var(--c0); opacity:.55; }
svg .tick { fill:var(--dim); font-size:11.5px; }
svg rect[class^=c] { opacity:.85; } svg rect[class^=c]:hover { opacity:1; stroke:var(--fg); }
.legend { display:flex; flex-wrap:wrap; gap:4px 18px; font-size:13px; margin:10px 0 0;
  color:var(--dim); }
.legend i { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:6px; }
.bar { height:9px; border-radius:3px; background:var(--accent); min-width:2px; }
input { font:inherit; width:100%; max-width:420px; padding:8px 12px; margin-bottom:12px;
  color:var(--fg); background:var(--card); border:1px solid var(--line); border-radius:8px; }
.scroll { overflow-x:auto; }
""" + "".join(f".c{i} {{ fill:var(--c{i}); background:var(--c{i}); }}\n" for i in range(10))

SCRIPT = """
const box = document.getElementById("filter");
const rows = [...document.querySelectorAll("#instructions tbody tr")];
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(Boolean);
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});
"""
