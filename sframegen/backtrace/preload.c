// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The object for LD_PRELOAD: answers the calls with which programs take stack traces of themselves, from SFrame sections.

   It stands in front of backtrace() of glibc, unw_backtrace() of libunwind, and _Unwind_Backtrace() with what its callbacks ask about a
   frame. A trace that does not reach the outermost frame, or that needed a guess, is answered by the function that the program would
   have called without this object: no trace is shorter than before. Exceptions and cancellation use other functions and other contexts,
   and go on as before. */
#include "sframe_backtrace.c"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unwind.h>

/* --- The functions behind this object --------------------------------------------------------------------------------------------- */

#define FUNCTIONS_BEHIND(ENTRY)                                                                        \
	ENTRY(BACKTRACE, "backtrace")                                                                  \
	ENTRY(UNW_BACKTRACE, "unw_backtrace")                                                          \
	ENTRY(UNWIND_BACKTRACE, "_Unwind_Backtrace")                                                   \
	ENTRY(GET_CFA, "_Unwind_GetCFA")                                                               \
	ENTRY(GET_DATA_REL_BASE, "_Unwind_GetDataRelBase")                                             \
	ENTRY(GET_GR, "_Unwind_GetGR")                                                                 \
	ENTRY(GET_IP, "_Unwind_GetIP")                                                                 \
	ENTRY(GET_IP_INFO, "_Unwind_GetIPInfo")                                                        \
	ENTRY(GET_LANGUAGE_SPECIFIC_DATA, "_Unwind_GetLanguageSpecificData")                           \
	ENTRY(GET_REGION_START, "_Unwind_GetRegionStart")                                              \
	ENTRY(GET_TEXT_REL_BASE, "_Unwind_GetTextRelBase")                                             \
	ENTRY(FIND_ENCLOSING_FUNCTION, "_Unwind_FindEnclosingFunction")

#define NUMBER(number, name) number,
#define NAME(number, name) name,
enum behind { FUNCTIONS_BEHIND(NUMBER) FUNCTIONS };
static const char *const names[FUNCTIONS] = { FUNCTIONS_BEHIND(NAME) };
static _Atomic(void *) functions[FUNCTIONS];

/* The search may allocate, and an allocator may take a trace: that one gets what is known so far. */
static __thread bool is_searching __attribute__((tls_model("initial-exec")));

/* The library that has the symbol stays loaded, as the symbol's address is kept: somebody may close it later. */
static void *symbol_of(const char *library, const char *name)
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

/* What the caller would call without this object: the next one in the loader's order. A library that dlopen loaded has an order of its
   own, in which its unwinder may be alone. */
static void *search(enum behind which, const void *caller)
{
	void *symbol = dlsym(RTLD_NEXT, names[which]);
	Dl_info place;

	if (!symbol && dladdr(caller, &place) && place.dli_fname)
		symbol = symbol_of(place.dli_fname, names[which]);
	return symbol ? symbol : symbol_of("libgcc_s.so.1", names[which]);
}

typedef void any_function(void);

/* Returns NULL where there is none. `caller`: an address in the code that called this object. */
static any_function *function_behind(enum behind which, const void *caller)
{
	void *symbol = atomic_load_explicit(&functions[which], memory_order_relaxed);
	any_function *function;

	if (!symbol && !is_searching) {
		int saved = errno;

		is_searching = true;
		symbol = search(which, caller);
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
static _Atomic uintptr_t first_stop; /* where the first walk ended that was passed on */

static void count(bool is_whole, uintptr_t stopped_at)
{
	uintptr_t none = 0;

	if (!is_counting)
		return;
	atomic_fetch_add_explicit(is_whole ? &answered : &passed_on, 1, memory_order_relaxed);
	if (!is_whole)
		atomic_compare_exchange_strong(&first_stop, &none, stopped_at);
}

__attribute__((destructor)) static void print_statistics(void)
{
	uintptr_t stop = atomic_load(&first_stop);
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
		return; /* nobody reads it */
}

static void find_functions(void)
{
	for (unsigned which = 0; which < FUNCTIONS; which++)
		atomic_store_explicit(&functions[which], dlsym(RTLD_NEXT, names[which]), memory_order_relaxed);
}

/* Whoever calls before this, from a constructor of another library, makes the search earlier. Contexts go back to the unwinder that made
   them only if there is one for all: in a program without one, each library that dlopen loads could bring another, which nobody else sees.
   libgcc_s, which backtrace() of glibc loads too, then stands before these. */
__attribute__((constructor)) static void start(void)
{
	is_counting = getenv("SFRAMEGEN_PRELOAD_STATISTICS") != NULL;
	sframe_backtrace_prepare(0);
	find_functions();
	if (!atomic_load_explicit(&functions[UNWIND_BACKTRACE], memory_order_relaxed) && dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_GLOBAL))
		find_functions();
	dlerror(); /* what was not found is not the program's error */
}

/* --- backtrace, unw_backtrace ----------------------------------------------------------------------------------------------------- */

enum { CHUNK = 32 }; /* frames on the stack at a time: that of a signal handler may be small */

/* The caller of an exported function. It is passed by value: of a function that has a walker of its own, the last call would not be a
   jump. */
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
	walker->met = 0;
}

