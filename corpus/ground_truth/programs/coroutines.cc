// C++20: generators within generators, and a task that is resumed by whoever runs it.
#include <chrono>
#include <coroutine>
#include <cstdlib>
#include <exception>
#define KEPT __attribute__((noinline))
static volatile unsigned long done;
struct Generator {
    struct promise_type {
        int value = 0;
        Generator get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(int number) { value = number; return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
};
KEPT int resumes(Generator &one) { one.handle.resume(); int value = one.handle.promise().value; done = done + value; return value; }
KEPT void leaf(int turns) { for (int i = 0; i < turns; i++) done = done + 1; }
KEPT Generator inner()
{
    for (int n = 0;; n = (n + 1) % 50) {
        leaf(n);
        co_yield n;
    }
}
KEPT Generator outer()
{
    Generator source = inner();
    for (;;) {
        int sum = resumes(source) + resumes(source);
        leaf(30);
        co_yield sum;
    }
}
KEPT void work(Generator &one) { resumes(one); leaf(10); done = done + 1; }
int main(int count, char **words)
{
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(count > 1 ? atof(words[1]) : 1);
    Generator first = outer(), second = inner();
    while (std::chrono::steady_clock::now() < end) {
        work(first);
        work(second);
    }
}
