// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The object for LD_PRELOAD: when a program takes a stack trace of itself, this answers from SFrame sections.

   It interposes backtrace() of glibc, unw_backtrace() of libunwind, and _Unwind_Backtrace() with the functions that its callbacks call for
   a frame. If a trace does not reach the outermost frame, or needs a guess, the call goes to the next function, which the program would
   have called without this object, so that no trace is shorter than before. Exceptions and cancellation use other functions and other
   contexts, and work as before. */
#include "sframe_backtrace.c"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

/* --- The next functions, which this object interposes ------------------------------------------------------------------------------- */

#define NEXT_FUNCTIONS(ENTRY)                                                                           \
	ENTRY(BACKTRACE, "backtrace") ENTRY(UNW_BACKTRACE, "unw_backtrace")                             \
	ENTRY(UNWIND_BACKTRACE, "_Unwind_Backtrace") ENTRY(GET_CFA, "_Unwind_GetCFA")                   \
	ENTRY(GET_DATA_REL_BASE, "_Unwind_GetDataRelBase") ENTRY(GET_GR, "_Unwind_GetGR")               \
	ENTRY(GET_IP, "_Unwind_GetIP") ENTRY(GET_IP_INFO, "_Unwind_GetIPInfo")                          \
	ENTRY(GET_LANGUAGE_SPECIFIC_DATA, "_Unwind_GetLanguageSpecificData") ENTRY(GET_REGION_START, "_Unwind_GetRegionStart") \
	ENTRY(GET_TEXT_REL_BASE, "_Unwind_GetTextRelBase") ENTRY(FIND_ENCLOSING_FUNCTION, "_Unwind_FindEnclosingFunction")

#define NUMBER(number, name) number,
#define NAME(number, name) name,
enum next_function { NEXT_FUNCTIONS(NUMBER) FUNCTIONS };
static const char *const names[FUNCTIONS] = { NEXT_FUNCTIONS(NAME) };
static _Atomic(void *) functions[FUNCTIONS];

/* The search may allocate, and an allocator may take a trace: that trace gets the functions that are known so far. */
static __thread bool is_searching __attribute__((tls_model("initial-exec")));

/* Makes the library with the symbol stay loaded, even if the program closes it later, because the symbol's address is kept. */
static void *find_symbol_in(const char *library, const char *name)
{
	void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *symbol, *owner;
	Dl_info place;

	if (!handle)
		return NULL;
	symbol = dlsym(handle, name);
	owner = symbol && dladdr(symbol, &place) ? dlopen(place.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) : NULL;
	if (owner)
		dlclose(owner);
	dlclose(handle);
	return symbol;
}

/* Finds the function that the caller would call without this object: the next one in the loader's order. A library that dlopen loaded has
   an order of its own, which may be the only one with its unwinder. */
static void *search_next(enum next_function which, const void *caller)
{
	void *symbol = dlsym(RTLD_NEXT, names[which]);
	Dl_info place;

	if (!symbol && dladdr(caller, &place) && place.dli_fname)
		symbol = find_symbol_in(place.dli_fname, names[which]);
	return symbol ? symbol : find_symbol_in("libgcc_s.so.1", names[which]);
}

typedef void any_function(void);

/* Returns the next function, or NULL. `caller`: an address in the code that called this object. */
static any_function *find_next_function(enum next_function which, const void *caller)
{
	void *symbol = atomic_load_explicit(&functions[which], memory_order_relaxed);
	any_function *function;

	if (!symbol && !is_searching) {
		int saved = errno;

		is_searching = true;
		symbol = search_next(which, caller);
		is_searching = false;
		errno = saved;
		atomic_store_explicit(&functions[which], symbol, memory_order_relaxed);
	}
	memcpy(&function, &symbol, sizeof function);
	return function;
}

/* --- Statistics -------------------------------------------------------------------------------------------------------------------
   Counted only if SFRAMEGEN_PRELOAD_STATISTICS is set: otherwise a trace writes no memory that threads share. */