/* Returns the number of frames if they are all that there are, or fill the buffer; else -1 - their number. */
__attribute__((noinline)) static int answer(struct position caller, void **buffer, int size)
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
	count(is_whole, walker.now.pc);
	return is_whole ? length : -1 - length;
}

typedef int backtrace_function(void **, int);

/* The call of the function behind is the last thing here, and a jump: that function's first frame is then the caller's. */
#define BACKTRACE_BEFORE(name, which)                                                                  \
	__attribute__((noinline)) int name(void **buffer, int size)                                    \
	{                                                                                              \
		int length = size > 0 ? answer(this_caller(), buffer, size) : 0;                       \
		backtrace_function *function;                                                          \
                                                                                                       \
		if (length >= 0)                                                                       \
			return length;                                                                 \
		function = (backtrace_function *)function_behind(which, __builtin_return_address(0));  \
		return function ? function(buffer, size) : -1 - length;                                \
	}

BACKTRACE_BEFORE(backtrace, BACKTRACE)
BACKTRACE_BEFORE(unw_backtrace, UNW_BACKTRACE) /* of libunwind */

/* --- _Unwind_Backtrace ------------------------------------------------------------------------------------------------------------
   A callback gets a context, and asks the functions below about it. Contexts of this object begin with the address of `ours`, which no
   other code knows; those of other unwinders, in exceptions for instance, begin with something else, and go to the functions behind. */

enum { MOST_FRAMES = 1024 };

static const char ours;

struct context {
	const char *mark;
	uintptr_t pc, cfa;
	bool is_exact;
};

static const struct context *own(struct _Unwind_Context *context)
{
	const struct context *candidate = (const struct context *)(const void *)context;

	return candidate->mark == &ours ? candidate : NULL;
}

enum outcome { DONE, STOPPED, NOT_WHOLE };

/* Calls back for frame after frame, and counts them in `delivered`. As libgcc does it, `cfa` is the one of the function that the frame
   called, and the caller of the outermost frame, whose PC is 0, is a frame, too. */
__attribute__((noinline)) static enum outcome deliver(struct position caller, _Unwind_Trace_Fn callback, void *argument, int *delivered)
{
	struct context context = { .mark = &ours };
	enum sframe_end end = SFRAME_FULL;
	struct sframe_frame frame;
	struct walker walker;

	start_at(&walker, caller);
	for (*delivered = 0; end == SFRAME_FULL && *delivered < MOST_FRAMES; ++*delivered) {
		context.pc = walker.now.pc;
		context.cfa = walker.now.sp - (uintptr_t)SP_OFFSET;
		context.is_exact = is_exact(&walker);
		if (callback((struct _Unwind_Context *)(void *)&context, argument) != _URC_NO_REASON) {
			count(true, 0);
			return STOPPED;
		}
		walk(&walker, NULL, &frame, 1, &end);
		if (walker.now.flags & SFRAME_GUESS)
			end = SFRAME_NO_RULE;
	}
	count(end == SFRAME_OUTERMOST, walker.now.pc);
	if (end != SFRAME_OUTERMOST)
		return NOT_WHOLE;
	context.pc = 0;
	context.is_exact = false;
	return callback((struct _Unwind_Context *)(void *)&context, argument) == _URC_NO_REASON ? DONE : STOPPED;
}

/* What the unwinder behind walks again is not delivered again. */
struct continuation {
	_Unwind_Trace_Fn callback;
	void *argument;
	int known;
};

