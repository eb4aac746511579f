"use strict";
// Names from packages only ever become text: nothing here makes markup of them.
const byId = (id) => document.getElementById(id);
const summary = JSON.parse(byId("summary").textContent);
const PAGE = 50, IN_DETAILS = 100;

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== undefined && child !== ""));
  return made;
}

async function unpacked(id) {
  const packed = atob(byId(id).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// --- Numbers ---------------------------------------------------------------------------------------------------------
const whole = new Intl.NumberFormat("en");
const number = (value) => whole.format(value);
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
function size(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; Math.abs(bytes) >= 999.5 && unit < units.length - 1; unit++) bytes /= 1000;
  return `${unit ? Number(bytes.toPrecision(3)) : bytes} ${units[unit]}`;
}
// Never rounded up to 100 %: what is not covered is to be seen.
function share(part, of) {
  if (!of) return "";
  if (part === of) return "100 %";
  return `${(Math.floor((1e5 * part) / of) / 1e3).toFixed(3)} %`;
}
const percent = (part, of) => (of ? `${((100 * part) / of).toFixed(1)} % of code` : "");
const ratio = (part, of) => (of && part ? (part / of).toFixed(2) : "");
const growth = (before, after) => (before && after ? `${after < before ? "" : "+"}${(100 * (after / before - 1)).toFixed(2)} %` : "");
const seconds = (value) => (value >= 100 ? `${number(Math.round(value))} s` : `${Number(value.toPrecision(3))} s`);
const pill = (outcome) => el("span", { class: `pill ${outcome.split(" ")[0]}` }, outcome);

// --- Head ------------------------------------------------------------------------------------------------------------
function head() {
  const { packages, files, run } = summary;
  const outcomes = (counted) => Object.entries(counted).map(([name, value]) => `${number(value)} ${name}`).join(" · ");
  const total = (counted) => Object.values(counted).reduce((sum, value) => sum + value, 0);
  const shipped = total(packages.outcomes), seen = total(files.outcomes);
  document.title = `SFrame in ${count(shipped, "package")}`;
  byId("title").textContent = document.title;
  const [rewritten, before, after] = packages.rewritten;
  const lede = [`${count(shipped, "package")} of ${size(packages.bytes)} contain ${count(seen, "ELF file")}; ${number(files.files)} of them get a section.`];
  if (files.code) lede.push(`The sections cover ${share(files.covered, files.code)} of ${size(files.code)} of code that has call frame information.`);
  if (files.ehFrame) lede.push(`Their size is ${ratio(files.section, files.ehFrame)} of that of .eh_frame and .eh_frame_hdr.`);
  if (rewritten) lede.push(`Packages grow by ${growth(before, after).replace("+", "")}.`);
  if (files.silent) lede.push(`Another ${size(files.silent)} of code have no call frame information.`);
  byId("lede").textContent = lede.join(" ");
  const names = { sframegen: "sframegen", mode: "mode", started: "begun", ended: "ended" };
  byId("run").textContent = Object.entries(names).filter(([key]) => run[key]).map(([key, name]) => `${name} ${run[key].replace(/^(\d{4}-\d\d-\d\d)T(\d\d:\d\d).*/, "$1 $2 UTC")}`).join(" · ");

  const used = Object.values(packages.steps).reduce((sum, value) => sum + value, 0);
  const complete = summary.coverage[0].files, counted = summary.coverage.reduce((sum, row) => sum + row.files, 0);
  const card = (title, value, ...notes) => el("div", { class: "card" }, el("span", { class: "over" }, title), el("b", {}, value), notes.filter(Boolean).map((note) => el("span", {}, note)));
  byId("cards").append(
    card("Packages", number(shipped), size(packages.bytes), outcomes(packages.outcomes)),
    card("ELF files", number(seen), outcomes(files.outcomes)),
    card("Coverage", share(files.covered, files.code) || "–", `${number(files.covered)} of ${number(files.code)} bytes of code with CFI`, counted ? `${number(complete)} of ${count(counted, "file")} wholly` : ""),
    card("Section to .eh_frame", ratio(files.section, files.ehFrame) || "–", `${size(files.section)} to ${size(files.ehFrame)}`, files.ratios.length ? `median of files ${files.ratios[1].toFixed(2)}` : ""),
    card("Growth", rewritten ? growth(before, after) : growth(files.fileBytes, files.newFileBytes) || "–", rewritten ? `${count(rewritten, "package")}, ${size(before)} to ${size(after)}` : files.newFileBytes ? "of ELF files" : "nothing was rewritten", rewritten && files.newFileBytes ? `ELF files ${growth(files.fileBytes, files.newFileBytes)}` : ""),
    card("Time for 1 GB", packages.bytes ? seconds((1e9 * used) / packages.bytes) : "–", `of packages, in one process; ${seconds(used)} in all`, packages.memory ? `at most ${size(packages.memory)} of memory for one` : ""),
  );
}

// --- Plots -----------------------------------------------------------------------------------------------------------
const CHARTS = {
  coverage: ["Coverage", "Files by the share of their code with CFI that the section covers. Bar lengths are on a square-root scale."],
  ratio: ["Section size", "How the sizes of section and .eh_frame + .eh_frame_hdr compare, once for files and once for their bytes."],
  ratioBySize: ["Section size by size of .eh_frame", "Small files pay for a header. The line is the median, the band has 80 % of the files."],
  growth: ["Growth", "ELF files with their section; packages as shipped, if they were rewritten. Small files grow most: new parts begin on pages of their own."],
  language: ["Section size by language", "Bar: 80 % of the files. Tick: the median. Dot: all bytes together."],
  compiler: ["Section size by compiler", "Those with the most code. Bar: 80 % of the files. Tick: the median. Dot: all bytes together."],
  leftOut: ["Left out", "Bytes of code whose CFI SFrame cannot express. Bar lengths are on a square-root scale."],
  noCfi: ["Executable bytes without CFI", "No call frame information describes them. Bar lengths are on a square-root scale."],
  time: ["Where the time goes", "Seconds of one process for 1 GB of packages of each kind."],
};
const drawn = [];

function chartConfig(width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const accent = colour("accent"), text = colour("text"), dim = colour("dim"), line = colour("line");
  const labelLimit = Math.round(width * 0.42);
  const mark = { color: accent, fill: accent }, stroke = { color: accent };
  return {
    background: "transparent", font: "system-ui, sans-serif", padding: 2, view: { stroke: null },
    axis: { labelColor: dim, titleColor: dim, titleFontWeight: 400, gridColor: line, domainColor: line, tickColor: line, labelLimit, labelFontSize: 12, titleFontSize: 12 },
    axisY: { labelColor: text },
    legend: { labelColor: text, titleColor: dim, titleFontWeight: 400, labelFontSize: 12, fillColor: colour("card") },
    range: { category: ["accent", "second", "third", "fourth"].map(colour) },
    bar: mark, text: { color: dim, fill: dim, fontSize: 12 }, rule: stroke, tick: { color: text }, line: stroke, point: mark, area: { color: accent },
  };
}

async function draw() {
  while (drawn.length) drawn.pop().finalize();
  const scroll = window.scrollY;
  const hosts = [...document.querySelectorAll(".chart")];
  await Promise.all(hosts.map(async (host) => {
    const made = await window.vegaEmbed(host, summary.charts[host.dataset.name], {
      ast: true, actions: false, renderer: "canvas", defaultStyle: false, config: chartConfig(host.clientWidth),
      tooltip: { disableDefaultStyle: true }, loader: { load: () => Promise.reject(new Error("nothing is loaded")) },
    });
    drawn.push(made);
  }));
  window.scrollTo(0, scroll);
}

async function plots() {
  for (const [name, [title, note]] of Object.entries(CHARTS)) {
    if (!summary.charts[name]) continue;
    byId("charts").append(el("figure", {}, el("figcaption", {}, el("h3", {}, title), el("p", {}, note)), el("div", { class: "chart", "data-name": name, role: "img", "aria-label": title })));
  }
  if (!byId("charts").children.length) byId("plots").hidden = true;
  const library = el("script");
  library.textContent = await unpacked("vega");
  document.head.append(library);
  await draw();
}

function theme() {
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (name) => { document.documentElement.dataset.theme = name; };
  apply(stored() || (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => { apply(dark.matches ? "dark" : "light"); draw(); });
  byId("theme").addEventListener("click", () => {
    apply(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* a page from a file may have no store */ }
    draw();
  });
}

// --- Tables ----------------------------------------------------------------------------------------------------------
// columns: [{ title, value(row), shown(row), numeric, minor, name }]. Sorts by value, shows what `shown` gives, or the value.
class Table {
  constructor(host, columns, rows, { search, filters = [], sort, paged = true, label }) {
    Object.assign(this, { columns, rows, search, paged, by: sort[0], down: sort[1], first: 0 });
    this.body = el("tbody");
    this.heads = columns.map((column, place) => el("th", { scope: "col", class: this.style(column) }, el("button", { type: "button", onclick: () => this.sort(place) }, column.title)));
    const table = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, this.heads)), this.body);
    if (search) {
      this.input = el("input", { type: "search", placeholder: "Search: words that all occur", "aria-label": `Search ${label}`, spellcheck: "false" });
      this.input.addEventListener("input", () => this.update());
      this.status = el("span", { role: "status" });
      this.selects = filters.map(({ title, value }) => {
        const names = [...new Set(rows.map(value))].filter(Boolean).sort();
        const select = el("select", { "aria-label": title }, el("option", { value: "" }, `any ${title}`), names.map((name) => el("option", { value: name }, name)));
        select.addEventListener("change", () => this.update());
        return { select, value };
      });
      host.append(el("div", { class: "tools" }, this.input, this.selects.map(({ select }) => select), this.status));
    }
    host.append(el("div", { class: "box" }, table));
    if (paged) {
      this.back = el("button", { type: "button", onclick: () => this.turn(-PAGE) }, "‹ Previous");
      this.on = el("button", { type: "button", onclick: () => this.turn(PAGE) }, "Next ›");
      this.where = el("span");
      host.append(el("div", { class: "pages" }, this.back, this.on, this.where));
    }
    this.update();
  }

  style({ numeric, name, wide, minor }) {
    return [numeric && "n", name && "name", wide && "wide", minor && "minor"].filter(Boolean).join(" ") || undefined;
  }

  sort(place) {
    this.down = place === this.by ? !this.down : Boolean(this.columns[place].numeric);
    this.by = place;
    this.update();
  }

  find(text) {
    this.input.value = text;
    this.selects.forEach(({ select }) => { select.value = ""; });
    this.update();
  }

  turn(rows) {
    this.first += rows;
    this.render();
  }

  update() {
    const words = this.search ? this.input.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    const wanted = (this.selects || []).filter(({ select }) => select.value);
    const fits = (row) => wanted.every(({ select, value }) => value(row) === select.value) && (!words.length || ((text) => words.every((word) => text.includes(word)))(this.search(row)));
    this.shown = words.length || wanted.length ? this.rows.filter(fits) : [...this.rows];
    const { value, numeric } = this.columns[this.by], sign = this.down ? -1 : 1;
    // What has no number comes last in either direction.
    const compare = numeric
      ? (a, b) => (Number.isNaN(a[0]) - Number.isNaN(b[0])) || sign * (a[0] - b[0])
      : (a, b) => sign * (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0);
    this.shown = this.shown.map((row) => [numeric ? Number(value(row) ?? NaN) : value(row), row]).sort(compare).map(([, row]) => row);
    this.first = 0;
    this.render();
  }

  render() {
    const { columns, shown, first, paged } = this;
    this.heads.forEach((cell, place) => cell.setAttribute("aria-sort", place !== this.by ? "none" : this.down ? "descending" : "ascending"));
    const page = paged ? shown.slice(first, first + PAGE) : shown;
    this.body.replaceChildren(...page.map((row) => el("tr", {}, columns.map((column) => el("td", { class: this.style(column) }, (column.shown || column.value)(row) ?? "")))));
    if (this.status) this.status.textContent = shown.length === this.rows.length ? number(shown.length) : `${number(shown.length)} of ${number(this.rows.length)}`;
    if (!paged) return;
    this.back.disabled = !first;
    this.on.disabled = first + PAGE >= shown.length;
    this.where.textContent = shown.length ? `${number(first + 1)} to ${number(Math.min(first + PAGE, shown.length))} of ${number(shown.length)}` : "none";
  }
}

