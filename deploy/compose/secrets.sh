#!/bin/sh
# Creates the files that separate.yaml reads: random passwords and the secret key, once, in the directory `secrets` beside it.
set -eu
umask 077
place="${1:-$(dirname "$0")/secrets}"
test ! -e "$place" || { echo "$place is there already" >&2; exit 1; }
mkdir -p "$place.new"
random() { head -c 36 /dev/urandom | base64 | tr '+/' '-_'; }
owner=$(random) application=$(random)
printf %s "$owner" > "$place.new/owner_password"
random > "$place.new/secret_key"
printf %s "postgresql://heliograph:$application@pgbouncer:6432/heliograph" > "$place.new/database_url"
printf %s "postgresql://heliograph:$application@postgres:5432/heliograph" > "$place.new/database_direct_url"
printf %s "postgresql://heliograph_owner:$owner@postgres:5432/heliograph" > "$place.new/owner_database_url"
printf '"heliograph" "%s"\n' "$application" > "$place.new/pgbouncer_users"
# Containers read them under their own accounts; the directory remains closed to others on this machine.
chmod 644 "$place.new"/*
mv "$place.new" "$place"
