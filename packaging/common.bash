# What the scripts here share; they are run in the source tree. `builder`: a root with lintian and what debian/control builds with.
umask 022 # a source package has its files' modes
version=$(sed -nE 's/^__version__ = "([^"]*)".*/\1/p' sframegen/__init__.py)
builder=buildd,lintian,$(sed -nE '/^Build-Depends:/,/^Standards/s/^(Build-Depends:)? +([a-z0-9.+-]+).*/\2/p' debian/control |
    sed 's/^debhelper-compat$/debhelper/; s/^dh-sequence-python3$/dh-python/' | paste -sd,)

archive() { # [ARGS...]: a tar stream of the last commit
    git -c safe.directory='*' archive "$@"
}

commit_date() { # its seconds since 1970: files with it have the same bytes whenever they are built
    git -c safe.directory='*' log -1 --format=%ct
}

inside() { # SUITE PACKAGES FOLDER SCRIPT [ARGS...]: runs a bash script in a clean root, and prints the time without that of making the root
    local began
    tools/in-chroot "$1" "$2" "$3" true
    began=$SECONDS
    tools/in-chroot "$1" "$2" "$3" bash -euo pipefail -c "$4" bash "${@:5}"
    echo "== $((SECONDS - began)) s"
}