const proportion = (part, of) => (of && part ? part / of : NaN);

// --- Groups, reasons, extremes ---------------------------------------------------------------------------------------
function groups() {
  const names = { language: "Language", compiler: "Compiler", machine: "Machine", kind: "Kind of package" };
  const show = (chosen) => {
    for (const tab of byId("group-tabs").children) tab.setAttribute("aria-selected", tab.dataset.name === chosen);
    const rows = summary.groups[chosen], most = Math.max(...rows.map((row) => row.code), 1);
    const bar = (row) => { const meter = el("span", { class: "meter" }); meter.style.width = `${(100 * row.code) / most}%`; return meter; };
    byId("group-table").replaceChildren();
    new Table(byId("group-table"), [
      { title: names[chosen], value: (row) => row.name, name: true },
      { title: "files", value: (row) => row.seen, shown: (row) => number(row.seen), numeric: true, minor: true },
      { title: "with section", value: (row) => row.files, shown: (row) => number(row.files), numeric: true, minor: true },
      { title: "code with CFI", value: (row) => row.code, shown: (row) => [size(row.code), bar(row)], numeric: true },
      { title: "covered", value: (row) => proportion(row.covered, row.code), shown: (row) => share(row.covered, row.code), numeric: true },
      { title: "left out", value: (row) => row.code - row.covered, shown: (row) => number(row.code - row.covered), numeric: true, minor: true },
      { title: "without CFI", value: (row) => proportion(row.silent, row.silent + row.code), shown: (row) => [size(row.silent), el("span", { class: "sub" }, percent(row.silent, row.silent + row.code))], numeric: true, minor: true },
      { title: "section", value: (row) => row.section, shown: (row) => size(row.section), numeric: true, minor: true },
      { title: ".eh_frame + hdr", value: (row) => row.ehFrame, shown: (row) => size(row.ehFrame), numeric: true, minor: true },
      { title: "ratio", value: (row) => proportion(row.section, row.ehFrame), shown: (row) => ratio(row.section, row.ehFrame), numeric: true },
      { title: "10 % · median · 90 %", value: (row) => row.ratios[1], shown: (row) => row.ratios.map((value) => value.toFixed(2)).join(" · "), numeric: true, minor: true },
      { title: "growth of files", value: (row) => proportion(row.newFileBytes, row.fileBytes), shown: (row) => growth(row.fileBytes, row.newFileBytes), numeric: true },
      { title: "seconds", value: (row) => row.seconds, shown: (row) => number(row.seconds), numeric: true, minor: true },
    ], rows, { sort: [3, true], paged: false, label: names[chosen] });
  };
  for (const [name, title] of Object.entries(names)) byId("group-tabs").append(el("button", { type: "button", role: "tab", "data-name": name, onclick: () => show(name) }, title));
  show("language");
}

