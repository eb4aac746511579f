"""Code that nothing describes: frames by frame pointers, marked as guesses. Functions without a name: by their object and start."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import resolve_address
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import End, RuleSource
from tests.support.loops import for_each
from tests.support.peers import Compiler
from tests.support.processes.live import Names, Program, between, command, compiled

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")
STATIC = ("-O2", "-static", "-fomit-frame-pointer")
# through() has a frame pointer and no CFI, as assembly has that nobody annotated; what is around it is the reverse.
THROUGH = r"""
void through(void (*callee)(void));
__asm__(".pushsection .text\n.type through,@function\nthrough: push %rbp\n mov %rsp,%rbp\n sub $32,%rsp\n call *%rdi\n leave\n"
        " ret\n.size through,.-through\n.popsection");
KEPT void last(void) { volatile char frame[100]; frame[1] = 2; hold(); after += frame[1]; }
KEPT void middle(void) { through(last); after++; }
KEPT void first(void) { through(middle); after++; }
int main(void) { first(); puts("done"); return 0; }
"""
FUNCTIONS = ["hold", "last", "through", "middle", "through", "first", "main"]
NO_RECORD = r"""
__asm__(".pushsection .text\n.type through,@function\nthrough: push %rbp\n mov %rsi,%rbp\n call *%rdi\n pop %rbp\n ret\n"
        ".size through,.-through\n.popsection");
void through(void (*callee)(void), void *fp);
KEPT void last(void) { hold(); after++; }
int main(void) { uintptr_t zeros[4] = {0}; through(last, zeros); puts("done"); after += zeros[1]; return 0; }
"""


@for_each("section", [True, False])
def test_instructions_prove_rules_that_neither_section_nor_cfi_has(section: bool, compile_c: Compiler, tmp_path: Path) -> None:
    """FP leads to zeros in the caller's frame, as in musl's static programs: without a proof that is no outermost frame."""
    with Program(compiled(compile_c, tmp_path, NO_RECORD, *STATIC, section=section)) as running:
        names, thread = Names(running.pid, convert=True).first()
        plain = Names(running.pid).first()[1]
    assert (between(names, "hold"), thread.end) == (["hold", "last", "through", "main"], End.OUTERMOST)
    assert [name for name, frame in zip(names, thread.frames, strict=True) if frame.how is RuleSource.PROVEN][:1] == ["through"]
    assert not any(frame.guessed for frame in thread.frames)
    assert plain.end is (End.NOT_COVERED if section else End.NO_FRAME_POINTER)


@for_each("frame_pointer", [True, False])
def test_a_section_never_costs_frames(frame_pointer: bool, compile_c: Compiler, tmp_path: Path) -> None:
    """Against the same program without one, by frame pointers alone, and with one that the tracer makes."""
    flags = ("-O2", "-static", "-fno-omit-frame-pointer") if frame_pointer else STATIC
    program = compiled(compile_c, tmp_path, THROUGH, *flags, section=False)
    with Program(program) as running:
        plain = Names(running.pid).first()[1].frames
        converted = Names(running.pid, convert=True).first()[1].frames
    sframegen.add_section(program, verify=False)
    with Program(program) as running:
        names, thread = Names(running.pid).first()
    assert len(plain) <= len(converted) == len(thread.frames)
    assert between(names, "hold") == FUNCTIONS
    if frame_pointer:
        assert len(plain) >= len(FUNCTIONS)


WITHOUT = r"""
__asm__(".pushsection .text\n.type through,@function\nthrough: push %rbx\n mov %rdx,%rbx\n mov %rsi,%rbp\n call *%rdi\n pop %rbx\n"
        " ret\n.size through,.-through\n.popsection");
void through(void (*callee)(void), void *fp);
KEPT void last(void) { hold(); after++; }
int main(void) {
    uintptr_t *local = alloca(64);  // a frame record that is none: an address in code that no call precedes
    local[0] = 0;
    local[1] = (uintptr_t)through + 1;
    __asm__ volatile("push %%rbp\n call through\n pop %%rbp" : : "D"(last), "S"(local) : "rax", "rcx", "rdx", "memory", "cc");
    puts("done");
    return 0;
}
"""


def test_a_frame_pointer_that_is_none_is_not_followed(compile_c: Compiler, tmp_path: Path) -> None:
    """Code without CFI keeps something else there, of which the words look like a frame record with code's address."""
    with Program(compiled(compile_c, tmp_path, "#include <alloca.h>\n" + WITHOUT, "-O1", "-static", "-mno-red-zone")) as running:
        names, thread = Names(running.pid).first()
    assert names[names.index("hold") :] == ["hold", "last", "through"]
    assert thread.end is End.NOT_COVERED


MADE = r"""
#include <sys/mman.h>
KEPT void calls(void (*code)(long, long, long, void (*)(void))) { code(1, 2, 3, hold); after++; }
int main(void) {
    void *code = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\x48\x83\xec\x08\xff\xd1\x48\x83\xc4\x08\xc3", 11);  // sub $8,%rsp; call *%rcx; add $8,%rsp; ret
    calls(code);
    puts("done");
}
"""


