# find_package(SframeBacktrace): defines the library libsframe-backtrace as the target SframeBacktrace::SframeBacktrace.
#
# If sframegen was installed by pip, this is its static library, so that programs run without sframegen; else the system's library.

set(_SframeBacktrace_place "${CMAKE_CURRENT_LIST_DIR}/../../backtrace")
find_path(SframeBacktrace_INCLUDE_DIR sframe_backtrace.h HINTS "${_SframeBacktrace_place}")
find_library(SframeBacktrace_LIBRARY libsframe-backtrace.a PATHS "${_SframeBacktrace_place}" NO_DEFAULT_PATH)
find_library(SframeBacktrace_LIBRARY sframe-backtrace)
mark_as_advanced(SframeBacktrace_INCLUDE_DIR SframeBacktrace_LIBRARY)

if(NOT SframeBacktrace_INCLUDE_DIR OR NOT SframeBacktrace_LIBRARY)
    set(SframeBacktrace_NOT_FOUND_MESSAGE "no libsframe-backtrace: install a C compiler, then sframegen again from its sources")
    set(SframeBacktrace_FOUND FALSE)
    return()
endif()

if(NOT TARGET SframeBacktrace::SframeBacktrace)
    add_library(SframeBacktrace::SframeBacktrace UNKNOWN IMPORTED)
    set_target_properties(SframeBacktrace::SframeBacktrace PROPERTIES
        IMPORTED_LOCATION "${SframeBacktrace_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${SframeBacktrace_INCLUDE_DIR}")
endif()