function reasons() {
  if (!summary.reasons.length) {
    byId("reasons").append(el("p", {}, "None: every file has a section."));
    return;
  }
  const link = (row) => row.examples.map(([place, name]) => el("span", { class: "sub" }, el("a", { href: `#${row.of === "file" ? "f" : "p"}/${place}` }, name)));
  new Table(byId("reasons"), [
    { title: "", value: (row) => row.of },
    { title: "outcome", value: (row) => row.outcome, shown: (row) => pill(row.outcome) },
    { title: "reason", value: (row) => row.reason, shown: (row) => row.reason || "no call frame information", wide: true },
    { title: "number", value: (row) => row.number, shown: (row) => number(row.number), numeric: true },
    { title: "bytes", value: (row) => row.bytes, shown: (row) => size(row.bytes), numeric: true },
    { title: "such as", value: (row) => row.examples[0]?.[1], shown: link, wide: true, minor: true },
  ], summary.reasons, { sort: [3, true], paged: false, label: "Reasons" });
}

function extremes() {
  const lists = {
    slowestPackages: ["Slowest packages", seconds, "p"], largestPackages: ["Largest packages", size, "p"], slowest: ["Slowest files", seconds, "f"],
    leastCovered: ["Least covered", (value) => `${(Math.floor(-value * 1000) / 1000).toFixed(3)} %`, "f"],
    highestRatio: ["Highest ratio to .eh_frame", (value) => value.toFixed(2), "f"], largestSections: ["Largest sections", size, "f"], mostCode: ["Most code with CFI", size, "f"],
  };
  for (const [name, [title, text, kind]] of Object.entries(lists)) {
    const rows = summary.extremes[name];
    if (!rows.length) continue;
    const line = ([value, place, pack, path]) => el("tr", {}, el("td", { class: "name" }, el("a", { href: `#${kind}/${place}` }, path ? path.split("/").pop() || path : pack), path ? el("span", { class: "sub" }, pack) : ""), el("td", { class: "n" }, text(value)));
    byId("extreme-lists").append(el("figure", {}, el("figcaption", {}, el("h3", {}, title)), el("table", { "aria-label": title }, el("tbody", {}, rows.map(line)))));
  }
}