static bool is_counting;
static atomic_ulong answered, passed_on;
static _Atomic uintptr_t first_passed_on_pc; /* where the first walk ended that was passed on */

static void count_trace(bool is_whole, uintptr_t stopped_at)
{
	uintptr_t none = 0;

	if (!is_counting)
		return;
	atomic_fetch_add_explicit(is_whole ? &answered : &passed_on, 1, memory_order_relaxed);
	if (!is_whole)
		atomic_compare_exchange_strong(&first_passed_on_pc, &none, stopped_at);
}

__attribute__((destructor)) static void print_statistics(void)
{
	uintptr_t stop = atomic_load(&first_passed_on_pc);
	char line[1024];
	int length, size = sizeof line - 1; /* the last byte is for the end of the line */
	Dl_info place;

	if (!is_counting)
		return;
	length = snprintf(line, (size_t)size, "sframegen preload: process %ld: %lu stack traces from sections, %lu by the program's own unwinder",
			  (long)getpid(), atomic_load(&answered), atomic_load(&passed_on));
	if (stop && dladdr((void *)stop, &place))
		length += snprintf(line + length, (size_t)(size - length), "; the first of these stopped in %s + 0x%lx", place.dli_fname,
				   (unsigned long)(stop - (uintptr_t)place.dli_fbase));
	else if (stop)
		length += snprintf(line + length, (size_t)(size - length), "; the first of these stopped at 0x%lx, in no library",
				   (unsigned long)stop);
	if (length > size - 1)
		length = size - 1;
	line[length] = '\n';
	if (write(STDERR_FILENO, line, (size_t)length + 1) < 0)
		return; /* there is nowhere else to report it */
}

static void find_next_functions(void)
{
	for (unsigned which = 0; which < FUNCTIONS; which++)
		atomic_store_explicit(&functions[which], dlsym(RTLD_NEXT, names[which]), memory_order_relaxed);
}

/* A constructor of another library may take a trace before this runs; then the search is made earlier. All contexts must go back to the
   unwinder that made them, so there must be one for all: in a program without one, each library that dlopen loads could bring its own.
   libgcc_s, which backtrace() of glibc also loads, is therefore loaded before them. */
__attribute__((constructor)) static void start(void)
{
	is_counting = getenv("SFRAMEGEN_PRELOAD_STATISTICS") != NULL;
	sframe_backtrace_prepare(0);
	find_next_functions();
	if (!atomic_load_explicit(&functions[UNWIND_BACKTRACE], memory_order_relaxed) && dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_GLOBAL))
		find_next_functions();
	dlerror(); /* clears errors of this search, which the program must not see */
}

/* --- backtrace, unw_backtrace ----------------------------------------------------------------------------------------------------- */

enum { CHUNK = 32 }; /* frames that are on the stack at a time, because the stack of a signal handler may be small */

/* Returns the caller of an exported function, by value: if that function had a walker of its own, its last call would not be a jump. */
__attribute__((always_inline)) static inline struct position this_caller(void)
{
	struct walker walker;

	walker.now = (struct position){ .flags = 0 };
	start_at_caller(&walker);
	return walker.now;
}

static void start_at(struct walker *walker, struct position caller)
{
	walker->now = caller;
	walker->registers = NULL;
	walker->objects_found = 0;
}

/* Returns the number of frames if the trace is complete or fills the buffer; else -1 - their number. */
__attribute__((noinline)) static int trace_from_sections(struct position caller, void **buffer, int size)
{
	struct sframe_frame frames[CHUNK];
	enum sframe_end end = SFRAME_FULL;
	struct walker walker;
	bool is_whole = true;
	int length = 0;

	start_at(&walker, caller);
	while (end == SFRAME_FULL && length < size && is_whole) {
		int many = walk(&walker, NULL, frames, size - length < CHUNK ? size - length : CHUNK, &end);

		for (int number = 0; number < many; number++) {
			buffer[length++] = frames[number].pc;
			if (frames[number].flags & SFRAME_GUESS)
				is_whole = false;
		}
	}
	is_whole = is_whole && (end == SFRAME_OUTERMOST || end == SFRAME_FULL);
	count_trace(is_whole, walker.now.pc);
	return is_whole ? length : -1 - length;
}

