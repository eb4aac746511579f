// For compilers: nested instantiations, whose stacks are deep, and library code to optimise.
#include <bits/stdc++.h>

#ifndef REPEAT
#define REPEAT 40
#endif

template <int Copy> struct Tag { int value = Copy; };

template <int Copy, int N> auto nest(auto inner) {
    if constexpr (N == 0)
        return inner(Tag<Copy>{});
    else
        return nest<Copy, N - 1>([=](auto tag) { return inner(tag) + N * tag.value; });
}

template <int Copy, int N> struct Chain : Chain<Copy, N - 1> {
    using Before = typename Chain<Copy, N - 1>::Before;
    std::array<Before, N> before{};
};
template <int Copy> struct Chain<Copy, 0> { using Before = Tag<Copy>; };

template <int Copy> struct Table {
    std::map<std::string, std::vector<std::variant<int, Tag<Copy>, std::string>>> rows;
    std::regex pattern{"([a-z]+)-([0-9]{1,3})" + std::to_string(Copy)};
    auto sorted() const {
        std::vector<std::pair<std::string, std::tuple<std::size_t, Tag<Copy>>>> all;
        for (auto &[name, row] : rows)
            if (std::smatch match; std::regex_match(name, match, pattern)) all.emplace_back(match[1], std::tuple{row.size(), Tag<Copy>{}});
        std::ranges::sort(all, [](auto &one, auto &other) { return std::get<0>(one.second) < std::get<0>(other.second); });
        return all;
    }
};

template <int Copy> int one() {
    Chain<Copy, 40> chain;
    return nest<Copy, 16>([](auto tag) { return tag.value; }) + Table<Copy>{}.sorted().size() + chain.before.size();
}

template <int... Copy> int all(std::integer_sequence<int, Copy...>) { return (one<Copy>() + ...); }

int main() { return all(std::make_integer_sequence<int, REPEAT>{}); }
