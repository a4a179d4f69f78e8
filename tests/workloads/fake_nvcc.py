"""A compiler that makes the program out of the source's comments: no CUDA is needed."""

from __future__ import annotations

from pathlib import Path

SCRIPT = """\
#!/bin/sh
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release 99.1, V99.1.0"
    exit 0
fi
while [ $# -gt 0 ]; do
    case "$1" in
        -o) shift; program=$1 ;;
        -ptx) ptx=1 ;;
        *.cu) source=$1 ;;
    esac
    shift
done
if grep -q BROKEN "$source"; then
    echo "$source(1): error: expected a ';'"
    exit 1
fi
if grep -q ENDLESS "$source"; then
    sleep 600 &
    echo $! > "$0.pid"
    kill -TERM "$PPID"
    wait
fi
if [ -n "$ptx" ]; then
    sed -n 's|^// PTX: ||p' "$source" > "$program"
    exit 0
fi
{ echo '#!/bin/sh'; sed -n 's|^// SH: ||p' "$source"; } > "$program"
chmod +x "$program"
"""


def fake_nvcc(folder: Path) -> Path:
    """Lines `// SH: …` of the source become the program, `// PTX: …` its PTX. ENDLESS in it asks
    whoever compiles to stop, and never ends by itself; `nvcc.pid` holds a process of its own."""
    path = folder / "nvcc"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path
