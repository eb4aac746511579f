#include <bits/stdc++.h>

template <int N> struct Table {
    std::map<std::string, std::vector<std::variant<int, double, std::string>>> rows;
    std::regex pattern{"([a-z]+)-([0-9]{1,3})" + std::to_string(N)};
    auto sorted() const {
        std::vector<std::pair<std::string, std::size_t>> all;
        for (auto &[name, row] : rows)
            if (std::smatch match; std::regex_match(name, match, pattern)) all.emplace_back(match[1], row.size() + N);
        std::ranges::sort(all, [](auto &one, auto &other) { return one.second % (N + 1) < other.second % (N + 2); });
        return all;
    }
};

template <int... N> std::size_t all(std::integer_sequence<int, N...>) { return (Table<N>{}.sorted().size() + ...); }

int main() {
    std::unordered_map<std::string, std::function<std::future<double>(std::span<const double>)>> work;
    work["sum"] = [](auto values) { return std::async([=] { return std::accumulate(values.begin(), values.end(), 0.0); }); };
    return static_cast<int>(all(std::make_integer_sequence<int, 24>{}) + work.size());
}
