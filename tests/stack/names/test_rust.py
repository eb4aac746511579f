"""Rust's v0 names: each production of the grammar, and names that are none, or too much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sframegen.stack.names import rust
from sframegen.stack.names.demangle import demangle
from sframegen.stack.names.rust import demangle_v0
from tests.support.loops import for_each

NAMES = {
    # paths
    "_RC5crate": "crate",
    "_RNvC5crate4main": "crate::main",
    "_RNvCs1234_5crate4main": "crate::main",
    "_RNvNtC5crate3mod4mainC5other": "crate::mod::main",
    "_RNCNvC5crate4main0": "crate::main::{closure#0}",
    "_RNCNvC5crate4mains_0": "crate::main::{closure#1}",
    "_RNCNvC5crate4mains8_4name": "crate::main::{closure:name#10}",
    "_RNSC5crate4drop": "crate::{shim:drop#0}",
    "_RNYC5crate4some": "crate::{Y:some#0}",
    "_RNvMC5crateNtB2_1S1f": "<crate::S>::f",
    "_RNvMs_NtC5crate3modNtB4_1S1f": "<crate::mod::S>::f",
    "_RNvXC5crateNtB2_1SNtB2_1T1f": "<crate::S as crate::T>::f",
    "_RNvYNtC5crate1SNtB4_1T1f": "<crate::S as crate::T>::f",
    "_RINvC5crate1fmlE": "crate::f::<u32, i32>",
    "_RNvMC5crateINtB2_1SmE1f": "<crate::S<u32>>::f",
    # types
    "_RINvC1c1fabcdefhijlmnopstuvxyzE": "c::f::<i8, bool, char, f64, str, f32, u8, isize, usize, i32, u32, i128, u128, _, i16, "
    "u16, (), ..., i64, u64, !>",
    "_RINvC1c1fRhQhPhOhE": "c::f::<&u8, &mut u8, *const u8, *mut u8>",
    "_RINvC1c1fShAhj4_TETaETabEE": "c::f::<[u8], [u8; 4], (), (i8,), (i8, bool)>",
    "_RINvC1c1fRL_hL_E": "c::f::<&u8, '_>",
    "_RINvC1c1fFEuFUhEhFKCabEcE": 'c::f::<fn(), unsafe fn(u8) -> u8, extern "C" fn(i8, bool) -> char>',
    "_RINvC1c1fFK10vectorcallEzE": 'c::f::<extern "vectorcall" fn() -> !>',
    "_RINvC1c1fFK8C_unwindEuE": 'c::f::<extern "C-unwind" fn()>',
    "_RINvC1c1fFG_RL0_hEB8_E": None,
    "_RINvC1c1fFG_RL0_hERL0_hE": "c::f::<for<'a> fn(&'a u8) -> &'a u8>",
    "_RINvC1c1fFG0_RL0_hRL1_hFG_RL0_hRL1_hEuEuE": "c::f::<for<'a, 'b> fn(&'b u8, &'a u8, for<'c> fn(&'c u8, &'b u8))>",
    "_RINvC1c1fDNtB4_1TNtB4_1UEL_E": None,
    "_RINvC1c1fDNtC1c1TNtC1c1UEL_E": "c::f::<dyn c::T + c::U>",
    "_RINvC1c1fDINtC1c1ThEp1AaEL_E": "c::f::<dyn c::T<u8, A = i8>>",
    "_RINvC1c1fDNtC1c1Tp1Aap1BbEL_E": "c::f::<dyn c::T<A = i8, B = bool>>",
    "_RINvC1c1fDG_INtC1c1FTRL0_eEEp6OutputuEL_E": "c::f::<dyn for<'a> c::F<(&'a str,), Output = ()>>",
    "_RINvC1c1fFG_DNtC1c1TEL0_EuE": "c::f::<for<'a> fn(dyn c::T + 'a)>",
    "_RINvC1c1fTaaEB7_E": "c::f::<(i8, i8), (i8, i8)>",
    # constants
    "_RINvC1c1fKj0_Kj_Kj1f_Kan1_KpE": "c::f::<0, 0, 31, -1, _>",
    "_RINvC1c1fKo10000000000000000_KyffffffffffffffffE": None,
    "_RINvC1c1fKo10000000000000000_Kyffffffffffffffff_E": "c::f::<0x10000000000000000, 18446744073709551615>",
    "_RINvC1c1fKb0_Kb1_Kc41_Kc27_Kc5c_Kca_KcdfE": None,
    "_RINvC1c1fKb0_Kb1_Kc41_Kc27_Kc5c_Kca_Kcdf_E": "c::f::<false, true, 'A', '\\'', '\\\\', '\\u{a}', 'ß'>",
    "_RINvC1c1fKe616263_KRe616263_KRj1_KQj1_E": 'c::f::<{*"abc"}, "abc", {&1}, {&mut 1}>',
    "_RINvC1c1fKAj1_j2_EKTj1_EKTEE": "c::f::<{[1, 2]}, {(1,)}, {()}>",
    "_RINvC1c1fKVNtC1c1VUKVNtC1c1VTj1_EKVNtC1c1VS1xj1_1yb0_EE": "c::f::<{c::V}, {c::V(1)}, {c::V { x: 1, y: false }}>",
    "_RINvC1c1fKj1_KB8_E": "c::f::<1, 1>",
    # identifiers
    "_RNvC1c1_": None,
    "_RNvC1c1__": "c::_",
    "_RNvC1c2_12": "c::12",
    "_RNvC1c4__ab": None,
    "_RNvC1c3__ab": "c::_ab",
    "_RNvC1cu3_999": "c::punycode{999}",
    # what linkers and LLVM add
    "_RNvC1c1f.llvm.1234567890ABCDEF": "c::f",
    "_RNvC1c1f.cold": "c::f.cold",
    "_RNvC1c1f$some": "c::f$some",
    # none
    "_R": None,
    "_R0NvC1c1f": None,
    "_RNvC1c": None,
    "_RNvC1c9f": None,
    "_RNvC1c1f!": None,
    "_RNvC1c1fB0_": None,
    "_RB_": None,
    "_RNvB_1f": None,
    "_ZN1c1fE": None,
    "main": None,
}


@for_each("name", NAMES)
def test_names(name: str) -> None:
    assert demangle_v0(name) == NAMES[name]
    if NAMES[name]:
        assert demangle(name) == NAMES[name]


@for_each("text", ["größe", "länge_x", "日本", "ß"])
def test_names_beyond_ascii(text: str) -> None:
    encoded = text.encode("punycode").decode()
    plain, _, rest = encoded.rpartition("-")
    encoded = f"{plain}_{rest}" if plain else rest
    separator = "_" if encoded[0].isdigit() or encoded[0] == "_" else ""
    assert demangle_v0(f"_RNvC1cu{len(encoded)}{separator}{encoded}") == f"c::{text}"


def doubling(levels: int) -> str:
    """A tuple of two of what is before it, this many times."""
    name, place = "INvC1c1f", None
    for _ in range(levels):
        here = len(name)
        name += "Taa" if place is None else f"TB{place}B{place}"
        name += "E"
        place = base_62(here)
    return f"_R{name}E"


def base_62(value: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return (digits[(value - 1) // 62 - 1] if value > 62 else "") + digits[(value - 1) % 62] + "_"


def test_names_that_stand_for_too_much() -> None:
    assert demangle_v0(doubling(3)) == "c::f::<(i8, i8), ((i8, i8), (i8, i8)), (((i8, i8), (i8, i8)), ((i8, i8), (i8, i8)))>"
    assert demangle_v0(doubling(60)) is None
    assert demangle_v0("_RINvC1c1f" + "S" * (rust.MAX_DEPTH - 3) + "hE") is not None
    assert demangle_v0("_RINvC1c1f" + "S" * 100_000 + "hE") is None
    assert demangle_v0("_RINvC1c1fFGzzzzzzzzz_EuE") is None
    assert demangle_v0("_RNvC1c" + "9" * 5000) is None


@given(st.text(alphabet="_RNvCIMXYBEKLGDFUTSAQPOjh0123456789abcpeun.$ß", max_size=60))
def test_whatever_it_is_there_is_an_answer(text: str) -> None:
    found = demangle_v0("_R" + text)
    assert found is None or found.isprintable()


@given(st.sampled_from([name for name, text in NAMES.items() if text]), st.data())
def test_names_that_are_damaged(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(2, len(name) - 1))
    demangle_v0(name[:at])
    demangle_v0(name[:at] + data.draw(st.characters()) + name[at + 1 :])