def test_code_in_no_file_that_only_returns(compile_c: Compiler, tmp_path: Path) -> None:
    """As CPython's trampolines for -X perf."""
    with Program(compiled(compile_c, tmp_path, MADE, *STATIC)) as running:
        names, thread = Names(running.pid).first()
    assert (between(names, "hold"), thread.end) == (["hold", "??", "calls", "main"], End.OUTERMOST)
    assert (thread.frames[names.index("??")].how, any(frame.guessed for frame in thread.frames)) == (RuleSource.PROVEN, False)


SWITCHES = r"""
__attribute__((section(".go.buildinfo"))) char info[16];
__asm__(".pushsection .text\n.type on_other,@function\non_other: .cfi_startproc\n push %r12\n .cfi_adjust_cfa_offset 8\n"
        " mov %rsp,%r12\n mov 56(%rsi),%rsp\n call *%rdi\n"
        " mov %r12,%rsp\n pop %r12\n ret\n.cfi_endproc\n.size on_other,.-on_other\n.popsection");
void on_other(void (*callee)(void), char **goroutine);
KEPT void last(void) { hold(); after++; }
int main(void) {
    static char stack[1 << 14];
    char *goroutine[8] = {0};
    goroutine[7] = stack + sizeof stack - 64;  // below it, what looks like a return address to main
    *(void **)(goroutine[7] + 8) = (char *)main + 1;
    on_other(last, goroutine);
    puts("done");
}
"""


def test_what_go_s_runtime_calls_on_a_stack_of_its_own_has_its_caller_elsewhere(compile_c: Compiler, tmp_path: Path) -> None:
    """Its call frame information does not say so, and leads to any words."""
    for section in (True, False):
        with Program(compiled(compile_c, tmp_path, SWITCHES, *STATIC, section=section)) as running:
            names, thread = Names(running.pid, convert=not section).first()
        assert (names[names.index("hold") :], thread.end) == (["hold", "last", "on_other"], End.OTHER_STACK)


def test_code_that_a_section_does_not_cover_and_marks_of_guesses(compile_c: Compiler, tmp_path: Path) -> None:
    with Program(compiled(compile_c, tmp_path, THROUGH, *STATIC)) as running:
        text, raw, documents = (command(*form, running.pid) for form in ([], ["--raw"], ["--json"]))
    assert [done.returncode for done in (text, raw, documents)] == [0, 0, 0]
    marked = re.findall(r"^#\d+ +0x[0-9a-f]{16} (\w+) \+ 0x[0-9a-f]+ - /.* \[guess\]$", text.stdout, re.MULTILINE)
    assert marked == ["middle", "first"]
    assert len(re.findall(r"^#\d+ +0x[0-9a-f]{16} \[guess\]$", raw.stdout, re.MULTILINE)) == 2
    (thread,) = json.loads(documents.stdout)["threads"]
    assert thread["complete"]
    assert between([frame["function"] for frame in thread["frames"]], "hold") == FUNCTIONS
    assert [frame["function"] for frame in thread["frames"] if frame["guessed"]] == ["middle", "first"]
    assert {frame["function"] for frame in thread["frames"] if frame["how"] == "frame pointer"} == {"through"}


def test_convert_is_suggested_first(compile_c: Compiler, tmp_path: Path) -> None:
    """Where an object has no section; not of code that a section leaves out, which --convert does not help."""
    program = compiled(compile_c, tmp_path, THROUGH, *STATIC, section=False)
    with Program(program) as running:
        line = f"sframegen: no SFrame section in {program}: frames are missing, or guessed from frame pointers; --convert makes"
        for form in ([], ["--json"]):
            done = command(*form, running.pid)
            assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
            assert done.stderr.startswith(line)
        assert command("--convert", running.pid).stderr == ""
    sframegen.add_section(program, verify=False)
    with Program(program) as running:
        assert command(running.pid).stderr == ""


SCRIPT = r"""
const fs = require('fs');
function down(n) { return n ? down(n - 1) + 1 : held(); }
function held() { fs.writeSync(1, 'here\n'); return fs.readSync(0, Buffer.alloc(1)); }
[2, 1].sort(() => down(10));
fs.writeSync(1, 'done\n');
"""


