// Closures, traits, iterators, panics that are caught: subjects.py says who calls whom.
use std::hint::black_box;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

trait Shape {
    fn area(&self, n: u64) -> u64;
}
struct Square;
struct Circle;
impl Shape for Square {
    #[inline(never)]
    fn area(&self, n: u64) -> u64 {
        leaf(n) + 1
    }
}
impl Shape for Circle {
    #[inline(never)]
    fn area(&self, n: u64) -> u64 {
        deep(n % 5) + 2
    }
}
#[inline(never)]
fn leaf(n: u64) -> u64 {
    let mut sum = 0;
    for i in 0..n % 64 + 100 {
        sum = black_box(sum + i);
    }
    sum
}
#[inline(never)]
fn deep(depth: u64) -> u64 {
    black_box(if depth > 0 { deep(depth - 1) } else { leaf(9) }) + 1
}
#[inline(never)]
fn by_trait(shape: &dyn Shape, n: u64) -> u64 {
    black_box(shape.area(n)) + 1
}
#[inline(never)]
fn panics(n: u64) -> u64 {
    if black_box(n) > 0 {
        panic!("on purpose");
    }
    1
}
#[inline(never)]
fn catches(n: u64) -> u64 {
    black_box(catch_unwind(|| panics(n)).unwrap_or(3)) + 1
}
#[inline(never)]
fn work(n: u64) -> u64 {
    let shapes: [&dyn Shape; 2] = [&Square, &Circle];
    let mut sum = by_trait(black_box(shapes[n as usize % 2]), n);
    if n % 8 == 0 {
        sum += catches(n + 1);
    }
    black_box(sum) + 1
}
fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(1.0, |word| word.parse().unwrap());
    std::panic::set_hook(Box::new(|_| {}));
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut n = 0;
    while Instant::now() < end {
        black_box(work(n));
        n += 1;
    }
}