static _Unwind_Reason_Code deliver_unknown(struct _Unwind_Context *context, void *argument)
{
	struct continuation *continuation = argument;

	if (continuation->known-- > 0)
		return _URC_NO_REASON;
	continuation->known = 0;
	return continuation->callback(context, continuation->argument);
}

typedef _Unwind_Reason_Code unwind_function(_Unwind_Trace_Fn, void *);

__attribute__((noinline)) _Unwind_Reason_Code _Unwind_Backtrace(_Unwind_Trace_Fn callback, void *argument)
{
	struct continuation continuation = { .callback = callback, .argument = argument };
	enum outcome outcome = deliver(this_caller(), callback, argument, &continuation.known);
	unwind_function *function;

	if (outcome != NOT_WHOLE)
		return outcome == DONE ? _URC_END_OF_STACK : _URC_FATAL_PHASE1_ERROR;
	function = (unwind_function *)function_behind(UNWIND_BACKTRACE, __builtin_return_address(0));
	continuation.known++; /* the frame of this function */
	return function ? function(deliver_unknown, &continuation) : _URC_END_OF_STACK;
}

/* --- What callbacks ask about a context --------------------------------------------------------------------------------------------- */

typedef _Unwind_Word word_function(struct _Unwind_Context *);
typedef void *pointer_function(struct _Unwind_Context *);

static _Unwind_Word ask_behind(enum behind which, struct _Unwind_Context *context, const void *caller)
{
	word_function *function = (word_function *)function_behind(which, caller);

	return function ? function(context) : 0;
}

#define ANSWER_BEFORE(type, name, which, answer)                                                       \
	type name(struct _Unwind_Context *context)                                                     \
	{                                                                                              \
		return own(context) ? (answer) : ask_behind(which, context, __builtin_return_address(0)); \
	}

ANSWER_BEFORE(_Unwind_Ptr, _Unwind_GetIP, GET_IP, own(context)->pc)
ANSWER_BEFORE(_Unwind_Word, _Unwind_GetCFA, GET_CFA, own(context)->cfa)
ANSWER_BEFORE(_Unwind_Ptr, _Unwind_GetDataRelBase, GET_DATA_REL_BASE, 0)
ANSWER_BEFORE(_Unwind_Ptr, _Unwind_GetTextRelBase, GET_TEXT_REL_BASE, 0)

_Unwind_Ptr _Unwind_GetIPInfo(struct _Unwind_Context *context, int *is_exact)
{
	typedef _Unwind_Ptr info_function(struct _Unwind_Context *, int *);
	info_function *function;

	if (own(context)) {
		*is_exact = own(context)->is_exact;
		return own(context)->pc;
	}
	function = (info_function *)function_behind(GET_IP_INFO, __builtin_return_address(0));
	return function ? function(context, is_exact) : 0;
}

/* Sections have no other registers than these. */
_Unwind_Word _Unwind_GetGR(struct _Unwind_Context *context, int number)
{
	typedef _Unwind_Word register_function(struct _Unwind_Context *, int);
	register_function *function;

	if (own(context))
		return number == RA ? own(context)->pc : number == SP ? own(context)->cfa + (uintptr_t)SP_OFFSET : 0;
	function = (register_function *)function_behind(GET_GR, __builtin_return_address(0));
	return function ? function(context, number) : 0;
}

/* The unwinder behind knows where functions begin, and takes a return address. */
_Unwind_Ptr _Unwind_GetRegionStart(struct _Unwind_Context *context)
{
	typedef void *enclosing_function(void *);
	const void *caller = __builtin_return_address(0);
	enclosing_function *function;

	if (!own(context))
		return ask_behind(GET_REGION_START, context, caller);
	function = (enclosing_function *)function_behind(FIND_ENCLOSING_FUNCTION, caller);
	return function ? (_Unwind_Ptr)function((void *)(own(context)->pc + own(context)->is_exact)) : 0;
}

/* For the handlers of exceptions, which get contexts of the unwinder behind; our frames have none. */
void *_Unwind_GetLanguageSpecificData(struct _Unwind_Context *context)
{
	pointer_function *function;

	if (own(context))
		return NULL;
	function = (pointer_function *)function_behind(GET_LANGUAGE_SPECIFIC_DATA, __builtin_return_address(0));
	return function ? function(context) : NULL;
}
