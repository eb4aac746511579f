# CMake
