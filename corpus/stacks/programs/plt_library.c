// So little that calling it takes longer.
unsigned plt_one(unsigned a) { return a + 1; }
unsigned plt_two(unsigned a) { return a ^ 3; }
unsigned plt_three(unsigned a) { return a - 5; }
unsigned plt_through(unsigned a) { return plt_one(plt_two(a)) + 1; }
