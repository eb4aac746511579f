# find_package(Sframegen): adds an SFrame section to what CMake links, by running linkers with `sframegen link`.
#
#   sframegen_add_section(TARGET... [OPTION...])     for executables, shared libraries and modules
#   sframegen_add_section_directory([OPTION...])     for all targets defined after it, in this directory and those below
#
# OPTION: STRICT, NO_VERIFY, SFRAME_VERSION 3|2 and OPTIMIZE LEVEL are options of `sframegen link`; the last call for a target or
# directory counts. FATAL and FORMAT, the old names of STRICT and SFRAME_VERSION, work until 1.1.
# This works with the Makefile and Ninja generators, for targets that a C, C++, Objective-C or Objective-C++ compiler links.

if(SFRAMEGEN AND NOT EXISTS "${SFRAMEGEN}")
    unset(SFRAMEGEN CACHE)
endif()
# The program of this installation, which has this file in lib/pythonX/site-packages/sframegen/integration/cmake; else that on PATH.
find_program(SFRAMEGEN sframegen HINTS "${CMAKE_CURRENT_LIST_DIR}/../../../../../../bin")

if(CMAKE_VERSION VERSION_LESS 3.21)
    set(Sframegen_NOT_FOUND_MESSAGE "CMake 3.21 is the first with launchers of linkers")
elseif(NOT SFRAMEGEN)
    set(Sframegen_NOT_FOUND_MESSAGE "no program sframegen")
endif()
if(Sframegen_NOT_FOUND_MESSAGE)
    set(Sframegen_FOUND FALSE)
    return()
endif()

# Writes a launcher for the options among the arguments. Sets `launcher` to its path, and `others` to the remaining arguments.
function(_sframegen_launcher launcher others)
    cmake_parse_arguments(PARSE_ARGV 2 arg "STRICT;NO_VERIFY;FATAL" "SFRAME_VERSION;OPTIMIZE;FORMAT" "")
    if(arg_FATAL OR arg_FORMAT)
        message(DEPRECATION "sframegen: FATAL is STRICT now, FORMAT is SFRAME_VERSION")
    endif()
    if(arg_STRICT OR arg_FATAL)
        list(APPEND options --strict)
    endif()
    foreach(version IN LISTS arg_SFRAME_VERSION arg_FORMAT)
        list(APPEND options --sframe-version ${version})
    endforeach()
    if(arg_OPTIMIZE)
        list(APPEND options --optimize ${arg_OPTIMIZE})
    endif()
    if(arg_NO_VERIFY)
        list(APPEND options --no-verify)
    endif()
    list(JOIN options "" suffix)
    set(directory "${CMAKE_BINARY_DIR}/CMakeFiles/sframegen${suffix}") # a path for each set of options, so that targets link again when options change
    execute_process(
        COMMAND "${SFRAMEGEN}" link ${options} --install "${directory}"
        RESULT_VARIABLE status OUTPUT_QUIET)
    if(NOT status EQUAL 0)
        message(FATAL_ERROR "${SFRAMEGEN} link --install: ${status}")
    endif()
    set(${launcher} "${directory}/sframegen-link" PARENT_SCOPE)
    set(${others} ${arg_UNPARSED_ARGUMENTS} ${arg_KEYWORDS_MISSING_VALUES} PARENT_SCOPE)
endfunction()

function(sframegen_add_section)
    _sframegen_launcher(launcher targets ${ARGV})
    foreach(target IN LISTS targets)
        get_property(type TARGET ${target} PROPERTY TYPE)
        get_property(imported TARGET ${target} PROPERTY IMPORTED)
        if(imported OR NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
            message(FATAL_ERROR "sframegen_add_section: nothing is linked for ${target} (${type}) here")
        endif()
        foreach(language C CXX OBJC OBJCXX)
            get_property(launchers TARGET ${target} PROPERTY ${language}_LINKER_LAUNCHER)
            list(FILTER launchers EXCLUDE REGEX "/sframegen-link$")
            set_property(TARGET ${target} PROPERTY ${language}_LINKER_LAUNCHER ${launchers} "${launcher}")
        endforeach()
    endforeach()
endfunction()

function(sframegen_add_section_directory)
    _sframegen_launcher(launcher others ${ARGV})
    if(others)
        message(FATAL_ERROR "sframegen_add_section_directory: no such option: ${others}")
    endif()
    foreach(language C CXX OBJC OBJCXX)
        set(launchers ${CMAKE_${language}_LINKER_LAUNCHER})
        list(FILTER launchers EXCLUDE REGEX "/sframegen-link$")
        set(CMAKE_${language}_LINKER_LAUNCHER ${launchers} "${launcher}" PARENT_SCOPE)
    endforeach()
endfunction()
