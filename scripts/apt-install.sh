#!/usr/bin/env bash
# Usage: scripts/apt-install.sh PACKAGE…
# Installs Debian or Ubuntu packages, quietly, and never removes any. Safe when several run at once.
set -euo pipefail

log() { echo "apt-install: $*" >&2; }

command -v apt-get >/dev/null || { log "no apt-get here: install these yourself: $*"; exit 1; }
as_root=()
if [ "$(id -u)" != 0 ]; then
  as_root=(sudo -n)
  sudo -n true 2>/dev/null || { log "needs root: sudo apt-get install $*"; exit 1; }
fi

# One of ours at a time: DPkg::Lock::Timeout covers dpkg's lock, not that of the package lists.
exec 9>"${TMPDIR:-/tmp}/lapse-apt.$(id -u).lock"
flock 9

out=$(mktemp)
trap 'rm -f "$out"' EXIT
log "installing $*"
for try in 1 2 3 4 5; do
  if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -o DPkg::Lock::Timeout=300 -qq install -y --no-install-recommends --no-remove "$@" >"$out" 2>&1 </dev/null 9>&-; then
    exit 0
  fi
  # The first failure on a fresh machine is usually that it has no package lists yet.
  "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 -qq update >>"$out" 2>&1 </dev/null 9>&- || true
  if grep -q 'Unable to locate package' "$out" && ! apt-cache show "$@" >/dev/null 2>&1; then break; fi
  [ "$try" = 1 ] || sleep $((try * 3))
done
cat "$out" >&2
log "could not install $*"
exit 1
