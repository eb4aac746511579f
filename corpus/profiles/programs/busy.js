// Keeps an engine for JavaScript busy: recursion, closures, sorting, strings, regular expressions, JSON, exceptions, maps.
function fibonacci(n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

function words(seed, count) {
  const found = [];
  for (let i = 0; i < count; i++) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    found.push(seed.toString(36));
  }
  return found;
}

function parse(text, at) {
  if (text[at] !== "(") return { value: text[at], next: at + 1 };
  const left = parse(text, at + 1), right = parse(text, left.next);
  return { value: [left.value, right.value], next: right.next + 1 };
}

function nested(depth) { return depth ? "(" + nested(depth - 1) + "x)" : "x"; }

function thrown(depth) {
  if (depth === 0) throw new Error("the innermost");
  return thrown(depth - 1) + 1;
}

function round(number) {
  const list = words(number + 1, 2000);
  list.sort((a, b) => (a < b ? -1 : a > b ? 1 : 0));
  const counts = new Map();
  for (const word of list) counts.set(word[0], (counts.get(word[0]) || 0) + 1);
  const text = JSON.stringify({ list, counts: [...counts] });
  const again = JSON.parse(text).list.map((word) => word.replace(/[0-9]+/g, (digits) => digits.length)).join(" ");
  let sum = fibonacci(16 + (number % 6)) + again.split(/\s+/).length + parse(nested(100), 0).next;
  try { thrown(60); } catch (error) { sum += error.stack.length; }
  const typed = new Float64Array(4000).map((_, i) => Math.sin(i + number));
  typed.sort();
  return sum + typed[7] + [1, 2, 3].map((one) => list.filter((word) => word.length % one === 0).length)[1];
}

if (typeof process !== "undefined") for (let number = 0; ; number++) round(number);