typedef int backtrace_function(void **, int);

/* The call of the next function must be the last, so that it is a jump: that function's first frame is then the caller's. */
#define DEFINE_BACKTRACE(name, which)                                                                  \
	__attribute__((noinline)) int name(void **buffer, int size)                                    \
	{                                                                                              \
		int length = size > 0 ? trace_from_sections(this_caller(), buffer, size) : 0;                       \
		backtrace_function *function;                                                          \
		if (length >= 0)                                                                       \
			return length;                                                                 \
		function = (backtrace_function *)find_next_function(which, __builtin_return_address(0));  \
		return function ? function(buffer, size) : -1 - length;                                \
	}

DEFINE_BACKTRACE(backtrace, BACKTRACE)
DEFINE_BACKTRACE(unw_backtrace, UNW_BACKTRACE) /* of libunwind */

/* --- _Unwind_Backtrace ------------------------------------------------------------------------------------------------------------
   A callback gets a context, and passes it to the functions below. Contexts of this object begin with the address of `own_mark`, which no
   other code knows. Those of other unwinders, in exceptions for instance, begin with something else, and go to the next functions. */

enum { MAX_FRAMES = 1024 };

static const char own_mark;

struct context {
	const char *mark;
	uintptr_t pc, cfa;
	bool is_exact;
};

static const struct context *as_own_context(struct _Unwind_Context *context)
{
	const struct context *candidate = (const struct context *)(const void *)context;

	return candidate->mark == &own_mark ? candidate : NULL;
}

enum outcome { DONE, STOPPED, NOT_WHOLE }; /* STOPPED: by the callback */

/* Calls back for frame after frame, and counts them in `delivered`. As in libgcc, the context's CFA is that of the function that the frame
   called, and there is one more frame for the caller of the outermost one, whose PC is 0. */
__attribute__((noinline)) static enum outcome call_back_frames(struct position caller, _Unwind_Trace_Fn callback, void *argument,
							       int *delivered)
{
	struct context context = { .mark = &own_mark };
	enum sframe_end end = SFRAME_FULL;
	struct sframe_frame frame;
	struct walker walker;

	start_at(&walker, caller);
	for (*delivered = 0; end == SFRAME_FULL && *delivered < MAX_FRAMES; ++*delivered) {
		context.pc = walker.now.pc;
		context.cfa = walker.now.sp - (uintptr_t)SP_OFFSET;
		context.is_exact = is_exact(&walker);
		if (callback((struct _Unwind_Context *)(void *)&context, argument) != _URC_NO_REASON) {
			count_trace(true, 0);
			return STOPPED;
		}
		walk(&walker, NULL, &frame, 1, &end);
		if (walker.now.flags & SFRAME_GUESS)
			end = SFRAME_NO_RULE;
	}
	count_trace(end == SFRAME_OUTERMOST, walker.now.pc);
	if (end != SFRAME_OUTERMOST)
		return NOT_WHOLE;
	context.pc = 0;
	context.is_exact = false;
	return callback((struct _Unwind_Context *)(void *)&context, argument) == _URC_NO_REASON ? DONE : STOPPED;
}

/* The next unwinder starts again with the first frame; the frames that the callback already got are skipped. */
struct continuation {
	_Unwind_Trace_Fn callback;
	void *argument;
	int frames_to_skip;
};

static _Unwind_Reason_Code call_back_new_frames(struct _Unwind_Context *context, void *argument)
{
	struct continuation *continuation = argument;

	if (continuation->frames_to_skip-- > 0)
		return _URC_NO_REASON;
	continuation->frames_to_skip = 0;
	return continuation->callback(context, continuation->argument);
}

typedef _Unwind_Reason_Code unwind_function(_Unwind_Trace_Fn, void *);

