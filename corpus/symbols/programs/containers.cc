// Standard containers and algorithms, which the compiler inlines into one another many levels deep.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace {

struct Shape {
    virtual ~Shape() = default;
    virtual double area() const = 0;
};

struct Circle final : Shape {
    explicit Circle(double r) : radius(r) {}
    double area() const override { return 3.14159 * radius * radius; }
    double radius;
};

struct Square final : Shape {
    explicit Square(double s) : side(s) {}
    double area() const override { return side * side; }
    double side;
};

template <typename T>
class Tree {
public:
    bool insert(T value) {
        std::unique_ptr<Node>* at = &root_;
        while (*at) {
            if (value == (*at)->value) return false;
            at = value < (*at)->value ? &(*at)->left : &(*at)->right;
        }
        *at = std::make_unique<Node>(std::move(value));
        return true;
    }
    template <typename F>
    void each(F&& f) const { walk(root_.get(), f); }

private:
    struct Node {
        explicit Node(T v) : value(std::move(v)) {}
        T value;
        std::unique_ptr<Node> left, right;
    };
    template <typename F>
    static void walk(const Node* node, F& f) {
        if (!node) return;
        walk(node->left.get(), f);
        f(node->value);
        walk(node->right.get(), f);
    }
    std::unique_ptr<Node> root_;
};

template <int N>
constexpr long power(long base) {
    if constexpr (N == 0) return 1;
    else return base * power<N - 1>(base);
}

std::string describe(const std::variant<int, double, std::string>& value) {
    return std::visit([](const auto& v) { std::ostringstream out; out << v; return out.str(); }, value);
}

template <typename Map>
long count_words(Map& words, const std::string& text) {
    std::istringstream in(text);
    for (std::string word; in >> word;) ++words[word];
    return std::accumulate(words.begin(), words.end(), 0L, [](long sum, const auto& one) { return sum + one.second; });
}

std::optional<std::string> first_match(const std::string& text) {
    static const std::regex pattern("([a-z]+)-([0-9]+)");
    std::smatch found;
    if (!std::regex_search(text, found, pattern)) return std::nullopt;
    return found[1].str() + found[2].str();
}

}  // namespace

int main(int argc, char** argv) {
    std::mt19937 random(argc);
    std::vector<long> numbers(1000);
    std::generate(numbers.begin(), numbers.end(), [&] { return long(random() % 10007); });
    std::sort(numbers.begin(), numbers.end(), std::greater<>());
    std::stable_sort(numbers.begin(), numbers.end(), [](long a, long b) { return a % 97 < b % 97; });
    Tree<long> tree;
    Tree<std::string> names;
    for (long number : numbers) {
        tree.insert(power<5>(number));
        names.insert(std::to_string(number));
    }
    long sum = 0;
    tree.each([&](long value) { sum += value; });
    names.each([&](const std::string& value) { sum += long(value.size()); });
    std::vector<std::unique_ptr<Shape>> shapes;
    for (int i = 0; i < 100; ++i) {
        if (random() % 2) shapes.push_back(std::make_unique<Circle>(i));
        else shapes.push_back(std::make_unique<Square>(i));
    }
    double area = 0;
    for (const auto& shape : shapes) area += shape->area();
    std::map<std::string, int> ordered;
    std::unordered_map<std::string, int> hashed;
    std::set<std::string> seen;
    for (int i = 0; i < argc; ++i) {
        seen.insert(argv[i]);
        sum += count_words(ordered, argv[i]) + count_words(hashed, argv[i]);
        if (auto match = first_match(argv[i])) seen.insert(*match);
    }
    std::cout << sum << ' ' << area << ' ' << seen.size() << ' ' << describe(3) << describe(2.5) << describe("text") << '\n';
    try {
        if (argc > 100) throw std::runtime_error("too many");
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
    }
    return 0;
}
