// What JavaScript programs do much of: functions that call one another, sorting, JSON, regular expressions, for ever.
'use strict';
function fibonacci(n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
function tree(depth) { return depth === 0 ? null : { left: tree(depth - 1), key: `node-${depth}`, right: tree(depth - 1) }; }
function count(node) { return node === null ? 0 : 1 + count(node.left) + count(node.right); }
for (let turn = 0; ; turn++) {
  const words = JSON.stringify(tree(12)).match(/node-\d+/g).map((word, i) => `${word}-${(i * 7919) % 1009}`);
  words.sort((one, other) => one.localeCompare(other));
  if (count(JSON.parse(JSON.stringify(tree(10)))) + fibonacci(22) + words.length === turn) console.log(turn);
}