@pytest.mark.skipif(None in map(shutil.which, ("node", "eu-stack")), reason="no node and eu-stack on this machine")
@pytest.mark.parametrize("section", [False, True])
def test_node(section: bool, tmp_path: Path) -> None:
    """Its built-in functions have no CFI, what it makes at run time has names in a map; libuv, V8 and libc around have CFI.

    Those functions are mapped once more, apart from everything else of the file, and its section.
    """
    node = Path(shutil.which("node") or "").resolve()
    if section:
        copy = tmp_path / "node"
        shutil.copy(node, copy)
        sframegen.add_section(copy, verify=False)
        node = copy
    script = tmp_path / "script.js"
    script.write_text(SCRIPT)
    options = ("--perf-basic-prof", "--interpreted-frames-native-stack", f"--logfile={tmp_path / 'log'}")
    with Program(node, *options, script) as running:
        names = Names(running.pid, convert=True)
        (thread,) = names.tracer.trace_process(names.process, running.pid)
        (plain,) = Tracer().trace_process(names.process, running.pid)
        names.symbols.load_names(running.pid, [thread])
        functions = names.of(thread)
        theirs = subprocess.run(["eu-stack", "-1", "-p", str(running.pid)], capture_output=True, text=True, check=False).stdout
    Path(f"/tmp/perf-{running.pid}.map").unlink()
    assert [name for name in functions if name.startswith("JS:~down")] == [f"JS:~down {script}:3:14"] * 11
    assert "Builtins_ArrayTimSort" in functions
    assert functions[-1] == "_start"
    assert thread.end is End.OUTERMOST
    assert len(thread.frames) >= len(plain.frames)
    pcs = [int(pc, 16) for pc in re.findall(r"^#\d+ +(0x[0-9a-f]+)", theirs, re.MULTILINE)]
    assert [frame.pc for frame in thread.frames] == pcs


CALLS = r"""
KEPT void inner(void) { hold(); after++; }
KEPT void outer(void) { volatile char frame[100]; frame[1] = 2; inner(); after += frame[1]; }
int main(void) { outer(); puts("done"); return 0; }
"""
OF_CALLS = ("hold", "inner", "outer", "main")


def without_cfi(program: Path) -> None:
    """The file alone says where functions begin no more."""
    elf = open_elf(program)
    header = elf.section(".eh_frame").header  # type: ignore[union-attr] # it has one
    data = bytearray(elf.data)
    data[header.sh_offset : header.sh_offset + header.sh_size] = bytes(header.sh_size)
    copy = program.with_name("copy")
    copy.write_bytes(data)
    copy.chmod(0o755)
    copy.rename(program)


@for_each("by", ["CFI", "section", "--convert"])
def test_functions_of_a_program_without_symbols(by: str, compile_c: Compiler, tmp_path: Path) -> None:
    """By the CFI where there is some: sections join neighbours. `optimize="none"` does not."""
    program = compiled(compile_c, tmp_path, CALLS, "-O2", "-no-pie", section=False)
    starts = [resolve_address(open_elf(program), name) for name in OF_CALLS]
    subprocess.run(["strip", program], check=True)
    if by != "--convert":
        sframegen.add_section(program, verify=False, optimize="none" if by == "section" else "fast")
    if by == "section":
        without_cfi(program)
    with Program(program) as running:
        text, documents = (command("--convert", *form, running.pid) for form in ((), ("--json",)))
    labels = [f"[{program.name}+{start:#x}]" for start in starts]
    found = re.findall(rf"^#\d+ +0x([0-9a-f]{{16}}) (\S+) \+ 0x([0-9a-f]+) - {program}$", text.stdout, re.MULTILINE)
    assert [name for _, name, _ in found][:4] == labels
    assert [int(pc, 16) - int(offset, 16) for pc, _, offset in found][:4] == starts
    frames = json.loads(documents.stdout)["threads"][0]["frames"]
    ours = [frame for frame in frames if frame["object"] == str(program)][:4]
    assert [(frame["function"], frame["start"], frame["address"] - frame["offset"]) for frame in ours] == [
        (None, start, start) for start in starts
    ]


SIZELESS = r"""
__asm__(".pushsection .text\n.type open,@function\nopen: .cfi_startproc\n sub $8,%rsp\n .cfi_adjust_cfa_offset 8\n call *%rdi\n"
        " add $8,%rsp\n ret\n.cfi_endproc\nnop\n"
        ".cfi_startproc\n sub $24,%rsp\n .cfi_adjust_cfa_offset 24\n call *%rdi\n add $24,%rsp\n ret\n.cfi_endproc\n.popsection");
void open_(void (*)(void)) __asm__("open");
KEPT void after_open(void) { ((void (*)(void (*)(void)))((uintptr_t) open_ + 12))(hold); after++; }
int main(void) { open_(after_open); puts("done"); return 0; }
"""


def test_a_function_without_a_size_ends_where_call_frame_information_of_another_begins(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, SIZELESS, "-O2", "-no-pie", section=False)
    nameless = f"[program+{resolve_address(open_elf(program), 'open') + 12:#x}]"
    with Program(program) as running:
        found = command("--convert", running.pid).stdout
    names = re.findall(r"^#\d+ +0x[0-9a-f]{16} (\S+) ", found, re.MULTILINE)
    at = names.index("hold")
    assert names[at : at + 5] == ["hold", nameless, "after_open", "open", "main"]


def test_code_of_which_not_even_the_start_is_known(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, CALLS, "-O2", "-no-pie", "-fno-omit-frame-pointer", section=False)
    subprocess.run(["strip", program], check=True)
    without_cfi(program)
    with Program(program) as running:
        text = command("--convert", running.pid)
    assert len(re.findall(rf" \?\? - {program}$", text.stdout, re.MULTILINE)) >= 4
