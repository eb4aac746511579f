"use strict";
(() => {
  const ROW = 18, PAD = 4, MIN_PIXELS = 1, MAX_TEXT = 600, LEGEND = 24, KERNEL_HUE = 28, GOLDEN_ANGLE = 137.508;
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const view = $("view"), graph = $("graph"), space = $("space"), search = $("search");
  const pen = graph.getContext("2d");

  // Nodes in preorder: depth, frame, samples. A node's subtree is [node, last[node]).
  const count = data.depths.length;
  const depth = Int32Array.from(data.depths), frame = Int32Array.from(data.frames), samples = Float64Array.from(data.samples);
  const start = new Float64Array(count), own = Float64Array.from(samples), parent = new Int32Array(count).fill(-1);
  const last = new Int32Array(count).fill(count);
  const levels = [];
  {
    const path = [], filled = [];
    for (let node = 0; node < count; node++) {
      const at = depth[node];
      for (let level = at; level < path.length; level++) last[path[level]] = node;
      path.length = at;
      if (at) {
        parent[node] = path[at - 1];
        start[node] = filled[at - 1];
        filled[at - 1] += samples[node];
        own[parent[node]] -= samples[node];
      }
      path.push(node);
      filled.length = at;
      filled.push(start[node]);
      (levels[at] ||= []).push(node);
    }
  }
  const total = count ? samples[0] : 0;

  const objectOf = (node) => data.objects[data.frameObjects[frame[node]]];
  const labelOf = (node) => data.labels[frame[node]];
  const ownOfObjects = new Map();
  for (let node = 0; node < count; node++) {
    if (own[node]) ownOfObjects.set(objectOf(node), (ownOfObjects.get(objectOf(node)) || 0) + own[node]);
  }
  const ranked = [...ownOfObjects].filter(([name]) => name).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const hues = new Map();
  const hueOf = (name) => {
    if (!hues.has(name)) hues.set(name, name === "[kernel]" ? KERNEL_HUE : (200 + hues.size * GOLDEN_ANGLE) % 360);
    return hues.get(name);
  };
  for (const [name] of ranked) hueOf(name);

  let zoomed = 0, selected = -1, icicle = false, matches = null, dark = false, queued = false;

  const media = matchMedia("(prefers-color-scheme: dark)");
  const readTheme = () => {
    dark = media.matches;
    recolour();
    legend();
    redraw();
  };
  const percent = (part, whole) => {
    const share = whole ? (100 * part) / whole : 0;
    return share.toFixed((share > 0 && share < 0.05) || (share >= 99.95 && share < 100) ? 2 : 1) + " %";
  };
  const shortened = (text) => (text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) + "…" : text);
  const number = (value) => value.toLocaleString("en");
  const amount = (value) => data.unit === "microseconds" ? `${number(value / 1e6)} s` : `${number(value)} samples`;

  let colours = []; // by frame
  const recolour = () => {
    colours = data.labels.map((_, at) => {
      const name = data.objects[data.frameObjects[at]];
      if (matches && matches[at]) return dark ? "#d0259f" : "#ff5fd2";
      if (!name) return dark ? "#3f3f47" : "#d9d9de";
      return colourOf(name, data.guessed[at] || matches);
    });
  };
  const colourOf = (name, pale) => `hsl(${hueOf(name).toFixed(0)} ${pale ? 18 : 58}% ${dark ? 33 : 72}%)`;

  const height = () => Math.max(view.clientHeight, levels.length * ROW);
  const topOf = (level) => (icicle ? level * ROW : height() - (level + 1) * ROW);

  // The first node of a level that ends after a sample.
  const first = (nodes, sample) => {
    let low = 0, high = nodes.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[nodes[middle]] + samples[nodes[middle]] > sample) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  const draw = () => {
    queued = false;
    const width = view.clientWidth, tall = view.clientHeight, ratio = devicePixelRatio || 1;
    if (graph.width !== Math.round(width * ratio) || graph.height !== Math.round(tall * ratio)) {
      graph.width = Math.round(width * ratio);
      graph.height = Math.round(tall * ratio);
      graph.style.width = `${width}px`;
      graph.style.height = `${tall}px`;
    }
    space.style.height = `${height() - tall}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, tall);
    if (!count) return;
    pen.font = "12px ui-monospace, monospace";
    pen.textBaseline = "middle";
    const letter = pen.measureText("0").width, ink = dark ? "#f4f4f8" : "#18181b";
    const from = start[zoomed], scale = width / samples[zoomed];
    for (let level = 0; level < levels.length; level++) {
      const y = topOf(level) - view.scrollTop;
      if (y + ROW < 0 || y > tall) continue;
      const nodes = levels[level];
      let at = first(nodes, from);
      while (at < nodes.length && start[nodes[at]] < from + samples[zoomed]) {
        const node = nodes[at], x = Math.max(0, (start[node] - from) * scale);
        const right = Math.min(width, (start[node] + samples[node] - from) * scale);
        if (right - x < MIN_PIXELS) {
          const next = (Math.floor(x / MIN_PIXELS) + 1) * MIN_PIXELS;
          pen.fillStyle = colours[frame[node]];
          pen.fillRect(x, y, MIN_PIXELS, ROW - 1);
          at = Math.max(at + 1, first(nodes, from + next / scale));
          continue;
        }
        pen.fillStyle = colours[frame[node]];
        pen.globalAlpha = node < zoomed && last[node] > zoomed ? 0.55 : 1;
        pen.fillRect(x, y, Math.max(right - x - (right - x > 2 ? 0.6 : 0), MIN_PIXELS), ROW - 1);
        pen.globalAlpha = 1;
        const letters = Math.floor((right - x - 2 * PAD) / letter);
        if (letters > 2) {
          const text = labelOf(node);
          pen.fillStyle = ink;
          pen.fillText(text.length > letters ? text.slice(0, letters - 1) + "…" : text, x + PAD, y + ROW / 2);
        }
        if (node === selected) {
          pen.strokeStyle = ink;
          pen.lineWidth = 2;
          pen.strokeRect(x + 1, y + 1, Math.max(right - x - 2, 1), ROW - 3);
        }
        at++;
      }
    }
  };
  const redraw = () => {
    if (!queued) requestAnimationFrame(draw);
    queued = true;
  };

  const nodeAt = (event) => {
    const box = graph.getBoundingClientRect(), y = event.clientY - box.top + view.scrollTop;
    const level = Math.floor(icicle ? y / ROW : (height() - y) / ROW);
    if (!levels[level]) return -1;
    const sample = start[zoomed] + ((event.clientX - box.left) / view.clientWidth) * samples[zoomed];
    const node = levels[level][first(levels[level], sample)];
    return node !== undefined && start[node] <= sample ? node : -1;
  };
  const facts = (node) => {
    const parts = [`${amount(samples[node])}, ${percent(samples[node], total)}`];
    if (own[node]) parts.push(`itself ${number(own[node])}, ${percent(own[node], total)}`);
    if (zoomed) parts.push(`${percent(samples[node], samples[zoomed])} of the zoomed frame`);
    return parts.join("; ");
  };
  const describe = (node) => {
    const path = data.paths[data.framePaths[frame[node]]];
    return `${shortened(labelOf(node))}${path ? ` (${shortened(path)})` : ""}: ${facts(node)}`;
  };
  const hover = (event) => {
    const node = nodeAt(event);
    if (node >= 0) $("status").textContent = describe(node);
  };

  const select = (node) => {
    selected = node;
    $("status").textContent = node < 0 ? "" : describe(node);
    if (node >= 0) {
      const y = topOf(depth[node]);
      if (y < view.scrollTop) view.scrollTop = y;
      else if (y + ROW > view.scrollTop + view.clientHeight) view.scrollTop = y + ROW - view.clientHeight;
    }
    redraw();
  };
  const zoom = (node) => {
    zoomed = Math.max(node, 0);
    $("reset").disabled = !zoomed;
    select(node);
    share();
  };
  const siblings = (node, step) => {
    const nodes = levels[depth[node]];
    const at = first(nodes, start[node]) + step;
    const found = nodes[at];
    const inside = found !== undefined && found >= zoomed && found < last[zoomed];
    return inside ? found : node;
  };

  const share = () => {
    if (!matches) {
      $("matched").textContent = "";
      return;
    }
    let found = 0;
    for (let node = zoomed; node < last[zoomed]; ) {
      if (matches[frame[node]]) {
        found += samples[node];
        node = last[node];
      } else node++;
    }
    $("matched").textContent = `matched: ${percent(found, samples[zoomed])}`;
  };
  const find = () => {
    const text = search.value;
    let pattern = null, asText = false;
    if (text) {
      try {
        pattern = new RegExp(text, "i");
      } catch {
        pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
        asText = true;
      }
    }
    matches = pattern && data.labels.map((label, at) => pattern.test(label) || pattern.test(data.objects[data.frameObjects[at]]));
    if (count) share();
    if (asText) $("matched").textContent += " (not a regular expression: searched as text)";
    recolour();
    redraw();
  };

  const legend = () => {
    const entries = ranked.slice(0, LEGEND).map(([name, value]) => {
      const item = document.createElement("li"), button = document.createElement("button");
      const sample = document.createElement("canvas"), text = document.createElement("span");
      sample.width = sample.height = 12;
      const ink = sample.getContext("2d");
      ink.fillStyle = colourOf(name, false);
      ink.fillRect(0, 0, 12, 12);
      text.textContent = `${name} ${percent(value, total)}`;
      button.type = "button";
      button.title = `Search ${shortened(name)}`;
      button.append(sample, text);
      button.addEventListener("click", () => {
        search.value = `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
        find();
      });
      item.append(button);
      return item;
    });
    $("legend").replaceChildren(...entries);
  };

  const flip = () => {
    icicle = !icicle;
    view.scrollTop = icicle ? 0 : height();
    redraw();
  };
  const keys = {
    Enter: () => selected >= 0 && zoom(selected),
    Escape: () => (matches ? ((search.value = ""), find()) : zoom(zoomed ? parent[zoomed] : 0)),
    Home: () => zoom(0),
    f: flip,
    ArrowLeft: () => select(siblings(selected, -1)),
    ArrowRight: () => select(siblings(selected, 1)),
  };
  const outwards = () => select(parent[selected] >= 0 ? parent[selected] : selected);
  const inwards = () => {
    let best = -1;
    for (let node = selected + 1; node < last[selected]; node = last[node]) {
      if (best < 0 || samples[node] > samples[best]) best = node;
    }
    if (best >= 0) select(best);
  };

  $("title").textContent = data.title;
  document.title = data.title;
  $("summary").textContent = data.notes[0] || "";
  $("notes").replaceChildren(...data.notes.slice(1).map((note) => {
    const item = document.createElement("li");
    item.textContent = note;
    return item;
  }));
  $("reset").disabled = true;
  $("reset").addEventListener("click", () => count && zoom(0));
  $("flip").addEventListener("click", flip);
  search.addEventListener("input", find);
  view.addEventListener("scroll", redraw);
  graph.addEventListener("mousemove", hover);
  graph.addEventListener("click", (event) => {
    const node = nodeAt(event);
    if (node >= 0) zoom(node);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
    if (document.activeElement === search) {
      if (event.key === "Escape") graph.focus();
      else return;
    } else if (event.key === "/") {
      event.preventDefault();
      search.focus();
      search.select();
      return;
    }
    if (document.activeElement instanceof HTMLButtonElement && event.key === "Enter") return;
    if (selected < 0 && event.key.startsWith("Arrow")) {
      event.preventDefault();
      select(zoomed);
      return;
    }
    const action = keys[event.key] || { ArrowUp: icicle ? outwards : inwards, ArrowDown: icicle ? inwards : outwards }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  media.addEventListener("change", readTheme);
  new ResizeObserver(() => {
    const bottom = view.scrollTop + view.clientHeight >= view.scrollHeight - ROW;
    draw();
    if (!icicle && bottom) view.scrollTop = height();
  }).observe(view);
  readTheme();
  draw();
  view.scrollTop = height();
})();
