// Calls into a library, most of whose time is in PLT stubs.
unsigned plt_one(unsigned), plt_two(unsigned), plt_three(unsigned), plt_through(unsigned);

static volatile unsigned sum;

int main(void) {
    for (;;) {
        for (unsigned i = 0; i < 64; i++) sum += plt_one(plt_two(plt_three(i)));
        sum += plt_through(sum);
    }
}
