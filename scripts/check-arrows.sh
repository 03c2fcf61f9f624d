#!/usr/bin/env bash
# Usage: scripts/check-arrows.sh
#
# The import arrows, in seconds and without a linter (.golangci.yml states them too):
#
#   mains → app → server, lifecycle, store, delay/*, gateway, hook ;  server → lifecycle → order ← store, delay/*
#   gateway, hook → callout ;  server, hook → signature
#
# pkg/order does no I/O and reads no clock; only pkg/store speaks SQL (pkg/adopt hands it its caller's transaction); only pkg/delay/rocketmq knows the client.
# Tests may import what they test against, so only what is built into the programs is looked at, and no …test package.
set -euo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
# shellcheck disable=SC2016 # the $p is the template's
{
  go list -e -f '{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}
{{end}}' ./...
} | awk -v module="$module" '
function inside(path, folder) { return path == module "/" folder || index(path, module "/" folder "/") == 1 }
function bad(why) { print "check-arrows: " from " imports " to ": " why > "/dev/stderr"; failed = 1 }
# only(folder, allowed…): a package of ours under folder imports, of ours, nothing but these.
function only(folder, allowed,   list, n, i) {
  if (!inside(from, folder) || !(to == module || index(to, module "/") == 1) || inside(to, folder)) return
  n = split(allowed, list, " ")
  for (i = 1; i <= n; i++) if (inside(to, list[i])) return
  bad(folder " may import only " (n ? allowed : "nothing of ours"))
}
NF == 2 && $1 !~ /\/(delay|store)test$/ {
  from = $1; to = $2; seen++
  only("api", "")
  only("sql", "")
  only("pkg/order", "")
  only("pkg/lifecycle", "pkg/order")
  only("pkg/store", "pkg/order sql")
  only("pkg/delay", "pkg/order")
  only("pkg/signature", "")
  only("pkg/callout", "pkg/order")
  only("pkg/gateway", "pkg/callout pkg/order")
  only("pkg/hook", "pkg/callout pkg/signature pkg/order")
  only("pkg/adopt", "pkg/store pkg/order")
  only("examples", "pkg/adopt pkg/hook pkg/order")
  only("pkg/server", "pkg/lifecycle pkg/order pkg/signature api")
  only("pkg/app", "pkg/server pkg/lifecycle pkg/order pkg/store pkg/delay pkg/gateway pkg/hook api")
  only("producer", "pkg/app")
  only("consumer", "pkg/app")
  only("compensator", "pkg/app")
  only("cmd", "pkg/app pkg/order api")

  if (inside(from, "pkg/order") && (to ~ /^(net|os|database|log|syscall|io\/fs|embed|math\/rand)(\/|$)/ || to ~ /^[^\/]*\.[^\/]*\// && to !~ /^github\.com\/oklog\/ulid\//))
    bad("pkg/order is pure")
  if (to ~ /^github\.com\/apache\/rocketmq-client/ && !inside(from, "pkg/delay/rocketmq") && !inside(from, "test"))
    bad("only pkg/delay/rocketmq knows the client")
  if (to ~ /^(database\/sql(\/|$)|github\.com\/go-sql-driver\/|modernc\.org\/sqlite)/ && !inside(from, "pkg/store") && !inside(from, "sql") && !inside(from, "test") && !inside(from, "examples") && !(inside(from, "pkg/adopt") && to == "database/sql"))
    bad("only pkg/store speaks SQL")
}
END { if (!seen) { print "check-arrows: found no imports" > "/dev/stderr"; exit 1 } exit failed }'

# A clock is an argument in pkg/order, never read.
if grep -nE '\btime\.(Now|Since|Until|Sleep|After|AfterFunc|NewTimer|NewTicker|Tick)\(' pkg/order/*.go | grep -v '_test\.go:'; then
  echo "check-arrows: pkg/order reads no clock" >&2
  exit 1
fi
