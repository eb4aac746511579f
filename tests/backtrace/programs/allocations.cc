// Allocates at many places and depths, the same in each run: trees of maps, strings, sorted vectors, callbacks. Argument: rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

struct Node {
	std::map<std::string, std::unique_ptr<Node>> children;
	std::vector<int> values;
};

__attribute__((noinline)) static std::unique_ptr<Node> grow(int depth, unsigned seed) {
	auto node = std::make_unique<Node>();
	for (unsigned at = 0; depth > 0 && at < 3; at++) {
		std::string name = "a name that does not fit into the string itself " + std::to_string(seed * 3 + at);
		node->children[name] = grow(depth - 1, seed * 3 + at);
		node->values.push_back(static_cast<int>(at));
	}
	return node;
}

__attribute__((noinline)) static void visit(const Node &node, const std::function<void(const std::string &)> &report) {
	for (const auto &[name, child] : node.children) {
		report(name);
		visit(*child, report);
	}
}

__attribute__((noinline)) static size_t work(unsigned seed) {
	std::vector<std::string> names;
	std::ostringstream text;
	auto tree = grow(6, seed);
	visit(*tree, [&](const std::string &name) { names.push_back(name); });
	std::sort(names.begin(), names.end(), [](std::string one, std::string other) { return one > other; });
	for (const auto &name : names)
		text << name << ' ' << name.size() << '\n';
	return text.str().size();
}

int main(int, char **words) {
	size_t sum = 0;
	for (int round = 0; round < std::atoi(words[1]); round++)
		sum += work(static_cast<unsigned>(round));
	std::printf("%zu\n", sum);
}