// --- Packages and files ----------------------------------------------------------------------------------------------
// A row is its place in the columns.
async function rowsOf(id) {
  const columns = JSON.parse(await unpacked(id));
  columns.places = Array.from({ length: (columns.path || columns.name).length }, (_, place) => place);
  return columns;
}

function explorer(packages, files) {
  const text = (columns, name) => (place) => columns.texts[columns[name][place]];
  const plain = (columns, name) => (place) => columns[name][place];
  const bytes = (columns, name, title, more) => ({ title, value: plain(columns, name), shown: (place) => (columns[name][place] ? size(columns[name][place]) : ""), numeric: true, ...more });
  const used = (place) => packages.fetching[place] + packages.reading[place] + packages.converting[place] + packages.writing[place];
  const packageOf = (place) => (files.package[place] < 0 ? "" : packages.name[files.package[place]]);
  const ehFrame = (place) => files.ehFrame[place] + files.ehFrameHdr[place];
  const link = (kind, place, name) => el("a", { href: `#${kind}/${place}` }, name);
  const covered = (columns) => ({ title: "covered", value: (place) => proportion(columns.covered[place], columns.code[place]), shown: (place) => share(columns.covered[place], columns.code[place]), numeric: true });
  const compared = (columns, of) => ({ title: "ratio", value: (place) => proportion(columns.section[place], of(place)), shown: (place) => ratio(columns.section[place], of(place)), numeric: true });
  const grown = (columns, more) => ({ title: "growth", value: (place) => proportion(columns.newBytes[place], columns.bytes[place]), shown: (place) => growth(columns.bytes[place], columns.newBytes[place]), numeric: true, ...more });
  const outcome = (columns) => ({ title: "outcome", value: text(columns, "outcome"), shown: (place) => pill(text(columns, "outcome")(place)), minor: true });

  new Table(byId("package-table"), [
    { title: "package", value: plain(packages, "name"), shown: (place) => link("p", place, packages.name[place]), name: true },
    outcome(packages),
    { title: "ELF files", value: plain(packages, "elfFiles"), shown: (place) => number(packages.elfFiles[place]), numeric: true, minor: true },
    bytes(packages, "bytes", "size", { minor: true }), bytes(packages, "code", "code with CFI"), covered(packages),
    bytes(packages, "section", "section", { minor: true }), compared(packages, (place) => packages.ehFrame[place]), grown(packages),
    { title: "seconds", value: used, shown: (place) => used(place).toFixed(2), numeric: true, minor: true },
  ], packages.places, {
    sort: [4, true], label: "Packages", search: (place) => `${packages.name[place]} ${text(packages, "kind")(place)} ${text(packages, "reason")(place)}`.toLowerCase(),
    filters: [{ title: "kind", value: text(packages, "kind") }, { title: "outcome", value: text(packages, "outcome") }],
  });

  const fileTable = new Table(byId("file-table"), [
    { title: "file", value: plain(files, "path"), shown: (place) => [link("f", files.number[place], files.path[place]), el("span", { class: "sub" }, packageOf(place))], name: true },
    outcome(files),
    { title: "language", value: text(files, "language"), minor: true }, { title: "compiler", value: text(files, "compiler"), minor: true },
    bytes(files, "bytes", "size", { minor: true }), bytes(files, "code", "code with CFI"), covered(files),
    { title: "left out", value: (place) => files.code[place] - files.covered[place], shown: (place) => number(files.code[place] - files.covered[place]), numeric: true, minor: true },
    bytes(files, "section", "section", { minor: true }), compared(files, ehFrame), grown(files, { minor: true }),
    { title: "seconds", value: plain(files, "seconds"), shown: (place) => files.seconds[place].toFixed(3), numeric: true, minor: true },
  ], files.places, {
    sort: [5, true], label: "ELF files",
    search: (place) => `${files.path[place]} ${packageOf(place)} ${text(files, "reason")(place)} ${text(files, "language")(place)} ${text(files, "compiler")(place)} ${text(files, "machine")(place)}`.toLowerCase(),
    filters: ["outcome", "machine", "language", "compiler"].map((name) => ({ title: name, value: text(files, name) })),
  });
  const total = Object.values(summary.files.outcomes).reduce((sum, value) => sum + value, 0);
  if (files.places.length < total) byId("file-table").append(el("p", { class: "note" }, `Here are the ${number(files.places.length)} files with the most code, of ${number(total)}: files.csv has all.`));

  const dialog = byId("details");
  const facts = (pairs) => el("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const counts = (title, pairs, texts) => {
    if (!pairs.length) return "";
    const rows = [];
    for (let at = 0; at < pairs.length; at += 2) rows.push([`${texts[pairs[at]]}`, `${number(pairs[at + 1])} bytes`]);
    return [el("h3", {}, title), facts(rows)];
  };
  const warnings = (columns, place) => (columns.warnings[place].length ? [el("h3", {}, "Warnings"), el("ul", {}, columns.warnings[place].map((of) => el("li", {}, columns.texts[of])))] : "");

  function packageDetails(place) {
    const its = files.places.filter((file) => files.package[file] === place).sort((a, b) => files.code[b] - files.code[a]);
    const step = (name, label) => (packages[name][place] ? `${label} ${seconds(packages[name][place])}` : "");
    const rows = its.slice(0, IN_DETAILS).map((file) => el("tr", {}, el("td", { class: "name" }, link("f", files.number[file], files.path[file])), el("td", { class: "n" }, size(files.code[file])), el("td", { class: "n" }, share(files.covered[file], files.code[file])), el("td", { class: "n" }, ratio(files.section[file], ehFrame(file))), el("td", {}, pill(text(files, "outcome")(file)))));
    const all = el("button", { type: "button", onclick: () => { dialog.close(); fileTable.find(packages.name[place]); byId("files").scrollIntoView(); } }, "Show in the table of files");
    return [packages.name[place], [
      facts([
        ["outcome", [pill(text(packages, "outcome")(place)), " ", text(packages, "reason")(place)]],
        ["kind", text(packages, "kind")(place)],
        ["size", `${number(packages.bytes[place])} bytes; unpacked ${number(packages.unpacked[place])} bytes, ${packages.entries[place] === 1 ? "1 entry" : `${number(packages.entries[place])} entries`}`],
        ["rewritten", packages.newBytes[place] ? `${number(packages.newBytes[place])} bytes, ${growth(packages.bytes[place], packages.newBytes[place])}` : ""],
        ["ELF files", `${number(packages.elfFiles[place])}, ${number(packages.withSection[place])} with a section`],
        ["coverage", packages.code[place] ? `${share(packages.covered[place], packages.code[place])}: ${number(packages.covered[place])} of ${number(packages.code[place])} bytes of code with CFI` : ""],
        ["sections", packages.section[place] ? `${number(packages.section[place])} bytes, ${ratio(packages.section[place], packages.ehFrame[place])} of .eh_frame + .eh_frame_hdr` : ""],
        ["time", [step("fetching", "fetch"), step("reading", "unpack"), step("converting", "convert"), step("writing", "pack")].filter(Boolean).join(", ")],
        ["memory", packages.memory[place] ? size(packages.memory[place]) : ""],
      ]),
      warnings(packages, place),
      rows.length ? [el("h3", {}, "ELF files"), el("div", { class: "box" }, el("table", {}, el("thead", {}, el("tr", {}, ["file", "code", "covered", "ratio", "outcome"].map((title, at) => el("th", { class: at && at < 4 ? "n" : undefined }, title)))), el("tbody", {}, rows))), el("p", {}), all] : "",
    ]];
  }

  function fileDetails(place) {
    const home = files.package[place];
    return [files.path[place], [
      facts([
        ["package", home < 0 ? "" : link("p", home, packages.name[home])],
        ["outcome", [pill(text(files, "outcome")(place)), " ", text(files, "reason")(place)]],
        ["file", [text(files, "machine")(place), text(files, "type")(place), `${number(files.bytes[place])} bytes`].filter(Boolean).join(", ")],
        ["compiler", `${text(files, "compiler")(place)} ${files.version[place] && text(files, "version")(place) ? `(${text(files, "version")(place)})` : ""}`],
        ["language", text(files, "language")(place)],
        ["with section", files.newBytes[place] ? `${number(files.newBytes[place])} bytes, ${growth(files.bytes[place], files.newBytes[place])}` : ""],
        ["coverage", files.code[place] ? `${share(files.covered[place], files.code[place])}: ${number(files.covered[place])} of ${number(files.code[place])} bytes of code with CFI; ${number(files.executable[place])} executable bytes` : ""],
        ["functions", files.functions[place] ? `${number(files.functionsCovered[place])} of ${number(files.functions[place])} wholly, ${number(files.rows[place])} rows` : ""],
        ["section", files.section[place] ? `${number(files.section[place])} bytes${files.stored[place] && files.stored[place] !== files.section[place] ? `, ${number(files.stored[place])} in the file` : ""}` : ""],
        [".eh_frame + .eh_frame_hdr", ehFrame(place) ? `${number(files.ehFrame[place])} + ${number(files.ehFrameHdr[place])} bytes; ratio ${ratio(files.section[place], ehFrame(place)) || "none"}` : ""],
        ["time", seconds(files.seconds[place])],
      ]),
      counts("Left out", files.leftOut[place], files.texts), counts("Executable bytes without CFI", files.noCfi[place], files.texts), warnings(files, place),
    ]];
  }

  let fileAt;
  function open() {
    const [, kind, id] = /^#([pf])\/(\d+)$/.exec(location.hash) || [];
    if (!kind) { dialog.close(); return; }
    fileAt ||= new Map(files.places.map((place) => [files.number[place], place]));
    const place = kind === "p" ? Number(id) : fileAt.get(Number(id));
    const there = kind === "p" ? place < packages.places.length : place !== undefined;
    const [title, body] = !there ? ["Not in this page", [el("p", {}, "files.csv has all files.")]] : kind === "p" ? packageDetails(place) : fileDetails(place);
    byId("details-title").textContent = title;
    byId("details-body").replaceChildren(...[body].flat(3).filter((part) => part !== ""));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }
  dialog.addEventListener("close", () => { if (/^#[pf]\//.test(location.hash)) history.replaceState(null, "", location.pathname + location.search); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  window.addEventListener("hashchange", open);
  open();
}

async function main() {
  theme();
  head();
  groups();
  reasons();
  extremes();
  const [packages, files] = await Promise.all([rowsOf("package-rows"), rowsOf("file-rows")]);
  explorer(packages, files);
  await plots();
  document.documentElement.dataset.ready = "yes";
}
main();
