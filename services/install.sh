#!/bin/sh
# Installs one command of this project, and nothing else, into a folder of its own:
#
#     services/install.sh a8-http|judgevet-stdio FOLDER [PYTHON]
#
# Run it where dist/ (from `make dist`) and requirements/ are. Versions and hashes of everything that is not ours
# come from requirements/. The container files call it, and a test runs it in an empty home and environment.
set -eu

package=$1
folder=$2
python=${3:-python3}
case $package in
    a8-http) command=a8-http ;;
    judgevet-stdio) command=judgevet-mcp ;;
    *) echo "The package must be a8-http or judgevet-stdio: $package is neither." >&2; exit 2 ;;
esac

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt

"$python" -m venv --without-pip "$folder"
"$tools/bin/uv" pip install --quiet --python "$folder/bin/python" \
    --find-links dist --constraint requirements/dev.txt "$package"
"$folder/bin/$command" --help > /dev/null
