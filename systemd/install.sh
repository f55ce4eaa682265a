#!/bin/sh
# Installs Cairn: install.sh DIRECTORY-OF-THE-PROGRAMS [ROOT]. Configuration that is there stays.
# Then, on the host itself: systemd-sysusers && systemd-tmpfiles --create cairn.conf &&
# systemctl daemon-reload && systemctl try-reload-or-restart dbus && systemctl enable --now cairn.target
set -eu
bin=$(realpath "${1:?usage: install.sh DIRECTORY-OF-THE-PROGRAMS [ROOT]}")
root=${2:+$(realpath -m "$2")}
cd "$(dirname "$0")"
put() { install -D -m "$1" "$2" "$root$3"; }  # put MODE FILE PATH

for program in cairn-calc cairn-privhelper cairn-supervisor; do
    put 0755 "$bin/$program" "/usr/libexec/cairn/$program"
done
put 0755 "$bin/cairnctl" /usr/bin/cairnctl
for unit in cairn*.service cairn*.socket cairn.target; do
    put 0644 "$unit" "/usr/lib/systemd/system/$unit"
done
put 0644 cairn.sysusers.conf /usr/lib/sysusers.d/cairn.conf
put 0644 cairn.tmpfiles.conf /usr/lib/tmpfiles.d/cairn.conf
put 0644 io.cairn.conf /usr/share/dbus-1/system.d/io.cairn.conf
install -d -m 0755 "$root/etc/cairn/datastore"
for file in calc.toml privhelper.toml; do
    [ -e "$root/etc/cairn/$file" ] || put 0644 "$file" "/etc/cairn/$file"
done
