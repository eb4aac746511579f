// Exceptions, RTTI, constructors, thread-local objects; as a program, a library (LIBRARY), its user (USER).
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>
#ifndef STATIC
#include <dlfcn.h>
#endif

#ifdef USER
int main() {
    void *library = dlopen("libanswers.so", RTLD_NOW);
    if (!library) return std::printf("%s\n", dlerror()), 1;
    auto answer = reinterpret_cast<int (*)()>(dlsym(library, "answer"));
    return answer ? answer() : 2;
}
#else
struct Counter {
    int value = 7;
    ~Counter() { std::printf("destroyed %d\n", value); }
};
static thread_local Counter counter;
static std::map<std::string, int> names{{"one", 1}, {"two", 2}};
struct Base { virtual ~Base() = default; };
struct Derived : Base {};
extern "C" {
int exported = 42;
static int twice(int n) { return n * 2; }
static int (*choose())(int) { return twice; }
int chosen(int) __attribute__((ifunc("choose")));
int answer();
}

__attribute__((noinline)) int deep(int n) {
    if (n == 0) return std::vector<int>(3).at(7);
    std::string kept(n, 'x');
    return deep(n - 1) + int(kept.size());
}

int answer() {
    try { deep(9); } catch (const std::out_of_range &) { counter.value += chosen(names["two"]); }
    try { throw Derived(); } catch (const Base &base) { std::printf("%s\n", typeid(base).name()); }
#ifndef STATIC
    Dl_info info;
    void *at = dlsym(RTLD_DEFAULT, "exported");
    if (!at && dladdr(reinterpret_cast<void *>(answer), &info))
        if (void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) at = dlsym(self, "exported");
    std::printf("exported: %s\n", at == &exported ? "right" : at ? "wrong" : "none");
#endif
    return std::printf("counted %d\n", counter.value) < 0;
}
#ifndef LIBRARY
int main() { return answer(); }
#endif
#endif