__attribute__((noinline)) _Unwind_Reason_Code _Unwind_Backtrace(_Unwind_Trace_Fn callback, void *argument)
{
	struct continuation continuation = { .callback = callback, .argument = argument };
	enum outcome outcome = call_back_frames(this_caller(), callback, argument, &continuation.frames_to_skip);
	unwind_function *function;

	if (outcome != NOT_WHOLE)
		return outcome == DONE ? _URC_END_OF_STACK : _URC_FATAL_PHASE1_ERROR;
	function = (unwind_function *)find_next_function(UNWIND_BACKTRACE, __builtin_return_address(0));
	continuation.frames_to_skip++; /* the frame of this function */
	return function ? function(call_back_new_frames, &continuation) : _URC_END_OF_STACK;
}

/* --- Functions that callbacks call for a context ------------------------------------------------------------------------------------- */

typedef _Unwind_Word word_function(struct _Unwind_Context *);
typedef void *pointer_function(struct _Unwind_Context *);

static _Unwind_Word call_next_function(enum next_function which, struct _Unwind_Context *context, const void *caller)
{
	word_function *function = (word_function *)find_next_function(which, caller);

	return function ? function(context) : 0;
}

#define ANSWER_OWN_OR_PASS_ON(type, name, which, answer)                                                       \
	type name(struct _Unwind_Context *context)                                                     \
	{                                                                                              \
		return as_own_context(context) ? (answer) : call_next_function(which, context, __builtin_return_address(0)); \
	}

ANSWER_OWN_OR_PASS_ON(_Unwind_Ptr, _Unwind_GetIP, GET_IP, as_own_context(context)->pc)
ANSWER_OWN_OR_PASS_ON(_Unwind_Word, _Unwind_GetCFA, GET_CFA, as_own_context(context)->cfa)
ANSWER_OWN_OR_PASS_ON(_Unwind_Ptr, _Unwind_GetDataRelBase, GET_DATA_REL_BASE, 0)
ANSWER_OWN_OR_PASS_ON(_Unwind_Ptr, _Unwind_GetTextRelBase, GET_TEXT_REL_BASE, 0)

_Unwind_Ptr _Unwind_GetIPInfo(struct _Unwind_Context *context, int *is_exact)
{
	typedef _Unwind_Ptr info_function(struct _Unwind_Context *, int *);
	info_function *function;

	if (as_own_context(context)) {
		*is_exact = as_own_context(context)->is_exact;
		return as_own_context(context)->pc;
	}
	function = (info_function *)find_next_function(GET_IP_INFO, __builtin_return_address(0));
	return function ? function(context, is_exact) : 0;
}

/* Sections have rules for these registers only. */
_Unwind_Word _Unwind_GetGR(struct _Unwind_Context *context, int number)
{
	typedef _Unwind_Word register_function(struct _Unwind_Context *, int);
	register_function *function;

	if (as_own_context(context))
		return number == RA ? as_own_context(context)->pc : number == SP ? as_own_context(context)->cfa + (uintptr_t)SP_OFFSET : 0;
	function = (register_function *)find_next_function(GET_GR, __builtin_return_address(0));
	return function ? function(context, number) : 0;
}

/* The next unwinder knows where functions begin, from a return address. */
_Unwind_Ptr _Unwind_GetRegionStart(struct _Unwind_Context *context)
{
	typedef void *enclosing_function(void *);
	const void *caller = __builtin_return_address(0);
	enclosing_function *function;

	if (!as_own_context(context))
		return call_next_function(GET_REGION_START, context, caller);
	function = (enclosing_function *)find_next_function(FIND_ENCLOSING_FUNCTION, caller);
	return function ? (_Unwind_Ptr)function((void *)(as_own_context(context)->pc + as_own_context(context)->is_exact)) : 0;
}

/* Only handlers of exceptions need this, and they get contexts of the next unwinder; frames of this object have no such data. */
void *_Unwind_GetLanguageSpecificData(struct _Unwind_Context *context)
{
	pointer_function *function;

	if (as_own_context(context))
		return NULL;
	function = (pointer_function *)find_next_function(GET_LANGUAGE_SPECIFIC_DATA, __builtin_return_address(0));
	return function ? function(context) : NULL;
}
