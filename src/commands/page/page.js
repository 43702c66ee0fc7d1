// Shows what /api/overview and /api/names answer. All text goes in as text, never as HTML.
"use strict";

const EVERY = 5000; // ms: the server reads no more often
const MOST = 500; // rows of names at once, which the search narrows down, and findings
const byId = (id) => document.getElementById(id);

let last = null; // the last overview
let said = new Map(); // the worst of its findings about each object
let asked = 0; // when it arrived, in ms
let late = null; // why there is none since then

// An element with attributes and children; a text becomes a text node.
function el(name, attributes, ...children) {
  const svg = ["svg", "g", "rect", "path", "text", "title", "defs", "marker"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const CLASS = { "ok": "ok", "WRONG": "wrong", "not seen": "unseen", "-": "none" };
const MARK = { "ok": "✓", "WRONG": "✗", "not seen": "?", "-": "–" };
// Whether the leaders are connected; null for this cluster, and where nobody says it.
const STREAM = { "true": "connected", "false": "not connected", "null": "–" };
const WORD = { "ok": "ok", "WRONG": "wrong", "not seen": "not seen", "-": "none" };

const state = (of) => el("span", { class: `state ${CLASS[of]}` }, `${MARK[of]} ${WORD[of]}`);
const cell = (content, attributes) => el("td", attributes, content);

function human(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

const link = (name) => `#/names/${name.namespace}/${name.name}`;

// Replaces the children of an element that are not the same. If all were replaced, a screen reader would begin anew, and
// whoever is on a link would lose the focus when another row changes.
function fill(id, children) {
  const [there, next] = [byId(id), [...el("div", null, ...children).childNodes]];
  next.forEach((node, index) => {
    const old = there.childNodes[index];
    if (!old) there.append(node);
    else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
  while (there.childNodes.length > next.length) there.lastChild.remove();
}

function showAll() {
  const { report, clusters, cost } = last;
  byId("subject").textContent = report.subject;
  said = new Map();
  for (const finding of report.findings) {
    if (!said.has(finding.about) || finding.state === "WRONG") said.set(finding.about, finding);
  }
  const bad = report.findings.filter((finding) => finding.state === "WRONG" || finding.state === "not seen");
  const shown = bad.slice(0, MOST).map((finding) =>
    el("li", { class: CLASS[finding.state] }, state(finding.state), " ", el("strong", null, finding.about), `: ${finding.text}`,
      finding.remedy ? el("div", { class: "remedy" }, `→ ${finding.remedy}`) : null));
  if (bad.length === 0) shown.push(el("li", { class: "ok" }, "✓ Nothing is wrong."));
  if (bad.length > MOST) shown.push(el("li", null, `The first ${MOST} of ${bad.length} are shown.`));
  fill("problems", shown);
  fill("clusters", clusters.map((cluster) => {
    const finding = said.get(`cluster ${cluster.id}`) || { state: "-", text: "" };
    return el("tr", null, el("th", { scope: "row" }, cluster.id), cell(state(finding.state)),
      cell(human(cluster.ageSeconds), { class: "number" }), cell(STREAM[cluster.stream], { class: "word" }), cell(`${cluster.exports}`, { class: "number" }),
      cell(`${cluster.ready} of ${cluster.endpoints}`, { class: "number" }), cell(`${cluster.claims}`, { class: "number" }), cell(finding.text));
  }));
  const usd = (value) => value.toFixed(2);
  fill("cost", [
    ["Reads of the ledger", `${cost.clusters} clusters`, usd(cost.readsUsd)],
    ["Rows of the ledger", `${cost.rows}`, usd(cost.rowsUsd)],
    ["Instances of exported endpoints", `${cost.instances}`, usd(cost.instancesUsd)],
    ["All", "", usd(cost.usd)],
  ].map(([what, much, price]) => el("tr", null, el("th", { scope: "row" }, what), cell(much, { class: "number" }), cell(price, { class: "number" }))));
  showNames();
}

function showNames() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter((word) => word);
  const onlyWrong = byId("only-wrong").checked;
  const found = last.names.filter((name) => {
    const text = `${name.namespace}/${name.name} ${name.exporters.map((one) => one.cluster).join(" ")}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!onlyWrong || name.state === "WRONG");
  });
  const count = `${found.length} of ${last.names.length}${found.length > MOST ? `; the first ${MOST} are shown` : ""}`;
  // A screen reader says it anew when it is set.
  if (byId("count").textContent !== count) byId("count").textContent = count;
  fill("names", found.slice(0, MOST).map((name) => {
    const from = name.exporters.map((one) => `${one.cluster} (${one.ready} of ${one.endpoints})`).join(", ") || "nobody";
    const { import: here } = name;
    const imported = here ? `${here.type} ${here.ips.join(", ")} ${here.ports.join(", ")}` : "none";
    return el("tr", null, el("th", { scope: "row" }, el("a", { href: link(name) }, `${name.namespace}/${name.name}`)),
      cell(state(name.state)), cell(from), cell(imported));
  }));
}

// The stations of an endpoint's way, and which findings belong to each.
const COLUMNS = [
  ["This cluster", /^(Service|ServiceExport|endpoints here)$/],
  ["Ledger", /^(ledger|registry|cluster )/],
  ["Import", /^(ServiceImport|derived Service|EndpointSlices)/],
  ["DNS", /^DNS$/],
  ["Cloud Map", /^Cloud Map /],
];
const [WIDTH, HEIGHT, GAP, ROW] = [236, 52, 40, 68];

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function box(finding, x, y) {
  return el("g", null, el("title", null, `${finding.about}: ${WORD[finding.state]}. ${finding.text}`),
    el("rect", { class: `box ${CLASS[finding.state]}`, x, y, width: WIDTH, height: HEIGHT, rx: 6 }),
    el("text", { x: x + 10, y: y + 21 }, cut(`${MARK[finding.state]} ${finding.about}`, 26)),
    el("text", { class: "small", x: x + 10, y: y + 40 }, cut(finding.text, 32)));
}

// From left to right: the export here, the ledger of each cluster, the import, DNS. What Cloud Map has for ECS is below.
function picture(findings) {
  const columns = COLUMNS.map(([title, about]) => ({ title, findings: findings.filter((finding) => about.test(finding.about)) }));
  const registry = columns.pop();
  const shown = columns.filter((column) => column.findings.length > 0);
  const tall = Math.max(1, ...shown.map((column) => column.findings.length)) * ROW + 30;
  const [width, height] = [shown.length * (WIDTH + GAP) - GAP + 4, tall + registry.findings.length * ROW + (registry.findings.length ? 30 : 0)];
  const parts = [];
  shown.forEach((column, index) => {
    const x = index * (WIDTH + GAP) + 2;
    const y = 26 + HEIGHT / 2;
    parts.push(el("text", { class: "column", x, y: 16 }, column.title));
    column.findings.forEach((finding, row) => parts.push(box(finding, x, 26 + row * ROW)));
    if (index > 0) parts.push(el("path", { class: "arrow", d: `M${x - GAP + 6} ${y} H${x - 7}`, "marker-end": "url(#head)" }));
  });
  if (registry.findings.length) {
    parts.push(el("text", { class: "column", x: 2, y: tall + 16 }, "For ECS, Lambda and other readers"));
    registry.findings.forEach((finding, row) => parts.push(box(finding, 2, tall + 26 + row * ROW)));
  }
  const head = el("defs", null, el("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    el("path", { class: "arrow", d: "M0 0 L8 4 L0 8" })));
  return el("svg", { role: "img", "aria-label": "The way of the name, from its exporters to DNS. The table below says the same.", width, height,
    viewBox: `0 0 ${width} ${height}` }, head, ...parts);
}

async function showOne(namespace, name) {
  const report = await read(`/api/names/${namespace}/${name}`);
  if (location.hash !== link({ namespace, name })) return; // somebody went on meanwhile
  const first = report.findings.find((finding) => finding.state === "WRONG");
  byId("subject").textContent = report.subject;
  // Only now: until then, and if there is no answer, the findings of another name may be below.
  byId("one-title").textContent = `${name}.${namespace}.svc.clusterset.local`;
  const unseen = report.findings.some((finding) => finding.state === "not seen") ? " Not everything can be seen from here." : "";
  fill("one-answer", [first ? state("WRONG") : state("ok"), (first ? ` Held up at: ${first.about}.` : " Nothing is wrong.") + unseen]);
  fill("picture", [picture(report.findings)]);
  fill("findings", report.findings.map((finding) => el("tr", null, el("th", { scope: "row" }, finding.about), cell(state(finding.state)),
    cell(human(finding.ageSeconds), { class: "number" }),
    cell(el("span", null, finding.text, finding.remedy ? el("div", { class: "remedy" }, `→ ${finding.remedy}`) : null)))));
}

async function read(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(60000) });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function show() {
  const where = location.hash;
  const one = where.match(/^#\/names\/([^/]+)\/([^/]+)$/);
  try {
    if (one) {
      await showOne(one[1], one[2]);
    } else {
      last = await read("/api/overview");
      showAll();
    }
    // Meanwhile somebody may have gone on, and what was asked for then shows itself.
    if (location.hash !== where) return;
    [asked, late] = [Date.now(), null];
    byId("one").hidden = !one;
    byId("all").hidden = Boolean(one);
  } catch (error) {
    if (location.hash !== where) return;
    late = error.message;
  }
  fresh();
}

// How old what is shown is. It is said in words only when that changes something.
function fresh() {
  const there = byId("fresh");
  const text = late ? `No answer since ${asked ? new Date(asked).toLocaleTimeString() : "the beginning"}: ${late}`
    : asked ? `Live, as of ${new Date(asked).toLocaleTimeString()}` : "Reading …";
  there.className = late ? "late" : "";
  there.setAttribute("aria-live", late ? "polite" : "off");
  if (there.textContent !== text) there.textContent = text;
}

let turn = 0;
async function follow() {
  const mine = ++turn;
  while (mine === turn) {
    if (!document.hidden) await show();
    if (mine === turn) await new Promise((done) => setTimeout(done, EVERY));
  }
}

// The hash says what is shown: that of the link would lead back to all names.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
byId("search").addEventListener("input", showNames);
byId("only-wrong").addEventListener("change", showNames);
addEventListener("hashchange", () => { byId("main").focus({ preventScroll: true }); scrollTo(0, 0); follow(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) follow(); });
follow();
