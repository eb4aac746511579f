// Exceptions through frames with and without destructors, until the time is over.
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#define KEPT __attribute__((noinline))
static volatile unsigned long done;
struct Guarded {
    KEPT ~Guarded() { done = done + 1; }
};
KEPT void throws(int n)
{
    done = done + 1;
    if (n % 3)
        throw std::runtime_error("a long text that is not stored in the object itself");
    throw n;
}
KEPT void with_cleanup(int n)
{
    Guarded guarded;
    throws(n);
    done = done + 1;
}
KEPT void recurses(int depth, int n)
{
    Guarded guarded;
    if (depth)
        recurses(depth - 1, n);
    else
        with_cleanup(n);
    done = done + 1;
}
KEPT void rethrows(int n)
{
    try {
        recurses(n % 6, n);
    } catch (const std::exception &) {
        done = done + 1;
        throw;
    }
}
KEPT void catches(int n)
{
    try {
        rethrows(n);
    } catch (int number) {
        done = done + number;
    } catch (const std::runtime_error &error) {
        done = done + error.what()[0];
    }
}
int main(int count, char **words)
{
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(count > 1 ? atof(words[1]) : 1);
    for (int n = 0; std::chrono::steady_clock::now() < end; n++)
        catches(n);
}
